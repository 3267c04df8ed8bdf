//! What the HTTP/2 library refuses by itself, read from the frames with which it tells the client.

use crate::h2::frames::{Frame, kind};
use crate::measure::limits::Limit;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Why a call or a connection was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A limit was reached.
    Limit(Limit),
    /// What the client sent is not HTTP/2.
    Protocol,
    /// It sent more than the window, or widened its own beyond the largest.
    Window,
}

impl Refusal {
    /// What a frame of the front end's says. `last_headers` is the stream of the last HEADERS before it.
    pub(crate) fn of(frame: &Frame<'_>, last_headers: u32) -> Option<Self> {
        match frame.kind {
            kind::RST_STREAM => match frame.error_code() {
                REFUSED_STREAM => Some(Self::Limit(Limit::StreamsPerConnection)),
                // Headers and at once this: the answer (431) to a header list beyond its bound.
                PROTOCOL_ERROR if frame.stream == last_headers => Some(Self::Limit(Limit::MetadataBytes)),
                code => Self::of_error(code),
            },
            kind::GOAWAY => match (frame.error_code(), frame.debug_text()) {
                (ENHANCE_YOUR_CALM, b"too_many_resets") => Some(Self::Limit(Limit::ResetsPerConnection)),
                (ENHANCE_YOUR_CALM, b"too_many_data_frames") => {
                    Some(Self::Limit(Limit::ControlFramesPerConnection))
                }
                (ENHANCE_YOUR_CALM, b"header_list_way_too_large" | b"too_many_continuations") => {
                    Some(Self::Limit(Limit::MetadataBytes))
                }
                // Only so does it end a header list of which it takes nothing apart any more.
                (COMPRESSION_ERROR, _) => Some(Self::Limit(Limit::MetadataBytes)),
                (code, _) => Self::of_error(code),
            },
            _ => None,
        }
    }

    fn of_error(code: u32) -> Option<Self> {
        match code {
            PROTOCOL_ERROR | FRAME_SIZE_ERROR => Some(Self::Protocol),
            FLOW_CONTROL_ERROR => Some(Self::Window),
            _ => None,
        }
    }
}

/// Whether the front end's frame ends a call for what the client did: by what it refuses, or because a frame came for a
/// call that has ended, as happens to all clients now and then.
pub(crate) fn ends_for_error(frame: &Frame<'_>) -> bool {
    const ERRORS: [u32; 5] =
        [PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM];
    frame.kind == kind::RST_STREAM && ERRORS.contains(&frame.error_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(code: u32) -> Option<Refusal> {
        let payload = &code.to_be_bytes();
        Refusal::of(&Frame { kind: kind::RST_STREAM, flags: 0, stream: 9, length: 4, payload }, 7)
    }

    fn goaway(code: u32, text: &[u8]) -> Option<Refusal> {
        let payload = &[&[0; 4], &code.to_be_bytes()[..], text].concat();
        Refusal::of(&Frame { kind: kind::GOAWAY, flags: 0, stream: 0, length: payload.len(), payload }, 0)
    }

    #[test]
    fn resets_say_why_a_call_was_refused() {
        assert_eq!(reset(REFUSED_STREAM), Some(Refusal::Limit(Limit::StreamsPerConnection)));
        assert_eq!(reset(FLOW_CONTROL_ERROR), Some(Refusal::Window));
        assert_eq!([1, 6].map(reset), [Some(Refusal::Protocol); 2]);
        assert_eq!([0, 2, 5, 8, 11].map(reset), [None; 5], "these are the front end's own, or nobody's");
    }

    #[test]
    fn errors_of_the_client_are_told_from_ends_of_the_server() {
        let ends = |code: u32, kind: u8| {
            ends_for_error(&Frame { kind, flags: 0, stream: 9, length: 4, payload: &code.to_be_bytes() })
        };
        let errors: Vec<u32> = (0..14).filter(|code| ends(*code, kind::RST_STREAM)).collect();
        assert_eq!(errors, [1, 3, 5, 6, 7]);
        assert!(!ends(1, kind::GOAWAY));
    }

    #[test]
    fn a_header_list_that_is_too_large_is_answered_before_it_is_reset() {
        let payload = &PROTOCOL_ERROR.to_be_bytes();
        let frame = Frame { kind: kind::RST_STREAM, flags: 0, stream: 7, length: 4, payload };
        assert_eq!(Refusal::of(&frame, 7), Some(Refusal::Limit(Limit::MetadataBytes)));
    }

    #[test]
    fn goaways_say_why_a_connection_was_ended() {
        for (code, text, limit) in [
            (ENHANCE_YOUR_CALM, &b"too_many_resets"[..], Limit::ResetsPerConnection),
            (ENHANCE_YOUR_CALM, b"too_many_data_frames", Limit::ControlFramesPerConnection),
            (ENHANCE_YOUR_CALM, b"too_many_continuations", Limit::MetadataBytes),
            (ENHANCE_YOUR_CALM, b"header_list_way_too_large", Limit::MetadataBytes),
            (COMPRESSION_ERROR, b"", Limit::MetadataBytes),
        ] {
            assert_eq!(goaway(code, text), Some(Refusal::Limit(limit)));
        }
        assert_eq!([1, 6].map(|code| goaway(code, b"")), [Some(Refusal::Protocol); 2]);
        assert_eq!(goaway(FLOW_CONTROL_ERROR, b""), Some(Refusal::Window));
        assert_eq!([0, 11].map(|code| goaway(code, b"")), [None; 2], "these are the front end's own");
    }
}
