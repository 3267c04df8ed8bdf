//! The rules of the frame walker and of the allowance: however a byte stream is cut, the same frames are told, those that
//! its headers spell, and the same one of them is one too many; what carries nothing is bounded by what does.

use crate::h2::allowance::Allowance;
use crate::h2::frames::{Frame, FrameWalker, PREFACE, kind};
use std::time::Duration;

/// As much of a payload as the walker keeps.
const KEPT: usize = 48;
const HEADER: usize = 9;
/// Frames without use that are allowed here.
const BOUND: u64 = 64;

/// Kind, flags, stream, length and what is kept of the payload.
type Told = (u8, u8, u32, usize, Vec<u8>);

/// Panics if the walker breaks the rule: the first byte says how to cut, the others are the stream.
pub fn check(input: &[u8]) {
    let Some((&cut, stream)) = input.split_first() else { return };
    let preface = if cut & 1 == 0 { 0 } else { PREFACE };
    let expected = spelt(stream.get(preface..).unwrap_or_default());
    let allowed = expected_allowed(&expected);
    for size in [stream.len().max(1), usize::from(cut >> 1) + 1, 1] {
        let mut told: Vec<Told> = Vec::new();
        let mut walker = FrameWalker::new(preface);
        let mut allowance = Allowance::new(BOUND, Duration::from_secs(1));
        let mut taken = Vec::new();
        for piece in stream.chunks(size) {
            walker.walk(piece, |frame| {
                assert!(matches!(frame.kind, kind::RST_STREAM | kind::GOAWAY) || frame.error_code() == 0);
                taken.push(allowance.received(&frame, 1));
                told.push((frame.kind, frame.flags, frame.stream, frame.length, frame.payload.to_vec()));
            });
        }
        assert_eq!(told, expected, "pieces of {size}");
        assert_eq!(taken, allowed, "pieces of {size}");
        let idle = taken.iter().zip(&told).filter(|(taken, told)| **taken && !has_use(told)).count() as u64;
        let earned: u64 = told.iter().filter(|told| has_use(told)).map(|told| 4 + told.3 as u64 / 2048).sum();
        assert!(idle <= BOUND + earned, "{idle} frames without use beside {earned}");
    }
}

/// What an allowance says of each frame, seen at once.
fn expected_allowed(frames: &[Told]) -> Vec<bool> {
    let mut allowance = Allowance::new(BOUND, Duration::from_secs(1));
    let frame = |&(kind, flags, stream, length, ref payload): &Told| {
        allowance.received(&Frame { kind, flags, stream, length, payload }, 1)
    };
    frames.iter().map(frame).collect()
}

/// Whether a frame carries something, or may begin a call.
fn has_use((kind, _, _, length, _): &Told) -> bool {
    *kind == kind::HEADERS || (*kind == kind::DATA && *length >= HEADER)
}

/// The frames of a stream, each told when its header and what is kept of it are there.
fn spelt(mut stream: &[u8]) -> Vec<Told> {
    let mut frames = Vec::new();
    while let Some((header, rest)) = stream.split_at_checked(HEADER) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let keeps = [kind::RST_STREAM, kind::GOAWAY].contains(&header[3]);
        let Some(kept) = rest.get(..if keeps { length.min(KEPT) } else { 0 }) else { break };
        let owner = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) % (1 << 31);
        frames.push((header[3], header[4], owner, length, kept.to_vec()));
        stream = rest.get(length..).unwrap_or_default();
    }
    frames
}
