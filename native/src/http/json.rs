//! The JSON of an inference request, as far as it must be understood to recognise it: where the value of its top-level
//! `"id"` lies, and the arrays that are `"data"` of its inputs.
//!
//! This reads no JSON. What is left without these parts is only ever compared with JSON that Python has read and
//! checked, so it is enough that what stands at the place of the id is a string of plain characters, whatever these
//! are, and at the place of an array something between brackets, which `templates/array.rs` reads by the letter.

use crate::templates::array::Step;
use crate::templates::scan::{HEAD, TENSORS};
use std::ops::Range;

/// Longest id that is taken; longer ones are the application's.
pub(crate) const ID: usize = 64;

const NAME: &[u8] = b"id";
const INPUTS: &[u8] = b"inputs";
const DATA: &[u8] = b"data";
/// How deep an input's members lie.
const MEMBER: usize = 3;
/// Bytes that are looked at together where nothing but numbers is expected.
const BLOCK: usize = 32;
/// How much of an array a step looks at, and some: brackets one by one cost 5 ns each.
const STEP: usize = 32 * 1024;

/// A request taken apart; used again for the next one.
#[derive(Default)]
pub(crate) struct Outline {
    /// Its target and its JSON without the value of the id, what is in the arrays, and white space that means nothing:
    /// by it requests are recognised.
    ///
    /// Keys begin with a slash, with which no head of a gRPC message can begin, so both can lie in one table.
    pub(crate) key: Vec<u8>,
    /// Where the id lies in the JSON; empty when there is none.
    pub(crate) id: Range<usize>,
    /// Where the contents of the arrays lie in the JSON, in the order of the inputs that have one.
    pub(crate) data: Vec<Range<usize>>,
    walk: Walk,
}

/// How far a request was looked at.
#[derive(Default)]
struct Walk {
    position: usize,
    /// How long the key may become.
    longest: usize,
    /// White space came last.
    gap: bool,
    /// How much of that lies in arrays.
    inside: usize,
    depth: usize,
    /// The member at the top is the inputs.
    inputs: bool,
    id: Option<Range<usize>>,
    /// Where the array begins that is being looked at, and how deep it is open.
    array: Option<(usize, usize)>,
}

impl Outline {
    /// Takes a request apart, at one go. None when something is uncommon, see `step`.
    pub(crate) fn read(&mut self, target: &[u8], json: &[u8]) -> Option<()> {
        self.begin(target, json)?;
        loop {
            match self.step(json) {
                Step::More => {}
                Step::Whole => return Some(()),
                Step::Strange => return None,
            }
        }
    }

    /// Begins to take a request apart; None as with `step`.
    pub(crate) fn begin(&mut self, target: &[u8], json: &[u8]) -> Option<()> {
        self.key.clear();
        self.data.clear();
        let longest = target.len() + 1 + HEAD;
        self.walk = Walk { position: space(json, 0), longest, ..Walk::default() };
        if target.len() > HEAD || !target.starts_with(b"/") || json.get(self.walk.position) != Some(&b'{') {
            return None;
        }
        self.key.extend_from_slice(target);
        self.key.push(b'\n');
        Some(())
    }

    /// Goes on for a moment with the request that was begun. Strange is what is uncommon: an escape anywhere, two ids,
    /// an id that is not a string of printable ASCII, data that is no array, a key that is long. What is held then
    /// means nothing.
    pub(crate) fn step(&mut self, json: &[u8]) -> Step {
        match self.find(json) {
            Some(false) => Step::More,
            Some(true) => {
                self.id = self.walk.id.take().unwrap_or(0..0);
                Step::Whole
            }
            None => Step::Strange,
        }
    }

    /// Appends to the key, if that is not long then. White space counts only where it keeps two words apart, for which
    /// there is no place in JSON: without it, what is no JSON could look like some that is.
    fn keep(&mut self, part: &[u8]) -> Option<()> {
        let apart = |byte: Option<&u8>| byte.is_some_and(|byte| b"{}[],:\"".contains(byte));
        if std::mem::take(&mut self.walk.gap) && !apart(self.key.last()) && !apart(part.first()) {
            self.key.push(b' ');
        }
        if self.key.len() + part.len() > self.walk.longest {
            return None;
        }
        self.key.extend_from_slice(part);
        Some(())
    }

