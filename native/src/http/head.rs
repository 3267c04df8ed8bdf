//! HTTP/1.1 heads, as far as the front end must understand them: how long a message is, and whether it is an inference
//! request that it might serve.
//!
//! A library reads the syntax; what is common among what it has read is recognised by rules that are stricter than the
//! protocol's. Everything else is *odd*, which is no error: from there on the whole connection is the application's,
//! byte for byte, and the application alone says what it means. So the two can never disagree about where a request
//! ends.

use httparse::{Header, ParserConfig, Status};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Longest head that is looked at.
pub(crate) const HEAD: usize = 16 * 1024;
/// Most headers that are looked at; the application may allow more.
pub(crate) const HEADERS: usize = 128;

/// What types of bodies begin with that a page of any web site may send; they are the application's to refuse.
const UNASKED: [&[u8]; 2] = [b"text/", b"multipart/"];

/// What the application bounds, which therefore is its to refuse.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Longest line.
    pub(crate) line_bytes: usize,
    /// Most headers.
    pub(crate) headers: usize,
    /// Names that requests may be for, in small letters, one that begins with a dot for all that end in it; besides
    /// addresses and names without a dot. None: any.
    pub(crate) hosts: Option<Vec<String>>,
}

/// What a connection begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Not all of it is there.
    Partial,
    /// The application's.
    Odd,
    /// A request whose end is known.
    Request(Request),
}

/// A request whose end is known, and after which the connection goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Bytes of the head.
    pub(crate) head: usize,
    /// Bytes of the body.
    pub(crate) body: usize,
    /// What it asks for, if that is an inference.
    pub(crate) infer: Option<Infer>,
}

/// An inference request: JSON, and binary tensors behind it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Infer {
    /// Where its target lies.
    pub(crate) target: Range<usize>,
    /// Bytes of JSON before the tensors.
    pub(crate) json: usize,
    /// Which answers its client might want compressed.
    pub(crate) compress: Compress,
    /// What its client traces it as part of.
    pub(crate) parent: Option<Box<[u8]>>,
}

/// Which answers may have to be compressed, which is the application's to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compress {
    /// Those with binary tensors: for clients that name exactly one coding.
    pub(crate) binary: bool,
    /// Those that are all JSON.
    pub(crate) text: bool,
}

/// A response whose end is known, and after which the connection goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// Bytes of the head.
    pub(crate) head: usize,
    /// Bytes of the body.
    pub(crate) body: usize,
}

/// The headers that matter, each of which may come once.
#[derive(Default)]
struct Headers<'a> {
    host: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    json_length: Option<&'a [u8]>,
    content_encoding: Option<&'a [u8]>,
    accept_encoding: Option<&'a [u8]>,
    connection: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    fetch_site: Option<&'a [u8]>,
    origin: Option<&'a [u8]>,
    parent: Option<&'a [u8]>,
}

/// Reads the head at the beginning of `bytes`.
pub(crate) fn request(bytes: &[u8], bounds: &Bounds) -> Head {
    let bytes = &bytes[..bytes.len().min(HEAD)];
    let begins_as = |method: &[u8]| method.iter().zip(bytes).all(|(a, b)| a == b);
    if !begins_as(b"GET /") && !begins_as(b"POST /") {
        return Head::Odd;
    }
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(Status::Complete(head)) if has_plain_lines(&bytes[..head], bounds) => {
            common_request(&parsed, head, bounds).map_or(Head::Odd, Head::Request)
        }
        Ok(Status::Partial) if bytes.len() < HEAD => Head::Partial,
        _ => Head::Odd,
    }
}

fn common_request(parsed: &httparse::Request<'_, '_>, head: usize, bounds: &Bounds) -> Option<Request> {
    let (method, target) = (parsed.method?, parsed.path?.as_bytes());
    if parsed.version != Some(1) || !target.is_ascii() || parsed.headers.len() > bounds.headers {
        return None;
    }
    let headers = Headers::read(parsed.headers)?;
    let host = headers.host.filter(|host| !host.is_empty())?; // without one the application refuses it
    let body = headers.content_length.map_or(Some(0), number)?;
    let start = method.len() + 1;
    let is_infer = method == "POST" && is_inference(target) && bounds.is_own(host);
    let infer = is_infer.then(|| headers.infer(start..start + target.len(), body)).flatten();
    Some(Request { head, body, infer })
}

