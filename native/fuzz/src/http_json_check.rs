//! The rules of JSON tensors: an outline leaves out exactly the id, what is in the arrays and white space between what
//! stands apart without it, and what is put in there instead changes nothing else; an array is read as a second, slow reading by JSON's grammar reads it, in whatever steps;
//! and what is written reads the same.

use crate::http::json::Outline;
use crate::templates::array::{Array, Step};
use crate::templates::number::Number;

const TARGET: &[u8] = b"/t";
const CODES: [&str; 11] = ["?", "B", "H", "I", "Q", "b", "h", "i", "q", "f", "d"];
/// As deep as arrays are read.
const DEPTH: usize = 15;

/// Panics if a rule is broken: the first byte says which is tried on the others.
pub fn check(input: &[u8]) {
    let Some((&rule, rest)) = input.split_first() else { return };
    let number = CODES.get(usize::from(rule >> 1)).and_then(|code| Number::of_code(code));
    match (rule & 1, number) {
        (0, Some(number)) => check_array(rest, number),
        (_, Some(number)) => check_written(rest, number),
        (_, None) => check_outline(rest),
    }
}

fn outline(json: &[u8]) -> Option<Outline> {
    let mut outline = Outline::default();
    outline.read(b"/other", br#"{"id":"7","inputs":[{"data":[1]}]}"#).expect("a plain request");
    outline.read(TARGET, json)?;
    Some(outline)
}

fn check_outline(json: &[u8]) {
    let Some(read) = outline(json) else { return };
    let mut cuts = read.data.clone();
    for data in &cuts {
        assert!(json[..data.start].ends_with(b"[") && json[data.end..].starts_with(b"]"));
    }
    if !read.id.is_empty() {
        assert!(json[..read.id.start].ends_with(b"\"") && json[read.id.end..].starts_with(b"\""));
        cuts.push(read.id.clone());
    }
    assert!(read.data.is_sorted_by_key(|range| range.start));
    cuts.sort_by_key(|range| range.start);
    let (mut text, mut other, mut from) = (Vec::new(), Vec::new(), 0);
    for cut in &cuts {
        assert!(from <= cut.start && cut.end < json.len(), "apart from one another, and inside");
        text.extend_from_slice(&json[from..cut.start]);
        other.extend_from_slice(&json[from..cut.start]);
        other.extend_from_slice(if *cut == read.id { b"x" } else { b"[7],[8]" });
        from = cut.end;
    }
    text.extend_from_slice(&json[from..]);
    other.extend_from_slice(&json[from..]);
    assert_eq!(read.key, [TARGET, b"\n", &words(&text)].concat());
    let changed = outline(&other).expect("as common as before");
    assert_eq!((&changed.key, changed.data.len()), (&read.key, read.data.len()));
    let empty = outline(&read.key[TARGET.len() + 1..]).expect("without any as well");
    assert_eq!((empty.key, empty.data.len()), (read.key, read.data.len()));
}

/// JSON without white space, but for one space between words.
fn words(json: &[u8]) -> Vec<u8> {
    let (mut words, mut quoted, mut gap) = (Vec::<u8>::new(), false, false);
    for &byte in json {
        if !quoted && b" \t\n\r".contains(&byte) {
            gap = true;
            continue;
        }
        let word = |byte: u8| !b"{}[],:\"".contains(&byte);
        if std::mem::take(&mut gap) && word(byte) && words.last().is_some_and(|last| word(*last)) {
            words.push(b' ');
        }
        quoted ^= byte == b'"';
        words.push(byte);
    }
    words
}

fn check_array(text: &[u8], number: Number) {
    let expected = slow(text, number);
    let elements = expected.as_ref().map_or(1, |raw| raw.len() / number.size());
    assert_eq!(read(text, number, elements), expected);
    if expected.is_some() {
        assert_eq!(read(text, number, elements + 1), None, "too few");
        assert_eq!(read(text, number, elements - 1), None, "too many");
    }
}

fn read(text: &[u8], number: Number, elements: usize) -> Option<Vec<u8>> {
    let mut array = Array::new(text, number, elements);
    let mut raw = Vec::new();
    for _ in 0..=text.len() {
        match array.step(&mut raw) {
            Step::More => assert!(raw.len() <= elements * number.size()),
            Step::Whole => return Some(raw).inspect(|raw| assert_eq!(raw.len(), elements * number.size())),
            Step::Strange => return None,
        }
    }
    panic!("it does not end")
}

fn check_written(raw: &[u8], number: Number) {
    let raw = &raw[..raw.len() / number.size() * number.size()];
    let mut text = Vec::new();
    number.write(raw, &mut text);
    assert!(text.len() <= raw.len() / number.size() * number.longest_text());
    if raw.is_empty() {
        return;
    }
    let again = read(&text, number, raw.len() / number.size()).expect("what was written can be read");
    let mut text_again = Vec::new();
    number.write(&again, &mut text_again);
    assert_eq!(text_again, text);
    let exact = !matches!(number, Number::Bool) && !text.windows(3).any(|name| name == b"NaN");
    assert!(!exact || again == raw);
}

/// A value of JSON, as far as arrays may hold it.
enum Value {
    Array(Vec<Value>),
    Text(String),
}

/// The bytes of an array without its brackets, if it is evenly nested and holds only what the datatype takes.
fn slow(text: &[u8], number: Number) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let whole = format!("[{text}]");
    let mut rest = whole.as_str();
    let Value::Array(mut level) = value(&mut rest, 0)? else { return None };
    if !rest.is_empty() {
        return None;
    }
    while level.iter().any(|value| matches!(value, Value::Array(_))) {
        let mut lengths = level.iter().map(|value| match value {
            Value::Array(inner) => Some(inner.len()),
            Value::Text(_) => None,
        });
        let first = lengths.next().flatten()?;
        if !lengths.all(|length| length == Some(first)) {
            return None;
        }
        level = level
            .into_iter()
            .flat_map(|value| if let Value::Array(inner) = value { inner } else { Vec::new() })
            .collect();
    }
    let texts =
        level.into_iter().map(|value| if let Value::Text(text) = value { text } else { String::new() });
    let elements: Option<Vec<Vec<u8>>> = texts.map(|text| element(&text, number)).collect();
    elements.map(|elements| elements.concat())
}

