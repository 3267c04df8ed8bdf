//! Elements of tensors as JSON, both ways, exactly as the edge in Python reads and writes them (`frontend/http/json_tensor.py`).
//!
//! What Python's `json` reads and `struct` packs is a double that was rounded once from its digits, and a float that was
//! rounded from that double. What it writes are the fewest digits that read as the same double, floats included. What is
//! refused there is `None` here.

use std::io::{Result, Write};

/// Longest number that is read. Python's bound on the digits of whole numbers lies above it.
const DIGITS: usize = 1024;
/// Numbers up to here are doubles to the last digit, and so are powers of ten up to the last of `TENS`.
const EXACT: u64 = 1 << 53;
const TENS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];
/// What floats are called for which JSON has no number.
const NOT_FINITE: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

/// A datatype whose elements have a form in JSON and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// `true` and `false`; 1 and 0 are read as well.
    Bool,
    /// Unsigned, of so many bytes.
    Unsigned(u8),
    /// Signed, of so many bytes.
    Signed(u8),
    /// A float of four bytes.
    Single,
    /// A float of eight bytes.
    Double,
}

/// A value as JSON spells it.
#[derive(Clone, Copy)]
enum Value {
    Truth(bool),
    /// A whole number, if it fits.
    Whole(Option<i128>, f64),
    /// A number with a fraction or an exponent, or one of those that JSON does not have.
    Float(f64),
}

impl Number {
    /// Of a format character of Python's `struct`.
    pub fn of_code(code: &str) -> Option<Self> {
        Some(match code {
            "?" => Self::Bool,
            "B" => Self::Unsigned(1),
            "H" => Self::Unsigned(2),
            "I" => Self::Unsigned(4),
            "Q" => Self::Unsigned(8),
            "b" => Self::Signed(1),
            "h" => Self::Signed(2),
            "i" => Self::Signed(4),
            "q" => Self::Signed(8),
            "f" => Self::Single,
            "d" => Self::Double,
            _ => return None,
        })
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Unsigned(size) | Self::Signed(size) => size.into(),
            Self::Single => 4,
            Self::Double => 8,
        }
    }

    /// As many characters as an element takes at most, and a comma.
    pub fn longest_text(self) -> usize {
        match self {
            Self::Bool => "false,".len(),
            Self::Unsigned(_) | Self::Signed(_) => "-9223372036854775808,".len(),
            Self::Single | Self::Double => "-2.2250738585072014e-308,".len(),
        }
    }

    /// Reads the value at the front of `text` and appends its bytes; gives how long it was.
    pub fn read(self, text: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        let (value, length) = value(text, matches!(self, Self::Single | Self::Double))?;
        match (self, value) {
            (Self::Bool, Value::Truth(truth)) => into.push(truth.into()),
            (Self::Bool, Value::Whole(Some(whole @ 0..=1), _)) => into.push(whole as u8),
            (Self::Unsigned(size), Value::Whole(Some(whole), _)) => {
                let whole =
                    u64::try_from(whole).ok().filter(|whole| size == 8 || whole >> (8 * size) == 0)?;
                into.extend_from_slice(&whole.to_le_bytes()[..size.into()]);
            }
            (Self::Signed(size), Value::Whole(Some(whole), _)) => {
                let bound = 1i128 << (8 * size - 1);
                if !(-bound..bound).contains(&whole) {
                    return None;
                }
                into.extend_from_slice(&whole.to_le_bytes()[..size.into()]);
            }
            // A whole number that no double can be is refused; with a fraction or an exponent it is infinite.
            (Self::Single | Self::Double, Value::Whole(_, double)) if double.is_infinite() => return None,
            (Self::Double, Value::Whole(_, double) | Value::Float(double)) => {
                into.extend_from_slice(&double.to_le_bytes());
            }
            (Self::Single, Value::Whole(_, double) | Value::Float(double)) => {
                let single = double as f32;
                if single.is_infinite() && double.is_finite() {
                    return None;
                }
                into.extend_from_slice(&single.to_le_bytes());
            }
            _ => return None,
        }
        Some(length)
    }

    /// Appends elements, without the brackets of an array. `raw` holds whole elements.
    pub fn write(self, raw: &[u8], into: &mut Vec<u8>) {
        for (index, element) in raw.chunks_exact(self.size()).enumerate() {
            if index > 0 {
                into.push(b',');
            }
            let mut bytes = [0; 8];
            bytes[..element.len()].copy_from_slice(element);
            let unsigned = u64::from_le_bytes(bytes);
            let spare = 64 - 8 * element.len();
            // Writing to memory cannot fail.
            let _ = match self {
                Self::Bool => into.write_all(if unsigned == 0 { b"false" } else { b"true" }),
                Self::Unsigned(_) => write!(into, "{unsigned}"),
                Self::Signed(_) => write!(into, "{}", (unsigned as i64) << spare >> spare),
                Self::Single => write_double(f32::from_bits(unsigned as u32).into(), into),
                Self::Double => write_double(f64::from_bits(unsigned), into),
            };
        }
    }
}

