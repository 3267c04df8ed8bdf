//! gRPC over HTTP/2, the parts that are pure: prefixes of messages, `grpc-timeout`, `grpc-message`, gzip and deflate.

use crate::measure::budget::{Assembly, Budget, Message, OverBudget};
use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use std::io::{BufRead, ErrorKind, Read};
use std::sync::Arc;

/// Length of the prefix before each message: a flag and the length, big endian.
pub(crate) const PREFIX: usize = 5;

/// What stands before a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Whether the message is compressed as `grpc-encoding` says.
    pub(crate) compressed: bool,
    /// Length of the message as it is sent.
    pub(crate) length: usize,
}

impl Prefix {
    /// Reads a prefix; None when the flag is neither 0 nor 1.
    pub(crate) fn parse(bytes: [u8; PREFIX]) -> Option<Self> {
        let [flag, length @ ..] = bytes;
        (flag <= 1).then(|| Self { compressed: flag == 1, length: u32::from_be_bytes(length) as usize })
    }

    /// The prefix of an uncompressed message; None when a message cannot be that long.
    pub(crate) fn encode(length: usize) -> Option<[u8; PREFIX]> {
        let [a, b, c, d] = u32::try_from(length).ok()?.to_be_bytes();
        Some([0, a, b, c, d])
    }
}

/// Nanoseconds of a `grpc-timeout`: at most eight digits and a unit. None when it is malformed.
pub(crate) fn timeout_ns(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count = digits.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let scale = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return None,
    };
    Some(count.saturating_mul(scale))
}

/// Longest `grpc-message`: clients bound the trailers they accept, and a status that is refused for its length
/// tells less than one that is cut short.
const TEXT: usize = 4096;

/// A text as `grpc-message` carries it: printable ASCII, everything else and `%` as `%XX` of its UTF-8.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len().min(TEXT));
    for character in text.chars() {
        let mut utf8 = [0; 4];
        let start = encoded.len();
        for byte in character.encode_utf8(&mut utf8).bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => encoded.push(byte as char),
                _ => encoded.push_str(&format!("%{byte:02X}")),
            }
        }
        if encoded.len() > TEXT {
            encoded.truncate(start); // whole characters only
            break;
        }
    }
    encoded
}

/// How a message may be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, the form that is also called zlib.
    Deflate,
}

impl Coding {
    /// Its name in `grpc-encoding`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// That of this name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        [Self::Gzip, Self::Deflate].into_iter().find(|coding| coding.name().as_bytes() == name)
    }
}

/// Why a compressed message cannot be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InflateError {
    /// It is not compressed in this way.
    Malformed(String),
    /// It grows beyond the bound.
    TooLarge,
    /// There is no memory for it now.
    OverBudget(OverBudget),
}

impl From<OverBudget> for InflateError {
    fn from(over: OverBudget) -> Self {
        Self::OverBudget(over)
    }
}

/// Decompresses one message in steps, so that a long one does not keep others waiting, and stops at the bound, so
/// that a bomb is refused before it takes memory.
pub(crate) struct Inflation {
    decoder: Decoder,
    assembly: Assembly,
    piece: Box<[u8]>,
}

/// Bytes made in one step at most: some tens of microseconds.
const STEP: usize = 32 * 1024;
/// Bytes read in one step at most: empty blocks make nothing at all, and each has codes to be built.
const RATION: usize = 1024;

/// A source that gives a bounded part of what it has and then says that the rest must wait.
struct Ration {
    bytes: Bytes,
    left: usize,
}

impl BufRead for Ration {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.left == 0 && !self.bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(&self.bytes[..self.left.min(self.bytes.len())])
    }

    fn consume(&mut self, amount: usize) {
        self.bytes.advance(amount);
        self.left -= amount;
    }
}

impl Read for Ration {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let taken = self.fill_buf()?.read(into)?;
        self.consume(taken);
        Ok(taken)
    }
}

enum Decoder {
    Gzip(GzDecoder<Ration>),
    Deflate(ZlibDecoder<Ration>),
}

