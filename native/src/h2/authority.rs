//! Makes `:authority` readable where clients put the path of a Unix socket there.
//!
//! gRPC's C core (and so Python, C++, Ruby) names a Unix socket by its percent-encoded path. The HTTP library takes a
//! percent sign in an authority for malformed and resets the call. Nothing here looks at an authority, so each `%` in
//! it becomes `-`, in place, as the bytes go by: header blocks are walked field by field (RFC 7541), without being
//! decoded, however they are cut. Values in Huffman code are left alone; the C core does not use it.
//!
//! Over TCP such a path comes only from behind something that carries a Unix socket there, and a client names one
//! authority for all its calls: whose first one needs no change is not walked any more.

use crate::h2::frames::PREFACE;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
const FRAME_HEADER: usize = 9;
/// Index of `:authority` in the static table.
const AUTHORITY: u64 = 1;

const NAME: &[u8] = b":authority";

/// What the next byte of a header block is.
#[derive(Clone, Copy)]
enum Expect {
    /// The first byte of a field.
    Field,
    /// A further byte of an integer; `shift` says where it goes.
    Integer { value: u64, shift: u32, then: Then },
    /// The length of a string. `authority`: whether the field is that one; of a name, whether it may still be.
    Length { is_name: bool, authority: bool },
    /// The bytes of a string.
    Text { left: u64, is_name: bool, authority: bool },
}

/// What an integer was for.
#[derive(Clone, Copy)]
enum Then {
    /// An indexed field or a table size: nothing follows.
    Done,
    /// The index of a literal's name.
    Name,
    /// The length of a string.
    Length { is_name: bool, authority: bool },
}

/// Where in the byte stream of a client the walk is.
pub(crate) struct AuthorityFilter {
    header: [u8; FRAME_HEADER],
    have: usize,
    skip: usize,
    lead: usize,
    block: usize,
    padding: Option<usize>,
    expect: Expect,
    seen: bool,
    changed: bool,
}

impl Default for AuthorityFilter {
    fn default() -> Self {
        Self {
            header: [0; FRAME_HEADER],
            have: 0,
            skip: PREFACE,
            lead: 0,
            block: 0,
            padding: None,
            expect: Expect::Field,
            seen: false,
            changed: false,
        }
    }
}

impl AuthorityFilter {
    /// Walks on over `bytes`.
    pub(crate) fn filter(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            if self.lead > 0 {
                self.take_lead(bytes[at]);
                at += 1;
            } else if self.block > 0 {
                self.block -= 1;
                self.step(&mut bytes[at]);
                at += 1;
            } else if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() - at);
                self.skip -= skipped;
                at += skipped;
            } else {
                self.header[self.have] = bytes[at];
                self.have += 1;
                at += 1;
                if self.have == FRAME_HEADER {
                    self.have = 0;
                    self.begin_frame();
                }
            }
        }
    }

    /// Whether an authority has gone by, and none needed to be changed.
    pub(crate) fn is_needless(&self) -> bool {
        self.seen && !self.changed
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let is_headers = kind == HEADERS;
        if !is_headers && kind != CONTINUATION {
            self.skip = length;
            return;
        }
        if is_headers {
            self.expect = Expect::Field; // CONTINUATION goes on where the block was cut
        }
        let padded = is_headers && flags & PADDED != 0;
        let priority = if is_headers && flags & PRIORITY != 0 { 5 } else { 0 };
        self.padding = padded.then_some(0);
        self.lead = (usize::from(padded) + priority).min(length);
        self.block = length - self.lead;
    }

    /// The length of the padding and the priority stand before the block.
    fn take_lead(&mut self, byte: u8) {
        self.lead -= 1;
        if self.padding == Some(0) {
            let padding = usize::from(byte).min(self.block);
            self.padding = None;
            self.block -= padding;
            self.skip = padding;
        }
    }

    fn step(&mut self, byte: &mut u8) {
        self.expect = match self.expect {
            Expect::Field => field(*byte),
            Expect::Integer { value, shift, then } => {
                let value =
                    value.saturating_add(u64::from(*byte & 0x7f).checked_shl(shift).unwrap_or(u64::MAX));
                if *byte & 0x80 == 0 {
                    integer(value, then)
                } else {
                    Expect::Integer { value, shift: shift + 7, then }
                }
            }
            Expect::Length { is_name, authority } => {
                let huffman = *byte & 0x80 != 0;
                self.seen |= authority && !is_name && huffman;
                let authority = (authority || is_name) && !huffman;
                prefixed(*byte, 7, Then::Length { is_name, authority })
            }
            Expect::Text { left, is_name, authority } => {
                let authority = match is_name {
                    true => authority && *byte == NAME[NAME.len() - left as usize],
                    false => authority,
                };
                if authority && !is_name {
                    if *byte == b'%' {
                        *byte = b'-';
                        self.changed = true;
                    }
                    self.seen |= left == 1;
                }
                text(left - 1, is_name, authority)
            }
        };
    }
}

