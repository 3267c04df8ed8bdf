//! HTTP/2 on the wire: frames out, frames in, and the header blocks of a gRPC call.

/// Frame types.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags.
pub mod flag {
    #![allow(missing_docs)]
    pub const END_STREAM: u8 = 0x1;
    pub const ACK: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Settings.
pub mod setting {
    #![allow(missing_docs)]
    pub const TABLE: u16 = 1;
    pub const PUSH: u16 = 2;
    pub const STREAMS: u16 = 3;
    pub const WINDOW: u16 = 4;
    pub const FRAME: u16 = 5;
}

/// What a connection begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's header.
pub const HEADER: usize = 9;
/// What both sides may assume of the header table until told otherwise.
pub const TABLE_USUAL: u32 = 4096;

/// The header of a frame.
pub fn header(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEADER] {
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    let [a, b, c, d] = stream.to_be_bytes();
    [high, middle, low, kind, flags, a, b, c, d]
}

/// A frame that has come, its body where it was read.
pub struct Frame<'a> {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream.
    pub stream: u32,
    /// What it carries.
    pub body: &'a [u8],
}

/// The first frame in `bytes` and its whole length; None when it has not come entirely.
pub fn next(bytes: &[u8]) -> Option<(Frame<'_>, usize)> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
    let [high, middle, low, kind, flags, stream @ ..] = *head;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    let body = rest.get(..length)?;
    let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
    Some((Frame { kind, flags, stream, body }, HEADER + length))
}

/// A four-byte number in front.
pub fn number(body: &[u8]) -> Option<u32> {
    body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// What is left without padding; None when the padding is longer than the frame.
pub fn unpadded<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    if frame.flags & flag::PADDED == 0 {
        return Some(frame.body);
    }
    let (padding, rest) = frame.body.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}

/// The header blocks of all calls of one connection. As other clients do, the first block puts its fields into the
/// server's header table, where the server keeps one, and later blocks name them by their places there.
pub struct Blocks {
    first: Option<Vec<u8>>,
    later: Vec<u8>,
}

const POST_HTTP: &[u8] = &[0x83, 0x86];
const POST_HTTPS: &[u8] = &[0x83, 0x87];
/// Places in the static table.
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
const USER_AGENT: u8 = 58;
/// The first place after the static table: the field that was put in last.
const NEWEST: u8 = 62;
const FIELDS: u8 = 5;

fn string(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127, "a longer length would need more bytes");
    block.push(text.len() as u8);
    block.extend(text.as_bytes());
}

/// The fields, each put into the table (or, without one, not).
fn fields(start: &[u8], method: &str, authority: &str, indexed: bool) -> Vec<u8> {
    let mut block = start.to_vec();
    let mut name = |place: u8, name: &str, value: &str| {
        match (indexed, place) {
            (true, place) => block.push(0x40 | place),
            (false, place @ 0..15) => block.push(place),
            (false, place) => block.extend([0x0f, place - 15]),
        }
        if place == 0 {
            string(&mut block, name);
        }
        string(&mut block, value);
    };
    name(PATH, "", method);
    name(AUTHORITY, "", authority);
    name(0, "te", "trailers");
    name(CONTENT_TYPE, "", "application/grpc");
    name(USER_AGENT, "", "grpc-load/1.0");
    block
}

impl Blocks {
    /// For a server that keeps a header table of `table` bytes.
    pub fn new(method: &str, authority: &str, secure: bool, table: u32) -> Self {
        let start = if secure { POST_HTTPS } else { POST_HTTP };
        if table < TABLE_USUAL {
            let mut later = vec![0x20]; // the table is not used: its size is nothing
            later.extend(fields(start, method, authority, false));
            return Self { first: None, later };
        }
        let places = (NEWEST..NEWEST + FIELDS).rev().map(|place| 0x80 | place);
        let later = start.iter().copied().chain(places).collect();
        Self { first: Some(fields(start, method, authority, true)), later }
    }

    /// Adds the block of the next call; `timeout_us` 0: none.
    pub fn write(&mut self, timeout_us: u64, block: &mut Vec<u8>) {
        match self.first.take() {
            Some(first) => block.extend(first),
            None => block.extend(&self.later),
        }
        if timeout_us > 0 {
            block.push(0);
            string(block, "grpc-timeout");
            string(block, &format!("{timeout_us}u"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut fluke_hpack::Decoder<'_>, blocks: &mut Blocks, timeout_us: u64) -> Vec<String> {
        let mut block = Vec::new();
        blocks.write(timeout_us, &mut block);
        let fields = decoder.decode(&block).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect()
    }

    #[test]
    fn later_blocks_mean_what_the_first_said() {
        for (table, secure) in [(TABLE_USUAL, false), (0, false), (100, true)] {
            let mut blocks = Blocks::new("/a.B/C", "1.2.3.4:5", secure, table);
            let mut decoder = fluke_hpack::Decoder::new();
            let first = decoded(&mut decoder, &mut blocks, 0);
            assert!(first.contains(&":path=/a.B/C".into()) && first.contains(&"te=trailers".into()));
            assert!(first.contains(&format!(":scheme={}", if secure { "https" } else { "http" })));
            let later = decoded(&mut decoder, &mut blocks, 1500);
            assert_eq!(later[..first.len()], first);
            assert_eq!(later[first.len()..], ["grpc-timeout=1500u"]);
        }
    }

    #[test]
    fn frames_are_taken_off_when_they_are_whole() {
        let mut bytes = header(3, kind::DATA, flag::END_STREAM, 7).to_vec();
        bytes.extend(b"ab");
        assert!(next(&bytes).is_none());
        bytes.extend(b"cd");
        let (frame, length) = next(&bytes).unwrap();
        assert_eq!((frame.kind, frame.stream, frame.body, length), (kind::DATA, 7, &b"abc"[..], 12));
    }

    #[test]
    fn padding_is_no_data() {
        let frame = |body| Frame { kind: kind::DATA, flags: flag::PADDED, stream: 1, body };
        assert_eq!(unpadded(&frame(b"\x02ab\0\0")), Some(&b"ab"[..]));
        assert_eq!(unpadded(&frame(b"\x05ab")), None);
    }
}