impl Decoder {
    fn new(coding: Coding, source: Ration) -> Self {
        match coding {
            Coding::Gzip => Self::Gzip(GzDecoder::new(source)),
            Coding::Deflate => Self::Deflate(ZlibDecoder::new(source)),
        }
    }

    /// Reads a ration at most.
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Gzip(decoder) => {
                decoder.get_mut().left = RATION;
                decoder.read(into)
            }
            Self::Deflate(decoder) => {
                decoder.get_mut().left = RATION;
                decoder.read(into)
            }
        }
    }
}

impl Inflation {
    /// Begins to decompress a message of at most `bound` bytes.
    pub(crate) fn new(coding: Coding, compressed: Bytes, budget: &Arc<Budget>, bound: usize) -> Self {
        Self {
            decoder: Decoder::new(coding, Ration { bytes: compressed, left: 0 }),
            assembly: Assembly::new(budget, bound),
            piece: vec![0; STEP].into(),
        }
    }

    /// Reads and makes the next piece, which may be empty; true when there was none left.
    pub(crate) fn step(&mut self) -> Result<bool, InflateError> {
        let made = match self.decoder.read(&mut self.piece) {
            Ok(made) => made,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(InflateError::Malformed(error.to_string())),
        };
        if made > self.assembly.missing() {
            return Err(InflateError::TooLarge);
        }
        self.assembly.push(&self.piece[..made])?;
        Ok(made == 0)
    }

    /// The message, after the last step.
    pub(crate) fn finish(self) -> Message {
        self.assembly.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().into()
    }

    fn deflate(bytes: &[u8]) -> Bytes {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().into()
    }

    type Encoder = fn(&[u8]) -> Bytes;

    const CODINGS: [(Coding, Encoder); 2] = [(Coding::Gzip, gzip), (Coding::Deflate, deflate)];

    fn inflate(
        coding: Coding,
        compressed: Bytes,
        budget: &Arc<Budget>,
        bound: usize,
    ) -> Result<Message, InflateError> {
        let mut inflation = Inflation::new(coding, compressed, budget, bound);
        while !inflation.step()? {}
        Ok(inflation.finish())
    }

    #[test]
    fn codings_have_names() {
        for coding in [Coding::Gzip, Coding::Deflate] {
            assert_eq!(Coding::named(coding.name().as_bytes()), Some(coding));
        }
        for unknown in ["identity", "GZIP", "zlib", ""] {
            assert_eq!(Coding::named(unknown.as_bytes()), None, "{unknown}");
        }
    }

    #[test]
    fn a_prefix_is_read_as_it_is_written() {
        let prefix = Prefix::parse(Prefix::encode(70_000).unwrap()).unwrap();
        assert_eq!(prefix, Prefix { compressed: false, length: 70_000 });
        assert_eq!(Prefix::parse([1, 0, 0, 1, 2]), Some(Prefix { compressed: true, length: 258 }));
        assert_eq!(Prefix::parse([2, 0, 0, 0, 0]), None);
        assert_eq!(Prefix::encode(1 << 33), None);
    }