    /// Makes the key, and notes where the arrays and the id lie. Whether that was all.
    fn find(&mut self, json: &[u8]) -> Option<bool> {
        let pause = self.walk.position.saturating_add(STEP);
        while self.walk.position < pause {
            if self.walk.array.is_some() {
                self.walk_array(json, pause)?;
                continue;
            }
            let at = self.walk.position;
            let Some(byte) = json.get(at) else {
                return (self.walk.depth == 0).then_some(true);
            };
            self.walk.position += 1;
            if self.walk.position - self.walk.inside > HEAD + ID {
                return None; // more than a key may hold, which needs no reading to its end
            }
            match byte {
                b'{' | b'[' => self.walk.depth += 1,
                b'}' | b']' => self.walk.depth = self.walk.depth.checked_sub(1)?,
                b'\\' => return None,
                _ => {}
            }
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.walk.gap = true,
                b'"' => self.walk_string(json)?,
                _ => self.keep(&json[at..=at])?,
            }
        }
        Some(false)
    }

    /// Looks at the string that begins here, and what it names if it is a key.
    fn walk_string(&mut self, json: &[u8]) -> Option<()> {
        let end = end_of_string(json, self.walk.position)?;
        let name = &json[self.walk.position..end];
        self.keep(&json[self.walk.position - 1..=end])?;
        let walk = &mut self.walk;
        walk.position = end + 1;
        let colon = space(json, walk.position);
        if json.get(colon) != Some(&b':') {
            return Some(());
        }
        if walk.depth == 1 {
            walk.inputs = name == INPUTS;
        }
        if walk.depth == 1 && name == NAME {
            let value = value_of_id(json, colon + 1)?;
            walk.position = value.end + 1;
            if walk.id.replace(value).is_some() {
                return None;
            }
            return self.keep(b":\"\"");
        } else if walk.depth == MEMBER && walk.inputs && name == DATA {
            let bracket = space(json, colon + 1);
            if json.get(bracket) != Some(&b'[') || self.data.len() == TENSORS {
                return None;
            }
            walk.position = bracket + 1;
            walk.array = Some((walk.position, 1));
            return self.keep(b":[");
        }
        Some(())
    }

    /// Goes on in an array, to its end or for a moment.
    fn walk_array(&mut self, json: &[u8], pause: usize) -> Option<()> {
        let (begin, mut depth) = self.walk.array.take()?;
        let (mut position, stretch) = (self.walk.position, json.len().min(pause));
        while position < pause {
            position += plain(json.get(position..stretch)?);
            if position == pause {
                break;
            }
            match json.get(position)? {
                b'[' => depth += 1,
                b']' => depth -= 1,
                b'"' => position = end_of_string(json, position + 1)?,
                _ => return None,
            }
            if depth == 0 {
                self.walk.inside += position - begin;
                self.data.push(begin..position);
                self.walk.position = position + 1;
                return self.keep(b"]");
            }
            position += 1;
        }
        (self.walk.position, self.walk.array) = (position, Some((begin, depth)));
        Some(())
    }
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

/// Where the string that begins at `from` ends, if there is no escape in it and it is no longer than a key.
fn end_of_string(json: &[u8], from: usize) -> Option<usize> {
    let length = json.get(from..)?.iter().take(HEAD).position(|byte| matches!(byte, b'"' | b'\\'))?;
    (json[from + length] == b'"').then_some(from + length)
}

/// Where the white space that begins at `from` ends, or is longer than a key.
fn space(json: &[u8], from: usize) -> usize {
    let rest = json.get(from..).unwrap_or_default();
    from + rest.iter().take(HEAD).take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Appends a string to JSON text as Python's `json` does: in ASCII.
pub(crate) fn put_string(text: &str, into: &mut Vec<u8>) {
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
                r#"{"inputs":[{"data":[],"x":[3]},{"data":[]}],"id":""}"#,
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
            (r#" { "inputs" : [] , "id" : "a b~" } "#, r#"{"inputs":[],"id":""}"#, "a b~"),
            (r#"{"inputs":[{"id":"no"}],"x":"id"}"#, r#"{"inputs":[{"id":"no"}],"x":"id"}"#, ""),
            (r#"{"id":""}"#, r#"{"id":""}"#, ""),
            (r#"{"x":"{[","id":"1"}"#, r#"{"x":"{[","id":""}"#, "1"),
            ("{\"n\":\"\u{e4}\",\"id\":\"1\"}", "{\"n\":\"\u{e4}\",\"id\":\"\"}", "1"),
        ] {
            assert_eq!(read(json), Some((format!("/t\n{rest}"), id.to_string())), "{json}");
        }
    }

    #[test]
    fn white_space_makes_no_other_key_but_between_words() {
        for (json, key) in [
            ("\t{ \"a b\" :\r\n [ 1 , true ] , \"c\": -1\n}\n", r#"{"a b":[1,true],"c":-1}"#),
            ("{\"inputs\": [ { \"data\" :\n[ 1 ] } ] }", r#"{"inputs":[{"data":[]}]}"#),
            (r#"{"x":[1 2]}"#, r#"{"x":[1 2]}"#),
            ("{\"x\":[1 \n\t2]}", r#"{"x":[1 2]}"#),
            (r#"{"x":tr ue}"#, r#"{"x":tr ue}"#),
            ("{\"x\":1\u{b}}", "{\"x\":1\u{b}}"),
        ] {
            assert_eq!(read(json).unwrap().0, format!("/t\n{key}"), "{json}");
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
    fn no_step_is_long() {
        let whole = |unit: &str| format!(r#"{{"inputs":[{{"data":[{}1]}}]}}"#, unit.repeat(9 * STEP));
        let data = |unit: &str| outline(&whole(unit)).unwrap().data[0].len();
        for unit in ["1", "[],", "\"\",", "\"NaN\","] {
            let (json, mut outline) = (whole(unit), Outline::default());
            outline.begin(b"/t", json.as_bytes()).unwrap();
            loop {
                let before = outline.walk.position;
                let step = outline.step(json.as_bytes());
                assert!(outline.walk.position - before <= STEP + 100, "{unit}");
                if step != Step::More {
                    assert_eq!(step, Step::Whole, "{unit}");
                    break;
                }
            }
            assert_eq!(
                (outline.data[0].len(), data(unit)),
                (9 * STEP * unit.len() + 1, 9 * STEP * unit.len() + 1)
            );
        }
        // What can be no key is not read to its end.
        for json in [
            " ".repeat(9 * STEP),
            format!("{{\"x\":{}", "1".repeat(9 * STEP)),
            format!("{{\"{}", "x".repeat(9 * STEP)),
        ] {
            let mut outline = Outline::default();
            assert!(outline.read(b"/t", json.as_bytes()).is_none() && outline.walk.position <= HEAD + ID + 1);
        }
    }

    #[test]
    fn strings_are_written_as_python_writes_them() {
        let mut text = Vec::new();
        put_string("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}\u{e4}\u{1f600}/", &mut text);
        assert_eq!(text, br#""a\"\\\n\r\t\b\f\u0001\u007f\u00e4\ud83d\ude00/""#);
    }
}
