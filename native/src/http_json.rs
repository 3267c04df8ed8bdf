//! The JSON of an inference request, as far as it must be understood to recognise it: where the value of its top-level
//! `"id"` lies, and the arrays that are `"data"` of its inputs.
//!
//! This reads no JSON. What is left without these parts is only ever compared with JSON that Python has read and checked,
//! so it is enough that what stands at the place of the id is a string of plain characters, whatever these are, and at
//! the place of an array something between brackets, which `http_array.rs` reads by the letter.

use crate::scan::{HEAD, TENSORS};
use std::ops::Range;

/// Longest id that is taken; longer ones are the edge's.
pub const ID: usize = 64;

const NAME: &[u8] = b"id";
const INPUTS: &[u8] = b"inputs";
const DATA: &[u8] = b"data";
/// How deep an input's members lie.
const MEMBER: usize = 3;
/// Bytes that are looked at together where nothing but numbers is expected.
const BLOCK: usize = 32;

/// A request taken apart; used again for the next one.
#[derive(Default)]
pub struct Outline {
    /// Its target and its JSON without the value of the id and what is in the arrays: by it requests are recognised.
    ///
    /// Keys begin with a slash, with which no head of a gRPC message can begin, so both can lie in one table.
    pub key: Vec<u8>,
    /// Where the id lies in the JSON; empty when there is none.
    pub id: Range<usize>,
    /// Where the contents of the arrays lie in the JSON, in the order of the inputs that have one.
    pub data: Vec<Range<usize>>,
}

impl Outline {
    /// Takes a request apart. None when something is uncommon: an escape anywhere, two ids, an id that is not a string of
    /// printable ASCII, data that is no array, a key that is long. What is held then means nothing.
    pub fn read(&mut self, target: &[u8], json: &[u8]) -> Option<()> {
        self.key.clear();
        self.data.clear();
        if target.len() > HEAD || !target.starts_with(b"/") {
            return None;
        }
        let id = self.find(json)?;
        self.key.extend_from_slice(target);
        self.key.push(b'\n');
        let (mut from, longest) = (0, self.key.len() + HEAD);
        let early = self.data.iter().take_while(|range| range.end <= id.start).count();
        let (before, after) = self.data.split_at(early);
        let missing = (!id.is_empty()).then_some(&id);
        for cut in before.iter().chain(missing).chain(after) {
            take(&mut self.key, &json[from..cut.start], longest)?;
            from = cut.end;
        }
        take(&mut self.key, &json[from..], longest)?;
        self.id = id;
        Some(())
    }

    /// Notes where the arrays lie, and gives where the id lies; empty when there is none.
    fn find(&mut self, json: &[u8]) -> Option<Range<usize>> {
        let mut id = None;
        let (mut depth, mut inputs) = (0usize, false);
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
                    if json.get(colon) != Some(&b':') {
                        continue;
                    }
                    if depth == 1 {
                        inputs = name == INPUTS;
                    }
                    if depth == 1 && name == NAME {
                        let value = value_of_id(json, colon + 1)?;
                        position = value.end + 1;
                        if id.replace(value).is_some() {
                            return None;
                        }
                    } else if depth == MEMBER && inputs && name == DATA {
                        let contents = contents_of_array(json, colon + 1)?;
                        position = contents.end + 1;
                        if self.data.len() == TENSORS {
                            return None;
                        }
                        self.data.push(contents);
                    }
                }
                _ => {}
            }
        }
        (depth == 0).then(|| id.unwrap_or(0..0))
    }
}