    #[test]
    fn a_timeout_is_read_in_each_unit() {
        for (text, expected) in [
            ("1n", 1),
            ("25u", 25_000),
            ("100m", 100_000_000),
            ("3S", 3_000_000_000),
            ("2M", 120_000_000_000),
            ("1H", 3_600_000_000_000),
            ("0S", 0),
            ("99999999H", u64::MAX),
        ] {
            assert_eq!(timeout_ns(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_malformed_timeout_is_not_guessed() {
        for text in ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "+1S", " 1S"] {
            assert_eq!(timeout_ns(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_text_is_escaped_where_it_must_be() {
        assert_eq!(percent_encoded("Method not found!"), "Method not found!");
        assert_eq!(percent_encoded("100 %\n"), "100 %25%0A");
        assert_eq!(percent_encoded("Größe"), "Gr%C3%B6%C3%9Fe");
    }

    #[test]
    fn a_long_text_ends_at_a_whole_character() {
        let encoded = percent_encoded(&"é".repeat(2000));
        assert!(encoded.len() <= TEXT && encoded.len() > TEXT - 6);
        assert_eq!(encoded.len() % 6, 0);
    }

    #[test]
    fn compression_is_undone() {
        let budget = Budget::new(1 << 20);
        let plain: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for (coding, encode) in CODINGS {
            let message = inflate(coding, encode(&plain), &budget, 200_000).unwrap();
            assert_eq!(message.bytes, plain, "{coding:?}");
            drop(message);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn an_empty_message_may_be_compressed() {
        let budget = Budget::new(1 << 20);
        for (coding, encode) in CODINGS {
            assert!(inflate(coding, encode(b""), &budget, 10).unwrap().bytes.is_empty(), "{coding:?}");
        }
    }

    #[test]
    fn a_step_reads_little_even_when_it_makes_nothing() {
        let budget = Budget::new(1 << 20);
        const EMPTY: [u8; 5] = [0, 0, 0, 0xff, 0xff];
        // The header, and what follows the last block: sum and length of nothing, or its sum alone.
        for (coding, head, tail) in [
            (Coding::Gzip, gzip(b"").slice(..10), &[0; 8][..]),
            (Coding::Deflate, deflate(b"").slice(..2), &[0, 0, 0, 1][..]),
        ] {
            let mut bytes = head.to_vec();
            (0..100_000).for_each(|_| bytes.extend(EMPTY));
            bytes.extend([1, 0, 0, 0xff, 0xff]); // the last block
            bytes.extend(tail);
            let least = bytes.len() / RATION;
            let mut inflation = Inflation::new(coding, bytes.into(), &budget, 1000);
            let mut steps = 0;
            while !inflation.step().unwrap() {
                steps += 1;
            }
            assert!(steps >= least, "{coding:?}: {steps} steps");
            assert!(inflation.finish().bytes.is_empty());
        }
    }

    #[test]
    fn a_bomb_takes_no_more_than_the_bound() {
        let zeros = vec![0; 50 << 20];
        for (coding, encode) in CODINGS {
            let budget = Budget::new(u64::MAX);
            let mut inflation = Inflation::new(coding, encode(&zeros), &budget, 100_000);
            let error = loop {
                match inflation.step() {
                    Ok(ended) => assert!(!ended),
                    Err(error) => break error,
                }
                assert!(budget.used() <= 100_000);
            };
            assert_eq!(error, InflateError::TooLarge, "{coding:?}");
        }
    }

    #[test]
    fn a_bomb_is_refused_when_there_is_no_memory() {
        let budget = Budget::new(70_000);
        let error = inflate(Coding::Gzip, gzip(&vec![0; 1 << 20]), &budget, 2 << 20).err().unwrap();
        assert_eq!(error, InflateError::OverBudget(OverBudget::Whole));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_of_another_form_or_cut_short_is_malformed() {
        let budget = Budget::new(1 << 20);
        let whole = [gzip(&[7; 1000]), deflate(&[7; 1000])];
        for (at, (coding, _)) in CODINGS.into_iter().enumerate() {
            let (own, other) = (&whole[at], whole[1 - at].clone());
            let mut broken = vec![Bytes::from_static(b"plain text"), other];
            broken.extend((0..own.len()).map(|length| own.slice(..length)));
            for broken in broken {
                let error = inflate(coding, broken.clone(), &budget, 10_000).err();
                assert!(
                    matches!(error, Some(InflateError::Malformed(_))),
                    "{coding:?} {broken:?}: {error:?}"
                );
            }
        }
        let mut sum = deflate(b"sum").to_vec();
        *sum.last_mut().unwrap() ^= 1;
        let error = inflate(Coding::Deflate, sum.into(), &budget, 10).err();
        assert!(matches!(error, Some(InflateError::Malformed(_))), "{error:?}");
    }
}
