//! The rules of the request scanner: it takes apart exactly the messages of the common kind, into exactly their fields,
//! as a second, slow reading of protobuf's encoding finds them; what is rebuilt of the parts reads the same; and an
//! opening is what stands before the first tensor.

use super::message::rebuilt;
use crate::templates::scan::{HEAD, ID_BYTES, Opening, Scanned, TENSORS};
use std::ops::Range;

const ID: u64 = 3;
const RAW: u64 = 7;
/// A message that leaves something in every part of a scanner.
const BEFORE: &[u8] = b"\x0a\x01m\x1a\x01i\x3a\x01t";

/// Panics if the scanner breaks a rule on this message.
pub fn check(message: &[u8]) {
    check_opening(message);
    let mut scanned = Scanned::default();
    scanned.read(BEFORE).expect("a plain message");
    let accepted = scanned.read(message).is_some();
    let expected = common(message);
    assert_eq!(accepted, expected.is_some(), "accepted, or of the common kind");
    let Some(expected) = expected else { return };
    assert_eq!(Parts::of(&scanned, message), expected);
    check_order(&scanned, message);
    check_rebuilt(&expected, message.len());
}

/// The opening of a message, or of as much of it as there is: all before the first tensor, if that is of the common
/// kind and not long.
fn check_opening(piece: &[u8]) {
    let end = first_tensor(piece).filter(|end| *end <= 2 * HEAD);
    let expected = end.and_then(|end| common(&piece[..end]).map(|parts| (end, parts)));
    let opening = Opening::read(piece);
    let read = opening.as_ref().map(|opening| {
        let parts = Parts { head: opening.head.clone(), id: &piece[opening.id.clone()], raw: Vec::new() };
        (opening.end, parts)
    });
    assert_eq!(read, expected, "the opening");
}

fn first_tensor(piece: &[u8]) -> Option<usize> {
    let mut position = 0;
    while u64::from(*piece.get(position)?) != RAW << 3 | 2 {
        position += field(&piece[position..])?.whole.len();
    }
    Some(position)
}

/// Where the parts lie: inside of the message, in its order, and apart from one another.
fn check_order(scanned: &Scanned, message: &[u8]) {
    let mut ranges: Vec<&Range<usize>> = scanned.raw.iter().collect();
    if !scanned.id.is_empty() {
        ranges.push(&scanned.id);
    }
    assert!(scanned.raw.is_sorted_by_key(|range| range.start));
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.iter().all(|range| range.start <= range.end && range.end <= message.len()));
    assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "a tag and a length lie between");
}

/// The parts are all there is: a message made of them reads the same, is no longer than the client's, and stays as it is.
fn check_rebuilt(parts: &Parts<'_>, length: usize) {
    let message = rebuilt(&parts.head, parts.id, &parts.raw);
    assert!(message.len() <= length);
    let mut scanned = Scanned::default();
    scanned.read(&message).expect("what was rebuilt is of the common kind");
    let again = Parts::of(&scanned, &message);
    assert_eq!(&again, parts);
    assert_eq!(rebuilt(&again.head, again.id, &again.raw), message);
}

/// The parts of a message, as bytes.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'message> {
    head: Vec<u8>,
    id: &'message [u8],
    raw: Vec<&'message [u8]>,
}

impl<'message> Parts<'message> {
    fn of(scanned: &Scanned, message: &'message [u8]) -> Self {
        Self {
            head: scanned.head.clone(),
            id: &message[scanned.id.clone()],
            raw: scanned.raw.iter().map(|range| &message[range.clone()]).collect(),
        }
    }
}

/// A length-delimited field, by the letter of protobuf's encoding.
struct Field<'message> {
    number: u64,
    /// Bytes of its tag, and of its length.
    spelt: (usize, usize),
    whole: &'message [u8],
    body: &'message [u8],
}

/// The parts of a message of the common kind; None for any other, and for what is no message.
fn common(message: &[u8]) -> Option<Parts<'_>> {
    let fields = fields(message)?;
    let known = |field: &Field| {
        (1..=RAW).contains(&field.number)
            && field.spelt.0 == 1
            && field.spelt.1 <= 5
            && field.body.len() <= i32::MAX as usize
    };
    let bodies = |number: u64| {
        fields.iter().filter(move |field| field.number == number).map(|field| field.body).collect::<Vec<_>>()
    };
    let head = fields.iter().filter(|field| field.number != ID && field.number != RAW);
    let head: Vec<u8> = head.flat_map(|field| field.whole).copied().collect();
    let (ids, raw) = (bodies(ID), bodies(RAW));
    let id = ids.first().copied().unwrap_or_default();
    let common = fields.iter().all(known)
        && head.len() <= HEAD
        && raw.len() <= TENSORS
        && ids.len() <= 1
        && id.len() <= ID_BYTES
        && std::str::from_utf8(id).is_ok();
    common.then_some(Parts { head, id, raw })
}

/// All fields of a message; None if one is not length-delimited or the message ends within one.
fn fields(message: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let field = field(rest)?;
        rest = &rest[field.whole.len()..];
        fields.push(field);
    }
    Some(fields)
}

/// The field at the front.
fn field(bytes: &[u8]) -> Option<Field<'_>> {
    let (tag, tag_bytes) = varint(bytes)?;
    let (length, length_bytes) = varint(&bytes[tag_bytes..]).filter(|_| tag & 7 == 2)?;
    let begin = tag_bytes + length_bytes;
    let whole = bytes.get(..usize::try_from(length).ok()?.checked_add(begin)?)?;
    Some(Field { number: tag >> 3, spelt: (tag_bytes, length_bytes), whole, body: &whole[begin..] })
}

/// The varint at the front, and how many bytes it takes: at most ten.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let last = bytes.iter().take(10).position(|byte| byte & 128 == 0)?;
    let groups = bytes[..=last].iter().rev();
    Some((groups.fold(0, |value, byte| value << 7 | u64::from(byte & 127)), last + 1))
}