/// The first byte of a field says what it is (RFC 7541, section 6).
fn field(byte: u8) -> Expect {
    match byte {
        0x80.. => prefixed(byte, 7, Then::Done),
        0x40.. => prefixed(byte, 6, Then::Name),
        0x20.. => prefixed(byte, 5, Then::Done),
        _ => prefixed(byte, 4, Then::Name),
    }
}

fn prefixed(byte: u8, bits: u32, then: Then) -> Expect {
    let mask = (1u8 << bits) - 1;
    let value = u64::from(byte & mask);
    if byte & mask == mask { Expect::Integer { value, shift: 0, then } } else { integer(value, then) }
}

fn integer(value: u64, then: Then) -> Expect {
    match then {
        Then::Done => Expect::Field,
        Then::Name if value == 0 => Expect::Length { is_name: true, authority: false },
        Then::Name => Expect::Length { is_name: false, authority: value == AUTHORITY },
        Then::Length { is_name, authority } => {
            text(value, is_name, authority && (!is_name || value == NAME.len() as u64))
        }
    }
}

fn text(left: u64, is_name: bool, authority: bool) -> Expect {
    match (left, is_name) {
        (0, true) => Expect::Length { is_name: false, authority },
        (0, false) => Expect::Field,
        _ => Expect::Text { left, is_name, authority },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END_HEADERS: u8 = 4;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        for text in [name, value] {
            if first != 0x40 && text == name {
                continue; // its name is an index
            }
            match text.len() {
                short @ ..127 => bytes.push(short as u8),
                long => bytes.extend([127, ((long - 127) & 0x7f | 0x80) as u8, ((long - 127) >> 7) as u8]),
            }
            bytes.extend(text);
        }
        bytes
    }

    fn client(authority: &[u8]) -> Vec<u8> {
        let block = [
            vec![0x83, 0x86, 0x3f, 0xe1, 0x1f],
            literal(0x44, b"-", b"/a%2Fb"),
            literal(0x41, b"-", authority),
            literal(0x40, b"x-note", b"A\x05%2Fyz"),
            vec![0x0f, 0x10, 0x02, b'%', b'%', 0xff, 0x03],
        ]
        .concat();
        let mut bytes = vec![b'%'; PREFACE];
        bytes.extend(frame(4, 0, &[0, 5, 0, 0, 64, 0]));
        bytes.extend(frame(HEADERS, PADDED | PRIORITY, &[&[2, 0, 0, 0, 0, 9], &block[..20], b"%%"].concat()));
        bytes.extend(frame(CONTINUATION, END_HEADERS, &block[20..]));
        bytes.extend(frame(0, 1, b"\x41\x02%%"));
        bytes.extend(frame(HEADERS, END_HEADERS, &literal(0x40, b"x:authority", b"%")));
        bytes.extend(frame(HEADERS, END_HEADERS, &literal(0x40, b":authoritx", b"%")));
        bytes.extend(frame(HEADERS, END_HEADERS, &literal(0x40, b":authority", b"%")));
        bytes
    }

    fn filtered(mut bytes: Vec<u8>, size: usize) -> Vec<u8> {
        let mut filter = AuthorityFilter::default();
        bytes.chunks_mut(size).for_each(|piece| filter.filter(piece));
        bytes
    }

    #[test]
    fn only_the_authority_is_changed_however_the_bytes_are_cut() {
        let long = format!("%2Ftmp{}", "%2Fabcdefgh".repeat(20));
        for authority in ["localhost", "%2Frun%2Fgrpc", &long] {
            let readable = authority.replace('%', "-");
            let mut expected = client(readable.as_bytes());
            let last = expected.len() - 1;
            expected[last] = b'-';
            for size in [1, 2, 5, 13, 1000] {
                assert_eq!(filtered(client(authority.as_bytes()), size), expected, "{authority} by {size}");
            }
        }
    }

    #[test]
    fn it_is_needless_once_an_authority_needed_no_change() {
        let readable = frame(HEADERS, END_HEADERS, &literal(0x41, b"-", b"box:1"));
        let coded = frame(HEADERS, END_HEADERS, &[0x41, 0x82, b'%', b'%']);
        let path = frame(HEADERS, END_HEADERS, &literal(0x41, b"-", b"%2Fs"));
        for (block, needless) in [(&readable, true), (&coded, true), (&path, false)] {
            let mut filter = AuthorityFilter::default();
            filter.filter(&mut [0; PREFACE]);
            let (begin, end) = block.split_at(block.len() - 1);
            filter.filter(&mut begin.to_vec());
            assert!(!filter.is_needless() || block == &coded, "the value is not over");
            filter.filter(&mut end.to_vec());
            assert_eq!(filter.is_needless(), needless);
        }
        assert!(!AuthorityFilter::default().is_needless());
    }

    #[test]
    fn no_bytes_lead_it_astray() {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for _ in 0..200 {
            let block: Vec<u8> = (0..300).map(|_| noise()).collect();
            let mut bytes = vec![0; PREFACE];
            bytes.extend(frame(HEADERS, noise(), &block));
            bytes.extend(frame(HEADERS, 0, &literal(0x41, b"-", b"%")));
            assert_eq!(filtered(bytes, 17).last(), Some(&b'-'));
        }
    }
}