/// Reads the head of what the application answers. None within: it is odd.
pub(crate) fn response(bytes: &[u8]) -> Option<Option<Response>> {
    let bytes = &bytes[..bytes.len().min(HEAD)];
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    match ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, bytes, &mut headers) {
        Ok(Status::Complete(head)) => Some(common_response(&parsed, &bytes[..head])),
        Ok(Status::Partial) if bytes.len() < HEAD => None,
        _ => Some(None),
    }
}

fn common_response(parsed: &httparse::Response<'_, '_>, head: &[u8]) -> Option<Response> {
    let bounds = Bounds { line_bytes: HEAD, headers: HEADERS, hosts: None };
    let has_body = parsed.code.is_some_and(|code| (200..600).contains(&code) && code != 204 && code != 304);
    if !has_body || !head.starts_with(b"HTTP/1.1 ") || !has_plain_lines(head, &bounds) {
        return None;
    }
    let headers = Headers::read(parsed.headers)?;
    Some(Response { head: head.len(), body: number(headers.content_length?)? })
}

impl Bounds {
    /// Whether a host, with a port or without, is surely the server's; the application knows of all.
    fn is_own(&self, host: &[u8]) -> bool {
        let (Some(names), Ok(host)) = (&self.hosts, std::str::from_utf8(host)) else {
            return self.hosts.is_none();
        };
        let with_port =
            host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let name = with_port.map_or(host, |(name, _)| name);
        let undotted = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !name.is_empty() && name.bytes().all(undotted) {
            return true;
        }
        let within = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        within.map_or(name.parse::<Ipv4Addr>().is_ok(), |name| name.parse::<Ipv6Addr>().is_ok())
            || names.iter().any(|own| name == own || (own.starts_with('.') && name.ends_with(own.as_str())))
    }
}

/// Whether all lines of a head end as the protocol has it, and none is too long for the application.
fn has_plain_lines(head: &[u8], bounds: &Bounds) -> bool {
    let plain = |line: &[u8]| line.strip_suffix(b"\r\n").is_some_and(|line| line.len() < bounds.line_bytes);
    head.split_inclusive(|byte| *byte == b'\n').all(plain)
}

impl<'a> Headers<'a> {
    fn read(headers: &[Header<'a>]) -> Option<Self> {
        let mut found = Self::default();
        headers.iter().try_for_each(|header| found.take(header))?;
        let persistent = found.connection.is_none_or(|value| value.eq_ignore_ascii_case(b"keep-alive"));
        persistent.then_some(found)
    }

    /// None: with this header the request is the application's.
    fn take(&mut self, header: &Header<'a>) -> Option<()> {
        let is = |known: &str| header.name.eq_ignore_ascii_case(known);
        let place = match header.name.len() {
            _ if !header.value.is_ascii() => return None,
            4 if is("host") => &mut self.host,
            14 if is("content-length") => &mut self.content_length,
            31 if is("inference-header-content-length") => &mut self.json_length,
            16 if is("content-encoding") => &mut self.content_encoding,
            15 if is("accept-encoding") => &mut self.accept_encoding,
            10 if is("connection") => &mut self.connection,
            12 if is("content-type") => &mut self.content_type,
            14 if is("sec-fetch-site") => &mut self.fetch_site,
            6 if is("origin") => &mut self.origin,
            11 if is("traceparent") => &mut self.parent,
            17 if is("transfer-encoding") => return None,
            6 if is("expect") => return None,
            7 if is("upgrade") => return None,
            _ => return Some(()),
        };
        place.replace(header.value).is_none().then_some(())
    }

    fn infer(&self, target: Range<usize>, body: usize) -> Option<Infer> {
        let from_page = self.fetch_site.is_some() || self.origin.is_some();
        let begins_with = |kind: &[u8], start: &[u8]| {
            kind.get(..start.len()).is_some_and(|begun| begun.eq_ignore_ascii_case(start))
        };
        let unasked = |kind: &[u8]| UNASKED.iter().any(|start| begins_with(kind, start));
        if self.content_encoding.is_some() || from_page || self.content_type.is_some_and(unasked) {
            return None;
        }
        let json = self.json_length.map_or(Some(body), number).filter(|json| (1..=body).contains(json))?;
        let compress = self.accept_encoding.map(may_compress).unwrap_or_default();
        Some(Infer { target, json, compress, parent: self.parent.map(Into::into) })
    }
}

/// Weights are not looked at.
fn may_compress(accepted: &[u8]) -> Compress {
    let codings =
        || accepted.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|one| !one.is_empty());
    let squeezes =
        |coding: &[u8]| coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"deflate");
    let text = accepted.contains(&b';') || codings().any(squeezes);
    Compress { binary: accepted.contains(&b';') || (text && codings().nth(1).is_none()), text }
}

