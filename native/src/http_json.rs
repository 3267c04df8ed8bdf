//! The JSON head of an inference request, as far as it must be understood to recognise it: where the value of its
//! top-level `"id"` lies.
//!
//! This reads no JSON. Heads are only ever compared with heads that Python has read and checked, so it is enough that
//! what stands at the place of the id in one of them is a string of plain characters, whatever these are.

use crate::scan::HEAD;
use std::ops::Range;

/// Longest id that is taken; longer ones are the edge's.
pub const ID: usize = 64;

const NAME: &[u8] = b"id";

/// Makes the key of a request: its target and its JSON without the value of the id, which is given. None when something
/// is uncommon: an escape anywhere, two ids, an id that is not a string of printable ASCII, a head that is long.
///
/// Keys begin with a slash, with which no head of a gRPC message can begin, so both can lie in one table.
pub fn key(target: &[u8], json: &[u8], into: &mut Vec<u8>) -> Option<Range<usize>> {
    into.clear();
    if json.len() > HEAD || target.len() > HEAD || !target.starts_with(b"/") {
        return None;
    }
    let id = find_id(json)?;
    into.extend_from_slice(target);
    into.push(b'\n');
    into.extend_from_slice(&json[..id.start]);
    into.extend_from_slice(&json[id.end..]);
    Some(id)
}

/// Where the id lies; empty when there is none.
fn find_id(json: &[u8]) -> Option<Range<usize>> {
    let mut found = None;
    let mut depth = 0usize;
    let mut position = space(json, 0);
    if json.get(position) != Some(&b'{') {
        return None;
    }
    while let Some(byte) = json.get(position) {
        position += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'\\' => return None,
            b'"' => {
                let end = end_of_string(json, position)?;
                let name = &json[position..end];
                position = end + 1;
                let colon = space(json, position);
                if depth == 1 && name == NAME && json.get(colon) == Some(&b':') {
                    let value = value_of_id(json, colon + 1)?;
                    position = value.end + 1;
                    if found.replace(value).is_some() {
                        return None;
                    }
                }
            }
            _ => {}
        }
    }
    (depth == 0).then(|| found.unwrap_or(0..0))
}

fn value_of_id(json: &[u8], from: usize) -> Option<Range<usize>> {
    let quote = space(json, from);
    if json.get(quote) != Some(&b'"') {
        return None;
    }
    let value = quote + 1..end_of_string(json, quote + 1)?;
    let plain = json[value.clone()].iter().all(|byte| matches!(byte, b' '..=b'~'));
    (plain && value.len() <= ID).then_some(value)
}

/// Where the string that begins at `from` ends, if there is no escape in it.
fn end_of_string(json: &[u8], from: usize) -> Option<usize> {
    let length = json.get(from..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    (json[from + length] == b'"').then_some(from + length)
}

/// Where the white space that begins at `from` ends.
fn space(json: &[u8], from: usize) -> usize {
    let rest = json.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Appends a string to JSON text as Python's `json` does: in ASCII.
pub fn put_string(text: &str, into: &mut Vec<u8>) {
    into.push(b'"');
    for unit in text.chars() {
        match unit {
            '"' | '\\' => into.extend_from_slice(&[b'\\', unit as u8]),
            '\n' => into.extend_from_slice(b"\\n"),
            '\r' => into.extend_from_slice(b"\\r"),
            '\t' => into.extend_from_slice(b"\\t"),
            '\u{8}' => into.extend_from_slice(b"\\b"),
            '\u{c}' => into.extend_from_slice(b"\\f"),
            ' '..='~' => into.push(unit as u8),
            _ => {
                for half in unit.encode_utf16(&mut [0; 2]) {
                    into.extend_from_slice(format!("\\u{half:04x}").as_bytes());
                }
            }
        }
    }
    into.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<(String, String)> {
        let mut into = Vec::new();
        let id = key(b"/t", json.as_bytes(), &mut into)?;
        Some((String::from_utf8(into).unwrap(), json[id].to_string()))
    }

    #[test]
    fn the_id_is_taken_out_wherever_it_stands() {
        for (json, rest, id) in [
            (r#"{"id":"42","inputs":[]}"#, r#"{"id":"","inputs":[]}"#, "42"),
            (r#" { "inputs" : [] , "id" : "a b~" } "#, r#" { "inputs" : [] , "id" : "" } "#, "a b~"),
            (r#"{"inputs":[{"id":"no"}],"x":"id"}"#, r#"{"inputs":[{"id":"no"}],"x":"id"}"#, ""),
            (r#"{"id":""}"#, r#"{"id":""}"#, ""),
            (r#"{"x":"{[","id":"1"}"#, r#"{"x":"{[","id":""}"#, "1"),
            ("{\"n\":\"\u{e4}\",\"id\":\"1\"}", "{\"n\":\"\u{e4}\",\"id\":\"\"}", "1"),
        ] {
            assert_eq!(read(json), Some((format!("/t\n{rest}"), id.to_string())), "{json}");
        }
    }

    #[test]
    fn what_is_uncommon_is_not_read() {
        let (long, deep) =
            (format!(r#"{{"x":"{}"}}"#, "x".repeat(HEAD)), format!(r#"{{"id":"{}"}}"#, "i".repeat(65)));
        for json in [
            "",
            "[]",
            r#""id""#,
            r#"{"id":7}"#,
            r#"{"id":null}"#,
            r#"{"id":"1","id":"2"}"#,
            r#"{"id":"a\"b"}"#,
            r#"{"\u0069d":"1"}"#,
            "{\"id\":\"\u{e4}\"}",
            "{\"id\":\"\n\"}",
            r#"{"id":"1"#,
            r#"{"id":"1""#,
            r#"{"x":1}}"#,
            r#"{"x":"\\"}"#,
            &long,
            &deep,
        ] {
            assert_eq!(read(json), None, "{json}");
        }
        assert_eq!(key(b"*", b"{}", &mut Vec::new()), None);
    }

    #[test]
    fn strings_are_written_as_python_writes_them() {
        let mut text = Vec::new();
        put_string("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}\u{e4}\u{1f600}/", &mut text);
        assert_eq!(text, br#""a\"\\\n\r\t\b\f\u0001\u007f\u00e4\ud83d\ude00/""#);
    }
}
