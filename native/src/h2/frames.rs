//! Follows the frames of an HTTP/2 byte stream without keeping them: only what the headers say.

/// Frame types that are asked about.
pub(crate) mod kind {
    #![allow(missing_docs)]
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
}

/// The acknowledgement flag of a PING or SETTINGS.
pub(crate) const ACK: u8 = 1;
/// Length of the preface with which a client begins.
pub(crate) const PREFACE: usize = 24;

/// Length of a frame's header.
pub(crate) const HEADER: usize = 9;
/// As much of a payload as is kept: the reason of a GOAWAY in words.
const KEPT: usize = 48;

/// One frame that went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'walk> {
    /// Its type.
    pub(crate) kind: u8,
    /// Its flags.
    pub(crate) flags: u8,
    /// The stream it belongs to.
    pub(crate) stream: u32,
    /// Length of its payload.
    pub(crate) length: usize,
    /// The beginning of its payload if it is a RST_STREAM or GOAWAY, else empty.
    pub(crate) payload: &'walk [u8],
}

impl Frame<'_> {
    /// The error code of a RST_STREAM or GOAWAY; 0 for other frames.
    pub(crate) fn error_code(&self) -> u32 {
        match self.payload {
            [a, b, c, d] if self.kind == kind::RST_STREAM => u32::from_be_bytes([*a, *b, *c, *d]),
            [_, _, _, _, a, b, c, d, ..] if self.kind == kind::GOAWAY => u32::from_be_bytes([*a, *b, *c, *d]),
            _ => 0,
        }
    }

    /// The reason of a GOAWAY in words, as much of it as is kept.
    pub(crate) fn debug_text(&self) -> &[u8] {
        if self.kind == kind::GOAWAY { self.payload.get(8..).unwrap_or_default() } else { &[] }
    }
}

/// Where in the byte stream the walk is.
pub(crate) struct FrameWalker {
    head: [u8; HEADER + KEPT],
    have: usize,
    skip: usize,
}

impl FrameWalker {
    /// A walk that begins after `preface` bytes.
    pub(crate) fn new(preface: usize) -> Self {
        Self { head: [0; HEADER + KEPT], have: 0, skip: preface }
    }

    /// Walks on over `bytes`, telling each frame once its header was seen.
    pub(crate) fn walk(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Frame<'_>)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (self.wanted() - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.wanted() {
                tell(self.frame());
                self.skip = self.length() - (self.have - HEADER);
                self.have = 0;
            }
        }
    }

    /// Whether what went by ends with a whole frame.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.have == 0 && self.skip == 0
    }

    fn length(&self) -> usize {
        usize::from(self.head[0]) << 16 | usize::from(self.head[1]) << 8 | usize::from(self.head[2])
    }

    fn wanted(&self) -> usize {
        let keeps = self.have >= HEADER && matches!(self.head[3], kind::RST_STREAM | kind::GOAWAY);
        if keeps { HEADER + self.length().min(KEPT) } else { HEADER }
    }

    fn frame(&self) -> Frame<'_> {
        let [_, _, _, kind, flags, a, b, c, d, ..] = self.head;
        let stream = u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff;
        Frame { kind, flags, stream, length: self.length(), payload: &self.head[HEADER..self.have] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn frames_are_told_however_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        bytes.extend(frame(kind::DATA, 1, 5, &[6; 70]));
        bytes.extend(frame(kind::RST_STREAM, 0, 7, &[0, 0, 0, 8]));
        bytes.extend(frame(kind::PING, ACK, 0, &[0; 8]));
        for size in [1, 2, 3, 7, 11, 64, 1000] {
            let mut walker = FrameWalker::new(PREFACE);
            let mut told = Vec::new();
            for piece in bytes.chunks(size) {
                walker.walk(piece, |frame| {
                    told.push((frame.kind, frame.flags, frame.stream, frame.length, frame.error_code()))
                });
            }
            let expected = [(4, 0, 0, 0, 0), (0, 1, 5, 70, 0), (3, 0, 7, 4, 8), (6, 1, 0, 8, 0)];
            assert_eq!(told, expected, "pieces of {size}");
            assert!(walker.is_between_frames());
            walker.walk(&bytes[PREFACE + HEADER..][..HEADER + 69], |_| {});
            assert!(!walker.is_between_frames(), "a byte is missing");
        }
    }

    #[test]
    fn the_words_of_a_goaway_are_kept() {
        let mut walker = FrameWalker::new(0);
        let long = [&[0; 8][..], &[b'w'; 100]].concat();
        let mut told = Vec::new();
        for payload in [b"\0\0\0\0\0\0\0\x0btoo_many".as_slice(), &long, &[]] {
            walker.walk(&frame(kind::GOAWAY, 0, 0, payload), |frame| {
                told.push((frame.error_code(), frame.debug_text().to_vec()))
            });
        }
        let cut = (0, long[8..KEPT].to_vec());
        assert_eq!(told, [(11, b"too_many".to_vec()), cut, (0, vec![])]);
    }

    #[test]
    fn a_malformed_reset_does_not_lead_the_walk_astray() {
        let mut bytes = frame(kind::RST_STREAM, 0, 1, &[9]);
        bytes.extend(frame(kind::PING, 0, 0, &[0; 8]));
        let mut told = Vec::new();
        FrameWalker::new(0).walk(&bytes, |frame| told.push((frame.kind, frame.error_code())));
        assert_eq!(told, [(3, 0), (6, 0)]);
    }
}
