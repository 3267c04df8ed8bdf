//! The rule of the frame walker: however a byte stream is cut, the same frames are told, those that its headers spell.

use crate::frames::{FrameWalker, PREFACE, kind};

/// As much of a payload as the walker keeps.
const KEPT: usize = 48;
const HEADER: usize = 9;

/// Kind, flags, stream and what is kept of the payload.
type Told = (u8, u8, u32, Vec<u8>);

/// Panics if the walker breaks the rule: the first byte says how to cut, the others are the stream.
pub fn check(input: &[u8]) {
    let Some((&cut, stream)) = input.split_first() else { return };
    let preface = if cut & 1 == 0 { 0 } else { PREFACE };
    let expected = spelt(stream.get(preface..).unwrap_or_default());
    for size in [stream.len().max(1), usize::from(cut >> 1) + 1, 1] {
        let mut told: Vec<Told> = Vec::new();
        let mut walker = FrameWalker::new(preface);
        for piece in stream.chunks(size) {
            walker.walk(piece, |frame| {
                assert!(frame.kind == kind::RST_STREAM || frame.reset_code() == 0);
                told.push((frame.kind, frame.flags, frame.stream, frame.payload.to_vec()));
            });
        }
        assert_eq!(told, expected, "pieces of {size}");
    }
}

/// The frames of a stream, each told when its header and what is kept of it are there.
fn spelt(mut stream: &[u8]) -> Vec<Told> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = stream.split_at_checked(HEADER) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let keeps = [kind::RST_STREAM, kind::GOAWAY].contains(&header[3]);
        let Some(kept) = rest.get(..if keeps { length.min(KEPT) } else { 0 }) else { break };
        let owner = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) % (1 << 31);
        frames.push((header[3], header[4], owner, kept.to_vec()));
        stream = rest.get(length..).unwrap_or_default();
    }
    frames
}
