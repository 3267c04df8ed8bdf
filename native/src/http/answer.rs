//! HTTP answers that the front end makes by itself, in the form of the application's.

use crate::fastpath::serving::Refused;
use crate::http::json::put_string;
use crate::templates::template::Template;
use bytes::{BufMut, BytesMut};
use httpdate::fmt_http_date;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// More than the head of any answer takes.
pub(crate) const HEAD: usize = 320;

/// What stands around the id in an answer, between what the template has.
const ID: (&[u8], &[u8]) = (b"\"id\":\"", b"\",");

/// What the application says of itself, and the date, made anew every second.
pub(crate) struct Signature {
    server: String,
    second: u64,
    text: String,
}

impl Signature {
    /// For a server of that name.
    pub(crate) fn new(server: String) -> Self {
        Self { server, second: u64::MAX, text: String::new() }
    }

    /// The last headers of an answer, and the empty line.
    pub(crate) fn now(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second {
            self.second = second;
            self.text = format!("Date: {}\r\nServer: {}\r\n\r\n", fmt_http_date(now), self.server);
        }
        &self.text
    }
}

/// More than the body of an answer can be.
pub(crate) fn longest(template: &Template, id: &[u8]) -> usize {
    let described = template.opening.len() + ID.0.len() + id.len() + ID.1.len() + template.described.len();
    let outputs = template.outputs.iter().map(|output| {
        let size = output.place.size;
        output.prefix.len() + output.text.map_or(size, |number| size / number.size() * number.longest_text())
    });
    described + template.closing.len() + outputs.sum::<usize>()
}

/// Writes the JSON of an answer, up to the first output in it if there is one.
pub(crate) fn put_opening(template: &Template, id: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&template.opening);
    if !id.is_empty() {
        into.extend_from_slice(ID.0);
        into.extend_from_slice(id); // of characters that need no escape
        into.extend_from_slice(ID.1);
    }
    into.extend_from_slice(&template.described);
}

/// The beginning of an answer with this JSON, with room for its binary tensors, which follow. The JSON is not kept
/// beside the answer, which its client may take long to take.
pub(crate) fn begin(template: &Template, json: Vec<u8>, signature: &mut Signature) -> BytesMut {
    let body = json.len() + template.raw_outputs().map(|place| place.size).sum::<usize>();
    let mut answer = BytesMut::with_capacity(HEAD + body);
    // Writing to memory cannot fail.
    let _ = if template.answers_text() {
        write!(answer, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    } else {
        write!(
            answer,
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: {}\r\n",
            json.len()
        )
    };
    let _ = write!(answer, "Content-Length: {body}\r\n{}", signature.now());
    answer.put_slice(&json);
    answer
}

/// The answer to a request that the fast path refuses, and when it would be worth trying again.
pub(crate) fn refused(refused: &Refused, signature: &mut Signature) -> BytesMut {
    let (status, headers, text) = match refused {
        Refused::Expired(text) => ("504 Gateway Timeout", String::new(), text),
        Refused::Late(text, after_ns) | Refused::OverQuota(text, after_ns) => {
            let milliseconds = after_ns.div_ceil(1_000_000).max(1);
            let seconds = milliseconds.div_ceil(1000);
            let headers = format!("Retry-After: {seconds}\r\nRetry-After-Ms: {milliseconds}\r\n");
            ("429 Too Many Requests", headers, text)
        }
    };
    let mut body = b"{\"error\": ".to_vec();
    put_string(text, &mut body);
    body.push(b'}');
    let mut answer = BytesMut::with_capacity(HEAD + body.len());
    let _ = write!(
        answer,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nContent-Type: application/json\r\n{}",
        body.len(),
        signature.now()
    );
    answer.put_slice(&body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_is_told_when_to_try_again() {
        let mut signature = Signature::new("s".into());
        let text = String::from_utf8(
            refused(&Refused::Late("too \"late\"".into(), 1_500_000_000), &mut signature).to_vec(),
        )
        .unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"error": "too \"late\""}"#);
        assert!(
            head.starts_with("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nRetry-After-Ms: 1500\r\n")
        );
        assert!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", body.len()))
                && head.ends_with("\r\nServer: s")
        );
        assert!(head.len() < HEAD);
    }
}