/// The value at the front of `text`, and how long it is. `floats`: those that JSON does not have may be strings.
fn value(text: &[u8], floats: bool) -> Option<(Value, usize)> {
    match text.first()? {
        b't' => text.starts_with(b"true").then_some((Value::Truth(true), 4)),
        b'f' => text.starts_with(b"false").then_some((Value::Truth(false), 5)),
        b'N' | b'I' => not_finite(text),
        b'-' if text.get(1) == Some(&b'I') => not_finite(text),
        b'"' if floats => {
            let (value, length) = not_finite(&text[1..])?;
            (text.get(length + 1) == Some(&b'"')).then_some((value, length + 2))
        }
        _ => number(text),
    }
}

fn not_finite(text: &[u8]) -> Option<(Value, usize)> {
    let found = NOT_FINITE.iter().find(|(name, _)| text.starts_with(name.as_bytes()));
    found.map(|(name, value)| (Value::Float(*value), name.len()))
}

/// How a number is spelt.
#[derive(Default)]
struct Digits {
    /// The first ones as a whole number, while they fit.
    mantissa: u64,
    /// How many of them there are, without zeros at the front.
    count: usize,
}

impl Digits {
    /// Takes digits in from `position` on; where they end.
    fn take(&mut self, text: &[u8], mut position: usize) -> usize {
        while let Some(digit) = text.get(position).filter(|byte| byte.is_ascii_digit()) {
            self.mantissa = self.mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            self.count += usize::from(self.count > 0 || *digit > b'0');
            position += 1;
        }
        position
    }
}

fn number(text: &[u8]) -> Option<(Value, usize)> {
    let text = &text[..text.len().min(DIGITS)];
    let negative = text[0] == b'-';
    let begin = usize::from(negative);
    let mut digits = Digits::default();
    let point = match text.get(begin)? {
        b'0' => begin + 1,
        b'1'..=b'9' => digits.take(text, begin),
        _ => return None,
    };
    let mut end = point;
    if text.get(point) == Some(&b'.') {
        end = digits.take(text, point + 1);
        if end == point + 1 {
            return None;
        }
    }
    let fraction = end.saturating_sub(point + 1);
    let has_exponent = matches!(text.get(end), Some(b'e' | b'E'));
    if has_exponent {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let begin = end + 1 + sign;
        end = Digits::default().take(text, begin);
        if end == begin {
            return None;
        }
    }
    if end == DIGITS {
        return None; // there may be more of it
    }
    let known = digits.count <= 19; // they have not run over
    let double = if known && digits.mantissa <= EXACT && !has_exponent && fraction < TENS.len() {
        let positive = digits.mantissa as f64 / TENS[fraction]; // of two exact numbers: rounded once
        if negative { -positive } else { positive }
    } else {
        std::str::from_utf8(&text[..end]).ok()?.parse().ok()?
    };
    if end > point {
        return Some((Value::Float(double), end));
    }
    let whole = if known {
        Some(if negative { -i128::from(digits.mantissa) } else { digits.mantissa.into() })
    } else {
        std::str::from_utf8(&text[..end]).ok()?.parse().ok()
    };
    // Whole numbers have no negative zero.
    Some((Value::Whole(whole, if digits.count == 0 { 0.0 } else { double }), end))
}

