//! The rules of HTTP heads: what is taken for a common request or response is one by a second, slow reading, with the same
//! ends; what comes behind a head does not change it; and a head that is cut short is waited for.

use crate::http::head::{Bounds, HEAD, HEADERS, Head, Request, Response, is_inference, request, response};

const BOUNDS: Bounds = Bounds { line_bytes: 300, headers: 12, hosts: None };
/// Headers that may come once, and those with which a message is not common.
const ONCE: [&str; 10] = [
    "host",
    "content-length",
    "inference-header-content-length",
    "content-encoding",
    "accept-encoding",
    "connection",
    "content-type",
    "sec-fetch-site",
    "origin",
    "traceparent",
];
const NEVER: [&str; 3] = ["transfer-encoding", "expect", "upgrade"];

/// Panics if a rule is broken: the first byte says which of the two is read.
pub fn check(input: &[u8]) {
    match input.split_first() {
        Some((kind, bytes)) if kind % 2 == 0 => check_request(bytes),
        Some((_, bytes)) => check_response(bytes),
        None => {}
    }
}

fn check_request(bytes: &[u8]) {
    let expected = slow_request(bytes);
    match request(bytes, &BOUNDS) {
        Head::Request(read) => {
            let (head, body) = expected.expect("a common request");
            assert_eq!((read.head, read.body), (head, body));
            check_infer(&read, bytes);
            let longer = [&bytes[..head], b"\r\n\r\nGET / HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(request(&longer, &BOUNDS), Head::Request(read), "what follows");
            for cut in [1, head / 2, head - 1] {
                assert_eq!(request(&bytes[..cut], &BOUNDS), Head::Partial, "cut at {cut}");
            }
        }
        Head::Partial => assert!(expected.is_none() && bytes.len() < HEAD),
        Head::Odd => assert_eq!(expected, None),
    }
}

fn check_infer(read: &Request, bytes: &[u8]) {
    let Some(infer) = &read.infer else { return };
    assert!(bytes.starts_with(b"POST ") && is_inference(&bytes[infer.target.clone()]));
    assert!((1..=read.body).contains(&infer.json) && (infer.compress.text || !infer.compress.binary));
}

fn check_response(bytes: &[u8]) {
    let read = response(bytes);
    let expected = slow_response(bytes);
    match read {
        Some(Some(Response { head, body })) => {
            assert_eq!(expected, Some((head, body)));
            assert_eq!(response(&[&bytes[..head], b"x\r\n\r\n"].concat()), read, "what follows");
            assert_eq!(response(&bytes[..head - 1]), None, "cut short");
        }
        _ => assert_eq!(expected, None),
    }
}

/// The lines of a head, and how long it is.
fn lines(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let bytes = &bytes[..bytes.len().min(HEAD)];
    let end = (0..bytes.len()).find(|end| bytes[*end..].starts_with(b"\r\n\r\n"))? + 4;
    let mut lines = Vec::new();
    let mut rest = &bytes[..end - 2];
    while !rest.is_empty() {
        let (length, _) = rest.iter().enumerate().find(|(_, byte)| **byte == b'\n')?;
        lines.push(rest[..length].strip_suffix(b"\r")?);
        rest = &rest[length + 1..];
    }
    Some((lines, end))
}

/// The headers of a common message by name in lower case.
fn headers(lines: &[&[u8]], bounds: &Bounds) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    for line in lines {
        let text = std::str::from_utf8(line).ok().filter(|text| text.is_ascii())?;
        let (name, value) = text.split_once(':')?;
        let token = |unit: char| unit.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(unit);
        let value = value.trim_matches([' ', '\t']);
        let printable = value.chars().all(|unit| unit == '\t' || (' '..='~').contains(&unit));
        if name.is_empty() || !name.chars().all(token) || !printable || line.len() >= bounds.line_bytes {
            return None;
        }
        found.push((name.to_ascii_lowercase(), value.to_string()));
    }
    let count = |wanted: &str| found.iter().filter(|(name, _)| name == wanted).count();
    let once = ONCE.iter().all(|name| count(name) <= 1) && NEVER.iter().all(|name| count(name) == 0);
    let persistent =
        found.iter().all(|(name, value)| name != "connection" || value.eq_ignore_ascii_case("keep-alive"));
    (once && persistent && found.len() <= bounds.headers).then_some(found)
}

fn value<'a>(found: &'a [(String, String)], wanted: &str) -> Option<&'a str> {
    found.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
}

fn number(text: &str) -> Option<usize> {
    let digits = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn slow_request(bytes: &[u8]) -> Option<(usize, usize)> {
    let (lines, end) = lines(bytes)?;
    let (first, rest) = lines.split_first()?;
    let text = std::str::from_utf8(first).ok()?;
    let target = text.strip_prefix("GET ").or(text.strip_prefix("POST "))?.strip_suffix(" HTTP/1.1")?;
    let visible = target.starts_with('/') && target.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    let found = headers(rest, &BOUNDS).filter(|_| visible && first.len() < BOUNDS.line_bytes)?;
    value(&found, "host").filter(|host| !host.is_empty())?;
    let body = value(&found, "content-length").map_or(Some(0), number)?;
    Some((end, body))
}

fn slow_response(bytes: &[u8]) -> Option<(usize, usize)> {
    let (lines, end) = lines(bytes)?;
    let (first, rest) = lines.split_first()?;
    let (status, reason) = first.strip_prefix(b"HTTP/1.1 ")?.split_at_checked(3)?;
    let known = b"2345".contains(&status[0])
        && status.iter().all(u8::is_ascii_digit)
        && status != b"204"
        && status != b"304"
        && reason.first().is_none_or(|byte| *byte == b' ')
        && reason.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..));
    let found =
        headers(rest, &Bounds { line_bytes: HEAD, headers: HEADERS, hosts: None }).filter(|_| known)?;
    Some((end, number(value(&found, "content-length")?)?))
}