fn value(rest: &mut &str, depth: usize) -> Option<Value> {
    const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
    *rest = rest.trim_start_matches(SPACE);
    let Some(inner) = rest.strip_prefix('[') else {
        let end = rest.find([',', ']', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
        let (text, after) = rest.split_at(end);
        *rest = after;
        return Some(Value::Text(text.to_string()));
    };
    if depth > DEPTH {
        return None;
    }
    *rest = inner;
    let mut values = Vec::new();
    loop {
        values.push(value(rest, depth + 1)?);
        *rest = rest.trim_start_matches(SPACE);
        let next = rest.chars().next()?;
        *rest = &rest[next.len_utf8()..];
        match next {
            ',' => {}
            ']' => return Some(Value::Array(values)),
            _ => return None,
        }
    }
}

fn element(text: &str, number: Number) -> Option<Vec<u8>> {
    let float = matches!(number, Number::Single | Number::Double);
    if number == Number::Bool {
        return match text {
            "true" | "1" => Some(vec![1]),
            "false" | "0" | "-0" => Some(vec![0]),
            _ => None,
        };
    }
    let name = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let named = [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];
    let double = match named.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => *value,
        None => {
            let whole = grammar(text)?;
            if !float {
                let value: i128 = text.parse().ok().filter(|_| whole)?;
                return packed(value, number);
            }
            let double: f64 = text.parse().ok()?;
            match whole {
                true if double.is_infinite() => return None,
                true if double == 0.0 => 0.0,
                _ => double,
            }
        }
    };
    let single = double as f32;
    match number {
        Number::Double => Some(double.to_le_bytes().into()),
        Number::Single if single.is_infinite() && double.is_finite() => None,
        Number::Single => Some(single.to_le_bytes().into()),
        _ => None,
    }
}

fn packed(value: i128, number: Number) -> Option<Vec<u8>> {
    let size = number.size();
    let signed = matches!(number, Number::Signed(_));
    let (least, most) =
        if signed { (-(1 << (8 * size - 1)), 1 << (8 * size - 1)) } else { (0, 1 << (8 * size)) };
    (least..most).contains(&value).then(|| value.to_le_bytes()[..size].to_vec())
}

/// Whether a number is whole; None for what is no number, or longer than is read.
fn grammar(text: &str) -> Option<bool> {
    let plain = text.strip_prefix('-').unwrap_or(text);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = plain.split_once(['e', 'E']).map_or((plain, None), |(m, e)| (m, Some(e)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let good = digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|text| digits(text.strip_prefix(['+', '-']).unwrap_or(text)))
        && text.len() < 1024;
    good.then_some(fraction.is_none() && exponent.is_none())
}
