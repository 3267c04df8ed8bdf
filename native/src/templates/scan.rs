//! Takes a serialised `ModelInferRequest` apart: the id, where the raw tensors lie, and all the rest, the *head*, by
//! which a request is recognised.
//!
//! Only what common clients send is read: known fields, all of them length-delimited. Whatever else a message holds is
//! not an error here: it is `None`, and the request goes the long way, where protobuf's rules are kept to the letter.

use std::ops::Range;

const NAME: u8 = 1 << 3 | 2;
const VERSION: u8 = 2 << 3 | 2;
const ID: u8 = 3 << 3 | 2;
const PARAMETERS: u8 = 4 << 3 | 2;
const INPUTS: u8 = 5 << 3 | 2;
const OUTPUTS: u8 = 6 << 3 | 2;
/// Tag of a raw tensor.
pub(crate) const RAW: u8 = 7 << 3 | 2;

/// Longest head that is recognised.
pub(crate) const HEAD: usize = 4096;
/// Longest id.
pub(crate) const ID_BYTES: usize = 1024;
/// Most raw tensors.
pub(crate) const TENSORS: usize = 64;

/// A message taken apart; used again for the next one.
#[derive(Default)]
pub(crate) struct Scanned {
    /// Everything but the id and the raw tensors, in its order.
    pub(crate) head: Vec<u8>,
    /// Where the id lies; empty when there is none.
    pub(crate) id: Range<usize>,
    /// Where the raw tensors lie, in their order.
    pub(crate) raw: Vec<Range<usize>>,
}

impl Scanned {
    /// Takes a message apart. None when it is not of the common kind; what is held then means nothing.
    pub(crate) fn read(&mut self, message: &[u8]) -> Option<()> {
        self.head.clear();
        self.raw.clear();
        self.id = 0..0;
        let (mut position, mut head_start, mut ids) = (0, 0, 0);
        while position < message.len() {
            let start = position;
            let tag = message[position];
            let (length, body) = length_at(message, position + 1)?;
            let end = body.checked_add(length).filter(|end| *end <= message.len())?;
            match tag {
                NAME | VERSION | PARAMETERS | INPUTS | OUTPUTS => {}
                ID | RAW => {
                    self.take_head(&message[head_start..start])?;
                    head_start = end;
                    if tag == ID {
                        ids += 1;
                        self.id = body..end;
                    } else if self.raw.len() < TENSORS {
                        self.raw.push(body..end);
                    } else {
                        return None;
                    }
                }
                _ => return None,
            }
            position = end;
        }
        self.take_head(&message[head_start..])?;
        (ids <= 1 && self.id.len() <= ID_BYTES && std::str::from_utf8(&message[self.id.clone()]).is_ok())
            .then_some(())
    }

    fn take_head(&mut self, piece: &[u8]) -> Option<()> {
        if self.head.len() + piece.len() > HEAD {
            return None;
        }
        self.head.extend_from_slice(piece);
        Some(())
    }
}

/// What a message begins with, up to its first raw tensor, where id and all of the head stand before that.
pub(crate) struct Opening {
    /// Everything but the id.
    pub(crate) head: Vec<u8>,
    /// Where the id lies; empty when there is none.
    pub(crate) id: Range<usize>,
    /// Where the first raw tensor's tag is.
    pub(crate) end: usize,
}

impl Opening {
    /// Reads the opening from a message's first piece. None when that is not of the common kind, or not whole.
    pub(crate) fn read(piece: &[u8]) -> Option<Self> {
        let end = first_raw(piece)?;
        let mut scanned = Scanned::default();
        scanned.read(&piece[..end])?;
        Some(Self { head: scanned.head, id: scanned.id, end })
    }
}

fn first_raw(piece: &[u8]) -> Option<usize> {
    let mut position = 0;
    while *piece.get(position)? != RAW {
        let (length, body) = length_at(piece, position + 1)?;
        position = body.checked_add(length).filter(|end| *end <= 2 * HEAD)?;
    }
    Some(position)
}

