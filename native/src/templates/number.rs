//! Elements of tensors as JSON, both ways, exactly as the application in Python reads and writes them
//! (`frontend/http/json_tensor.py`).
//!
//! What Python's `json` reads and `struct` packs is a double that was rounded once from its digits, and a float that
//! was rounded from that double. What it writes are the fewest digits that read as the same double, floats included.
//! What is refused there is `None` here.

use lexical_parse_float::{FromLexicalWithOptions, Options, format, options};
use std::io::{Result, Write};

/// Longest number that is read. Python's bound on the digits of whole numbers lies above it.
const DIGITS: usize = 1024;
/// The grammar of JSON's numbers.
const JSON: u128 = format::JSON;
/// What floats are called for which JSON has no number.
const NOT_FINITE: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

/// A datatype whose elements have a form in JSON and a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
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

impl Number {
    /// Of a format character of Python's `struct`.
    pub(crate) fn of_code(code: &str) -> Option<Self> {
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
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Unsigned(size) | Self::Signed(size) => size.into(),
            Self::Single => 4,
            Self::Double => 8,
        }
    }

    /// As many characters as an element takes at most, and a comma.
    pub(crate) fn longest_text(self) -> usize {
        match self {
            Self::Bool => "false,".len(),
            Self::Unsigned(_) | Self::Signed(_) => "-9223372036854775808,".len(),
            Self::Single | Self::Double => "-2.2250738585072014e-308,".len(),
        }
    }

    /// Reads the value at the front of `text` and appends its bytes; gives how long it was.
    pub(crate) fn read(self, text: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        let text = &text[..text.len().min(DIGITS)];
        let length = match self {
            Self::Bool => {
                let (truth, length) = truth(text)?;
                into.push(truth.into());
                length
            }
            Self::Unsigned(size) | Self::Signed(size) => {
                let (whole, length) = whole(text)?;
                let least = if matches!(self, Self::Signed(_)) { -(1 << (8 * size - 1)) } else { 0 };
                if !(least..least + (1 << (8 * size))).contains(&whole) {
                    return None;
                }
                into.extend_from_slice(&whole.to_le_bytes()[..size.into()]);
                length
            }
            Self::Single => {
                let (double, length) = double(text)?;
                let single = double as f32;
                if single.is_infinite() && double.is_finite() {
                    return None;
                }
                into.extend_from_slice(&single.to_le_bytes());
                length
            }
            Self::Double => {
                let (double, length) = double(text)?;
                into.extend_from_slice(&double.to_le_bytes());
                length
            }
        };
        (length < DIGITS).then_some(length) // else there may be more of it
    }

    /// Appends elements, without the brackets of an array. `raw` holds whole elements.
    pub(crate) fn write(self, raw: &[u8], into: &mut Vec<u8>) {
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

/// The truth at the front of `text`, which may be a number, and how long it is.
fn truth(text: &[u8]) -> Option<(bool, usize)> {
    match text {
        [b't', b'r', b'u', b'e', ..] => Some((true, 4)),
        [b'f', b'a', b'l', b's', b'e', ..] => Some((false, 5)),
        _ => whole(text)
            .filter(|(whole, _)| matches!(whole, 0 | 1))
            .map(|(whole, length)| (whole == 1, length)),
    }
}

/// The whole number at the front of `text`, and how long it is.
fn whole(text: &[u8]) -> Option<(i128, usize)> {
    let sign = usize::from(text.starts_with(b"-"));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 1 && text[sign] == b'0' {
        return None;
    }
    let length = sign + digits;
    Some((std::str::from_utf8(&text[..length]).ok()?.parse().ok()?, length))
}

/// The float at the front of `text`, and how long it is. One that JSON does not have may be a string.
fn double(text: &[u8]) -> Option<(f64, usize)> {
    const OPTIONS: Options = options::JSON;
    if matches!(text, [b'N' | b'I', ..] | [b'-', b'I', ..]) {
        return not_finite(text);
    }
    if let Some(text) = text.strip_prefix(b"\"") {
        let (double, length) = not_finite(text)?;
        return (text.get(length) == Some(&b'"')).then_some((double, length + 2));
    }
    let (double, length) = f64::from_lexical_partial_with_options::<JSON>(text, &OPTIONS).ok()?;
    let is_whole = || text[..length].iter().all(|byte| matches!(byte, b'-' | b'0'..=b'9'));
    // Whole numbers have no negative zero, and none of them is infinite.
    match double {
        0.0 if is_whole() => Some((0.0, length)),
        _ if double.is_infinite() && is_whole() => None,
        _ => Some((double, length)),
    }
}

fn not_finite(text: &[u8]) -> Option<(f64, usize)> {
    let (name, value) = NOT_FINITE.iter().find(|(name, _)| text.starts_with(name.as_bytes()))?;
    Some((*value, name.len()))
}

/// As Python's `repr`: the fewest digits, and of the numbers with so few the nearest; with an exponent of two digits
/// and more below 1e-4 and from 1e16 on.
fn write_double(value: f64, into: &mut Vec<u8>) -> Result<()> {
    if !value.is_finite() {
        let name = if value.is_nan() { 0 } else { 1 + usize::from(value < 0.0) };
        return write!(into, "\"{}\"", NOT_FINITE[name].0);
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value);
    if let Some((digits, power)) = text.split_once('e') {
        let (sign, power) = power.split_at(1);
        return write!(into, "{digits}e{sign}{power:0>2}");
    }
    if value == 0.0 || value.abs() >= 1e-4 {
        return into.write_all(text.as_bytes());
    }
    let sign = if value < 0.0 { "-" } else { "" };
    let (first, others) = text.trim_start_matches(['-', '0', '.']).split_at(1);
    let point = if others.is_empty() { "" } else { "." };
    write!(into, "{sign}{first}{point}{others}e-05")
}

#[cfg(test)]
#[path = "number_tests.rs"]
mod tests;