/// As Python's `repr`: the fewest digits, and of the numbers with so few the nearest.
fn write_double(value: f64, into: &mut Vec<u8>) -> Result<()> {
    if !value.is_finite() {
        let name = if value.is_nan() { 0 } else { 1 + usize::from(value < 0.0) };
        return write!(into, "\"{}\"", NOT_FINITE[name].0);
    }
    if value == value.trunc() && value.abs() < 1e15 {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        return write!(into, "{sign}{}.0", value.abs() as u64);
    }
    let mut text = [0; 32];
    let length = scientific(value, None, &mut text)?;
    let spelt = Spelt::of(&text[..length]);
    let mut even = [0; 32];
    if spelt.may_be_halfway(value) {
        // Two numbers of so few digits are as near as each other, and Python takes the even one, if it reads the same.
        let length = scientific(value, Some(spelt.digits() - 1), &mut even)?;
        let nearest = Spelt::of(&even[..length]);
        if std::str::from_utf8(&even[..length]).ok().and_then(|text| text.parse().ok()) == Some(value) {
            return nearest.put(into);
        }
    }
    spelt.put(into)
}

/// Writes a finite number with one digit before the point and as many behind it as are asked for, else the fewest.
fn scientific(value: f64, behind: Option<usize>, text: &mut [u8; 32]) -> Result<usize> {
    let mut rest = &mut text[..];
    match behind {
        Some(digits) => write!(rest, "{value:.digits$e}")?,
        None => write!(rest, "{value:e}")?,
    }
    Ok(32 - rest.len())
}

/// A number taken apart: sign, the digit before the point, those behind it, and the power of ten.
struct Spelt<'a> {
    negative: bool,
    first: u8,
    others: &'a [u8],
    power: i32,
}

impl<'a> Spelt<'a> {
    /// Of what `scientific` wrote.
    fn of(text: &'a [u8]) -> Self {
        let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |text| (true, text));
        let end = text.iter().position(|byte| *byte == b'e').unwrap_or(text.len());
        let (mantissa, power) = text.split_at(end);
        let (sign, power) = match power.get(1..).unwrap_or_default() {
            [b'-', power @ ..] => (-1, power),
            power => (1, power),
        };
        let power = sign * power.iter().fold(0, |sum, digit| 10 * sum + i32::from(digit - b'0'));
        Self { negative, first: mantissa[0], others: mantissa.get(2..).unwrap_or_default(), power }
    }

    /// How many digits there are.
    fn digits(&self) -> usize {
        1 + self.others.len()
    }

    /// Whether `value`, of which these are the fewest digits, may lie halfway between two numbers of as many: then twice
    /// its multiple by a power of ten is an odd number.
    fn may_be_halfway(&self, value: f64) -> bool {
        let bits = value.to_bits();
        let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
        let mantissa = if exponent == 0 { fraction } else { fraction | 1 << 52 };
        let odd = exponent.max(1) - 1075 + mantissa.trailing_zeros() as i32;
        odd + self.digits() as i32 - 1 - self.power == -1
    }

    /// As Python's `repr`: with an exponent below 1e-4 and from 1e16 on.
    fn put(&self, into: &mut Vec<u8>) -> Result<()> {
        if self.negative {
            into.push(b'-');
        }
        match self.power {
            0..16 => {
                let whole = self.power as usize;
                let (before, behind) = self.others.split_at(whole.min(self.others.len()));
                into.push(self.first);
                into.extend_from_slice(before);
                into.resize(into.len() + whole - before.len(), b'0');
                into.push(b'.');
                into.extend_from_slice(if behind.is_empty() { b"0" } else { behind });
            }
            -4..0 => {
                into.extend_from_slice(b"0.");
                into.resize(into.len() + self.power.unsigned_abs() as usize - 1, b'0');
                into.push(self.first);
                into.extend_from_slice(self.others);
            }
            _ => {
                into.push(self.first);
                if !self.others.is_empty() {
                    into.push(b'.');
                    into.extend_from_slice(self.others);
                }
                let sign = if self.power < 0 { '-' } else { '+' };
                write!(into, "e{sign}{:02}", self.power.unsigned_abs())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "number_tests.rs"]
mod tests;
