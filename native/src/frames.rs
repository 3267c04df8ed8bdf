//! Follows the frames of an HTTP/2 byte stream without keeping them: only what the headers say.

/// Frame types that somebody asks about.
pub mod kind {
    #![allow(missing_docs)]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const PING: u8 = 6;
}

/// The acknowledgement flag of a PING.
pub const ACK: u8 = 1;
/// Length of the preface with which a client begins.
pub const PREFACE: usize = 24;

const HEADER: usize = 9;
const CODE: usize = 4;

/// One frame that went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// The stream it belongs to.
    pub stream: u32,
    /// Its error code if it is a RST_STREAM, else 0.
    pub code: u32,
}

/// Where in the byte stream the walk is.
pub struct FrameWalker {
    head: [u8; HEADER + CODE],
    have: usize,
    skip: usize,
}

impl FrameWalker {
    /// A walk that begins after `preface` bytes.
    pub fn new(preface: usize) -> Self {
        Self { head: [0; HEADER + CODE], have: 0, skip: preface }
    }

    /// Walks on over `bytes`, telling each frame once its header was seen.
    pub fn walk(&mut self, mut bytes: &[u8], mut tell: impl FnMut(Frame)) {
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

    fn length(&self) -> usize {
        usize::from(self.head[0]) << 16 | usize::from(self.head[1]) << 8 | usize::from(self.head[2])
    }

    fn wanted(&self) -> usize {
        let has_code = self.have >= HEADER && self.head[3] == kind::RST_STREAM && self.length() >= CODE;
        if has_code { HEADER + CODE } else { HEADER }
    }

    fn frame(&self) -> Frame {
        let word = |at: usize| u32::from_be_bytes(self.head[at..at + 4].try_into().expect("four bytes"));
        Frame {
            kind: self.head[3],
            flags: self.head[4],
            stream: word(5) & 0x7fff_ffff,
            code: if self.have > HEADER { word(HEADER) } else { 0 },
        }
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
                walker.walk(piece, |frame| told.push((frame.kind, frame.flags, frame.stream, frame.code)));
            }
            assert_eq!(told, [(4, 0, 0, 0), (0, 1, 5, 0), (3, 0, 7, 8), (6, 1, 0, 0)], "pieces of {size}");
        }
    }

    #[test]
    fn a_malformed_reset_does_not_lead_the_walk_astray() {
        let mut bytes = frame(kind::RST_STREAM, 0, 1, &[9]);
        bytes.extend(frame(kind::PING, 0, 0, &[0; 8]));
        let mut told = Vec::new();
        FrameWalker::new(0).walk(&bytes, |frame| told.push((frame.kind, frame.code)));
        assert_eq!(told, [(3, 0), (6, 0)]);
    }
}