/// The length that begins at `position`, and where what it measures begins.
fn length_at(message: &[u8], position: usize) -> Option<(usize, usize)> {
    let mut length = 0usize;
    for (place, byte) in message.get(position..)?.iter().take(5).enumerate() {
        length |= usize::from(byte & 127) << (7 * place);
        if *byte < 128 {
            return (length <= i32::MAX as usize).then_some((length, position + place + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        let mut length = body.len();
        while length > 127 {
            bytes.push(length as u8 | 128);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend_from_slice(body);
        bytes
    }

    type Parts = (Vec<u8>, Vec<u8>, Vec<Vec<u8>>);

    fn read(message: &[u8]) -> Option<Parts> {
        let mut scanned = Scanned::default();
        scanned.read(message)?;
        let raw = scanned.raw.iter().map(|range| message[range.clone()].to_vec()).collect();
        Some((scanned.head, message[scanned.id].to_vec(), raw))
    }

    #[test]
    fn id_and_tensors_are_told_from_the_head() {
        let (name, input, large) = (field(NAME, b"m"), field(INPUTS, b"in"), vec![7; 300]);
        let message =
            [name.clone(), field(ID, b"42"), input.clone(), field(RAW, &large), field(RAW, b"")].concat();
        let (head, id, raw) = read(&message).unwrap();
        assert_eq!(head, [name, input].concat());
        assert_eq!((&id[..], raw), (&b"42"[..], vec![large, vec![]]));
    }

    #[test]
    fn the_order_of_fields_is_the_clients() {
        let (name, input) = (field(NAME, b"m"), field(INPUTS, b"in"));
        let message =
            [field(RAW, b"1"), input.clone(), field(ID, b"x"), field(RAW, b"2"), name.clone()].concat();
        let (head, id, raw) = read(&message).unwrap();
        assert_eq!((head, id), ([input, name].concat(), b"x".to_vec()));
        assert_eq!(raw, [b"1".to_vec(), b"2".to_vec()]);
    }

    #[test]
    fn a_scanner_remembers_nothing() {
        let mut scanned = Scanned::default();
        scanned.read(&[field(ID, b"1"), field(RAW, b"2")].concat()).unwrap();
        scanned.read(&field(NAME, b"m")).unwrap();
        assert!(scanned.raw.is_empty() && scanned.id.is_empty() && scanned.head == field(NAME, b"m"));
        assert!(scanned.read(&field(RAW, b"2")[..2]).is_none());
    }

    #[test]
    fn an_opening_ends_at_the_first_tensor() {
        let (name, id, input) = (field(NAME, b"m"), field(ID, b"42"), field(INPUTS, b"in"));
        let message = [name.clone(), id.clone(), input.clone(), field(RAW, &[7; 300])].concat();
        for cut in 0..message.len() {
            match Opening::read(&message[..cut]) {
                None => assert!(cut <= message.len() - 303),
                Some(opening) => {
                    assert_eq!(opening.end, message.len() - 303);
                    assert_eq!(opening.head, [name.clone(), input.clone()].concat());
                    assert_eq!(&message[opening.id], b"42");
                }
            }
        }
        assert!(Opening::read(&[field(NAME, &[b'm'; 2 * HEAD]), field(RAW, b"")].concat()).is_none());
    }

    #[test]
    fn what_is_uncommon_goes_the_long_way() {
        let twice = [field(ID, b"1"), field(ID, b"2")].concat();
        let many: Vec<u8> = (0..=TENSORS).flat_map(|_| field(RAW, b"")).collect();
        let long = field(NAME, &vec![b'm'; HEAD]);
        for (why, message) in [
            ("a varint", vec![1 << 3, 1]),
            ("an unknown field", field(9 << 3 | 2, b"")),
            ("two ids", twice),
            ("an id that is no text", field(ID, b"\xff")),
            ("too many tensors", many),
            ("a long head", long),
            ("a cut field", vec![NAME, 2, b'm']),
            ("a cut length", vec![NAME, 128]),
            ("no length", vec![NAME]),
            ("an endless length", vec![NAME, 128, 128, 128, 128, 128, 0]),
            ("a length beyond all", vec![NAME, 255, 255, 255, 255, 15]),
        ] {
            assert!(read(&message).is_none(), "{why}");
        }
    }
}