/// Appends a part of a key, if that is not long then.
fn take(key: &mut Vec<u8>, part: &[u8], longest: usize) -> Option<()> {
    if key.len() + part.len() > longest {
        return None;
    }
    key.extend_from_slice(part);
    Some(())
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

/// What is between the brackets of the array that begins at `from`.
fn contents_of_array(json: &[u8], from: usize) -> Option<Range<usize>> {
    let begin = space(json, from) + 1;
    if json.get(begin - 1) != Some(&b'[') {
        return None;
    }
    let (mut position, mut depth) = (begin, 1usize);
    loop {
        position += plain(json.get(position..)?);
        match json.get(position)? {
            b'[' => depth += 1,
            b']' if depth == 1 => return Some(begin..position),
            b']' => depth -= 1,
            b'"' => position = end_of_string(json, position + 1)?,
            _ => return None,
        }
        position += 1;
    }
}

/// How many bytes come before the first bracket, quote or backslash.
fn plain(bytes: &[u8]) -> usize {
    let special = |byte: &u8| matches!(byte, b'[' | b']' | b'"' | b'\\');
    // Without a way out in between, blocks are looked at with wide instructions.
    let blocks = bytes
        .chunks_exact(BLOCK)
        .take_while(|block| !block.iter().fold(false, |any, byte| any | special(byte)));
    let skipped = blocks.count() * BLOCK;
    let rest = &bytes[skipped..];
    skipped + rest.iter().position(special).unwrap_or(rest.len())
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
        let outline = outline(json)?;
        let id = json[outline.id.clone()].to_string();
        Some((String::from_utf8(outline.key).unwrap(), id))
    }

    fn outline(json: &str) -> Option<Outline> {
        let mut outline = Outline::default();
        outline.read(b"/t", json.as_bytes())?;
        Some(outline)
    }

    #[test]
    fn the_arrays_of_inputs_are_taken_out() {
        for (json, key, data) in [
            (r#"{"inputs":[{"data":[1,2]}]}"#, r#"{"inputs":[{"data":[]}]}"#, &["1,2"][..]),
            (
                r#"{"inputs":[{"data" : [ [1] ,[2]],"x":[3]},{"data":[]}],"id":"7"}"#,
                r#"{"inputs":[{"data" : [],"x":[3]},{"data":[]}],"id":""}"#,
                &[" [1] ,[2]", ""],
            ),
            (
                r#"{"id":"7","inputs":[{"data":["NaN","]"]}]}"#,
                r#"{"id":"","inputs":[{"data":[]}]}"#,
                &[r#""NaN","]""#],
            ),
            (r#"{"outputs":[{"data":[1]}]}"#, r#"{"outputs":[{"data":[1]}]}"#, &[]),
            (r#"{"inputs":[{"p":{"data":[1]}}]}"#, r#"{"inputs":[{"p":{"data":[1]}}]}"#, &[]),
            (r#"{"inputs":[["data",[1]]]}"#, r#"{"inputs":[["data",[1]]]}"#, &[]),
        ] {
            let outline = outline(json).unwrap();
            assert_eq!(String::from_utf8(outline.key.clone()).unwrap(), format!("/t\n{key}"));
            let found: Vec<_> = outline.data.iter().map(|range| &json[range.clone()]).collect();
            assert_eq!(found, data, "{json}");
        }
        let long = format!(r#"{{"inputs":[{{"data":[{}7]}}],"id":"1"}}"#, "1.5,".repeat(HEAD));
        assert_eq!(outline(&long).unwrap().data[0].len(), 4 * HEAD + 1);
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
            r#"{"inputs":[{"data":7}]}"#,
            r#"{"inputs":[{"data":[7}]}"#,
            r#"{"inputs":[{"data":["\u0061"]}]}"#,
            &long,
            &deep,
        ] {
            assert_eq!(read(json), None, "{json}");
        }
        assert_eq!(Outline::default().read(b"*", b"{}"), None);
    }

    #[test]
    fn strings_are_written_as_python_writes_them() {
        let mut text = Vec::new();
        put_string("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}\u{e4}\u{1f600}/", &mut text);
        assert_eq!(text, br#""a\"\\\n\r\t\b\f\u0001\u007f\u00e4\ud83d\ude00/""#);
    }
}
