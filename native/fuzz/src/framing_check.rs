//! The rules of gRPC's framing: prefixes and texts are read as they were written, a time-out is what its digits say, and
//! gzip and deflate are undone within their bounds, with the same result in steps as in one go.

use crate::h2::framing::{Coding, InflateError, Inflation, PREFIX, Prefix, percent_encoded, timeout_ns};
use crate::measure::budget::Budget;
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::{GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder};
use std::io::Read;

/// Bytes that a message may grow to here; the budget is less, so that both bounds are met.
const BOUND: usize = 300_000;
const BUDGET: u64 = 200_000;
/// Longest `grpc-message`.
const TEXT: usize = 4096;

/// Panics if a rule is broken: the first byte says which is tried on the others.
pub fn check(input: &[u8]) {
    let Some((&rule, rest)) = input.split_first() else { return };
    let coding = if rule / 5 % 2 == 0 { Coding::Gzip } else { Coding::Deflate };
    match rule % 5 {
        0 => timeout(rest),
        1 => text(&String::from_utf8_lossy(rest)),
        2 => prefix(rest),
        3 => drop(inflated(coding, rest)),
        _ => {
            let (mut compressed, fast) = (Vec::new(), Compression::fast());
            match coding {
                Coding::Gzip => GzEncoder::new(rest, fast).read_to_end(&mut compressed),
                Coding::Deflate => ZlibEncoder::new(rest, fast).read_to_end(&mut compressed),
            }
            .expect("memory");
            assert_eq!(inflated(coding, &compressed).as_deref(), Some(rest));
        }
    }
}

fn timeout(value: &[u8]) {
    let expected = std::str::from_utf8(value).ok().filter(|text| text.is_ascii()).and_then(|text| {
        let (digits, unit) = text.split_at(text.len().checked_sub(1)?);
        let unit = ["n", "u", "m", "S", "M", "H"].iter().position(|known| *known == unit)?;
        let scale = [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000, 3_600_000_000_000][unit];
        let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
        let count = digits.parse::<u128>().ok().filter(|_| plain)?;
        Some(u64::try_from(count * scale).unwrap_or(u64::MAX))
    });
    assert_eq!(timeout_ns(value), expected);
}

fn text(text: &str) {
    let encoded = percent_encoded(text);
    assert!(encoded.len() <= TEXT && encoded.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    let mut bytes = encoded.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut digit =
            || bytes.next().and_then(|digit| char::from(digit).to_digit(16)).expect("a digit") as u8;
        decoded.push(if byte == b'%' { digit() << 4 | digit() } else { byte });
    }
    let decoded = String::from_utf8(decoded).expect("whole characters");
    assert!(text.starts_with(&decoded));
    assert!(decoded == text || encoded.len() + 12 > TEXT, "cut short without need");
}

fn prefix(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<PREFIX>() else { return };
    match Prefix::parse(*bytes) {
        None => assert!(bytes[0] > 1),
        Some(prefix) => {
            let [_, length @ ..] = Prefix::encode(prefix.length).expect("it was read from four bytes");
            assert_eq!((u8::from(prefix.compressed), length.as_slice()), (bytes[0], &bytes[1..]));
        }
    }
}

/// What a compressed message holds, if it is one and keeps to the bounds.
fn inflated(coding: Coding, compressed: &[u8]) -> Option<Vec<u8>> {
    let budget = Budget::new(BUDGET);
    let stepped = in_steps(coding, compressed, &budget);
    assert_eq!(budget.used(), 0, "memory is given back");
    let mut whole = Vec::new();
    let most = BOUND as u64 + 1;
    let read = match coding {
        Coding::Gzip => GzDecoder::new(compressed).take(most).read_to_end(&mut whole),
        Coding::Deflate => ZlibDecoder::new(compressed).take(most).read_to_end(&mut whole),
    };
    match &stepped {
        Ok(message) => assert!(read.is_ok() && *message == whole),
        Err(InflateError::Malformed(_)) => assert!(read.is_err() || whole.len() > BOUND),
        Err(InflateError::TooLarge) => assert!(read.is_err() || whole.len() > BOUND),
        Err(InflateError::OverBudget(_)) => assert!(read.is_err() || whole.len() as u64 > BUDGET / 4),
    }
    stepped.ok()
}

fn in_steps(
    coding: Coding,
    compressed: &[u8],
    budget: &std::sync::Arc<Budget>,
) -> Result<Vec<u8>, InflateError> {
    let mut inflation = Inflation::new(coding, Bytes::copy_from_slice(compressed), budget, BOUND);
    let most = compressed.len() + BOUND + 8;
    for _ in 0..most {
        let ended = inflation.step()?;
        assert!(budget.used() <= BUDGET);
        if ended {
            return Ok(inflation.finish().bytes.to_vec());
        }
    }
    panic!("it does not end")
}