/// Whether a target is that of an inference.
pub(crate) fn is_inference(target: &[u8]) -> bool {
    target.starts_with(b"/v2/models/") && target.ends_with(b"/infer") && !target.contains(&b'?')
}

fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { line_bytes: 200, headers: 8, hosts: None };

    /// Of a request with a host.
    fn hosted(lines: &[&str]) -> Head {
        read(&[&lines[..1], &["Host: x"], &lines[1..]].concat())
    }

    fn read(lines: &[&str]) -> Head {
        request((lines.join("\r\n") + "\r\n\r\n").as_bytes(), &BOUNDS)
    }

    fn infer(lines: &[&str]) -> Option<Infer> {
        let all = [&["POST /v2/models/m/infer HTTP/1.1", "Host: x", "Content-Length: 30"], lines].concat();
        match read(&all) {
            Head::Request(request) => request.infer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_end_of_a_request_is_known() {
        for (lines, body) in [
            (&["GET /v2 HTTP/1.1", "Host: x"][..], 0),
            (&["GET / HTTP/1.1", "hOST:x:80"], 0),
            (
                &[
                    "POST /v2/repository/index HTTP/1.1",
                    "Host: x",
                    "content-LENGTH:  12 ",
                    "Connection: Keep-Alive",
                ],
                12,
            ),
        ] {
            let Head::Request(request) = read(lines) else { panic!("{lines:?}") };
            assert_eq!((request.body, request.infer), (body, None));
            assert_eq!(request.head, lines.join("\r\n").len() + 4);
        }
    }

    #[test]
    fn an_inference_is_seen() {
        let target = 5..5 + "/v2/models/m/infer".len();
        let seen = |json, binary, text| {
            let compress = Compress { binary, text };
            Some(Infer { target: target.clone(), json, compress, parent: None })
        };
        let length = "Inference-Header-Content-Length: 20";
        assert_eq!(infer(&[length]), seen(20, false, false));
        assert_eq!(infer(&["X: y"]), seen(30, false, false), "without that header all of it is JSON");
        for (accepted, binary, text) in [
            ("gzip, deflate", false, true),
            ("br,GZIP", false, true),
            ("identity", false, false),
            ("", false, false),
            ("GZIP", true, true),
            ("deflate,", true, true),
            ("gzip;q=0", true, true),
        ] {
            let seen = seen(20, binary, text);
            assert_eq!(infer(&[length, &format!("Accept-Encoding: {accepted}")]), seen, "{accepted}");
        }
        for other in ["Inference-Header-Content-Length: 31", "Inference-Header-Content-Length: 0"] {
            assert_eq!(infer(&[other]), None, "{other}");
        }
        assert_eq!(infer(&[length, "Content-Encoding: gzip"]), None);
        for kind in ["application/JSON; charset=utf-8", "application/octet-stream", "", "text"] {
            assert!(infer(&[&format!("Content-Type: {kind}")]).is_some(), "{kind}");
        }
        for line in [
            "Content-Type: Text/plain",
            "Content-Type: multipart/x",
            "Sec-Fetch-Site: none",
            "Origin: http://x",
        ] {
            assert_eq!(infer(&[line]), None, "{line}");
        }
        let traced = infer(&[length, "Traceparent: 00-x"]).unwrap();
        assert_eq!(traced.parent.as_deref(), Some(&b"00-x"[..]));
    }

    #[test]
    fn a_host_that_may_not_be_the_servers_is_the_applications() {
        let names = Some(vec![".local".to_string(), "box.example".to_string()]);
        let bounds = Bounds { hosts: names, ..BOUNDS };
        let own = |host: &str| bounds.is_own(host.as_bytes());
        for host in ["x", "x:80", "10.0.0.1:80", "[::1]", "[::1]:80", "a.local:80", "box.example"] {
            assert!(own(host), "{host}");
        }
        for host in [
            "x.example",
            "local.example:80",
            "box.example:x",
            ":80",
            "::1:",
            "a:b:80",
            "x/y",
            "[x]",
            "10.0.0.1.example",
        ] {
            assert!(!own(host), "{host}");
        }
        let head =
            |host| format!("POST /v2/models/m/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\n");
        for (host, served) in [("x", true), ("x.example", false)] {
            let Head::Request(read) = request(head(host).as_bytes(), &bounds) else { panic!("{host}") };
            assert_eq!(read.infer.is_some(), served, "{host}");
        }
    }

    #[test]
    fn what_is_not_common_is_odd() {
        for lines in [
            &["PUT /v2 HTTP/1.1"][..],
            &["HEAD /v2 HTTP/1.1"],
            &["GET /v2 HTTP/1.0"],
            &["GET /v2  HTTP/1.1"],
            &["GET v2 HTTP/1.1"],
            &["GET /\u{e4} HTTP/1.1"],
            &["GET /v2 HTTP/1.1", "Host : x"],
            &["GET /v2 HTTP/1.1", " folded: x"],
            &["GET /v2 HTTP/1.1", "X: \u{1}"],
            &["GET /v2 HTTP/1.1", "X: a\nY: b"],
            &["GET /v2 HTTP/1.1", "broken"],
            &["GET /v2 HTTP/1.1", "Connection: close"],
            &["GET /v2 HTTP/1.1", "Connection: upgrade"],
            &["GET /v2 HTTP/1.1", "Upgrade: h2c"],
            &["POST /v2 HTTP/1.1", "Transfer-Encoding: chunked"],
            &["POST /v2 HTTP/1.1", "Expect: 100-continue", "Content-Length: 1"],
            &["POST /v2 HTTP/1.1", "Content-Length: 1", "Content-Length: 1"],
            &["POST /v2 HTTP/1.1", "Content-Length: -1"],
            &["POST /v2 HTTP/1.1", "Content-Length: +1"],
            &["POST /v2 HTTP/1.1", "Content-Length: 1, 1"],
            &["POST /v2 HTTP/1.1", "Content-Length:"],
            &["POST /v2 HTTP/1.1", "Content-Length: 1234567890123456"],
            &["GET /v2 HTTP/1.1", "1:1", "2:1", "3:1", "4:1", "5:1", "6:1", "7:1", "8:1", "9:1"],
            &["", "GET /v2 HTTP/1.1"],
        ] {
            assert_eq!(hosted(lines), Head::Odd, "{lines:?}");
        }
        let long = format!("X: {}", "x".repeat(200));
        assert_eq!(hosted(&["GET /v2 HTTP/1.1", &long]), Head::Odd);
        assert_eq!(request(&[b'x'; 10], &BOUNDS), Head::Odd);
    }

    #[test]
    fn a_request_without_exactly_one_host_is_odd() {
        for first in ["GET /v2 HTTP/1.1", "POST /v2/models/m/infer HTTP/1.1"] {
            assert!(matches!(read(&[first, "X: y", "host: x"]), Head::Request(_)), "{first}");
            for hosts in [
                &[][..],
                &["Host:"],
                &["Host: \t"],
                &["Host: x", "Host: x"],
                &["Host: x", "X: y", "hOST: y"],
                &["Host: x", "Host:"],
                &["Host:", "Host: x"],
                &["X-Host: x"],
                &["Hosts: x"],
            ] {
                assert_eq!(read(&[&[first], hosts].concat()), Head::Odd, "{first} {hosts:?}");
            }
        }
    }

    #[test]
    fn a_head_that_has_not_come_is_waited_for_but_not_for_ever() {
        let whole = b"POST /v2 HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(request(&whole[..length], &BOUNDS), Head::Partial, "{length}");
        }
        assert_eq!(request(b"GE", &BOUNDS), Head::Partial);
        assert_eq!(request(b"GET /v2 HTTP/1.1\n\n", &BOUNDS), Head::Odd);
        let endless = [b"GET /".as_slice(), &[b'a'; HEAD]].concat();
        assert_eq!(request(&endless, &BOUNDS), Head::Odd);
    }

    #[test]
    fn the_end_of_a_response_is_known_or_it_is_odd() {
        let read = |text: &str| response(text.as_bytes());
        let good = "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nServer: x\r\n\r\n";
        assert_eq!(read(good), Some(Some(Response { head: good.len(), body: 5 })));
        assert_eq!(read(&good[..20]), None);
        for odd in [
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
        ] {
            assert_eq!(read(odd), Some(None), "{odd}");
        }
    }
}
