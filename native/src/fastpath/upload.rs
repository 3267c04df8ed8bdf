//! A large request on its way into its slot: each piece of the message is copied to where it belongs as it arrives,
//! while it is warm, and nothing is gathered before.
//!
//! What must come is known from the first piece on: the head is that of a template, and behind it stand the tensors,
//! one by one; over gRPC each after its tag and length. Should anything else come, the message so far is put together again, as
//! it was.

use crate::fastpath::direct::Direct;
use crate::fastpath::flight::Flight;
use crate::templates::scan::{Opening, RAW};
use crate::templates::template::{Place, put_varint};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// From this length on it pays to copy a message as it arrives.
pub(crate) const UPLOAD: usize = 32 * 1024;

/// What stands before a tensor, and how long the tensor is.
struct Part {
    header: Vec<u8>,
    offset: usize,
    size: usize,
}

/// See the head of this file.
pub(crate) struct Upload {
    /// The request.
    pub(crate) flight: Box<Flight>,
    opening: Bytes,
    parts: Vec<Part>,
    part: usize,
    done: usize,
    left: usize,
    length: usize,
}

/// How an upload goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All of the piece was taken.
    Taken,
    /// From here on something else came than was expected.
    Strange(usize),
}

impl Upload {
    /// Begins with the first piece of a message of `length` bytes, if that shows a request that the front end may
    /// serve.
    pub(crate) fn begin(
        direct: &Arc<Direct>,
        first: &Bytes,
        length: usize,
        arrived_ns: u64,
        deadline_ns: u64,
    ) -> Option<Self> {
        let opening = Opening::read(first)?;
        let flight = direct.admit_upload(first, &opening, (arrived_ns, deadline_ns))?;
        let parts: Vec<_> =
            flight.template().raw_inputs().map(|place| part(place.offset, place.size)).collect();
        let tensors = parts.iter().map(|part| part.header.len() + part.size).sum::<usize>();
        if opening.end + tensors != length {
            return None;
        }
        Some(Self::of_parts(flight, first.slice(..opening.end), parts))
    }

    /// Of a request whose tensors follow `opening` one after another.
    pub(crate) fn bare(flight: Box<Flight>, opening: Bytes) -> Self {
        let part = |place: Place| Part { header: Vec::new(), offset: place.offset, size: place.size };
        let parts = flight.template().raw_inputs().map(part).collect();
        Self::of_parts(flight, opening, parts)
    }

    fn of_parts(flight: Box<Flight>, opening: Bytes, parts: Vec<Part>) -> Self {
        let left = parts.iter().map(|part| part.header.len() + part.size).sum();
        let length = opening.len() + left;
        Self { flight, opening, parts, part: 0, done: 0, left, length }
    }

    /// How long the message is.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// How much of the first piece was the opening.
    pub(crate) fn opening_length(&self) -> usize {
        self.opening.len()
    }

    /// Bytes that are still to come behind the opening.
    pub(crate) fn missing(&self) -> usize {
        self.left
    }

    /// Takes the next piece, at most as much as is missing.
    pub(crate) fn push(&mut self, mut piece: &[u8]) -> Progress {
        let mut taken = 0;
        while let (Some(part), false) = (self.parts.get(self.part), piece.is_empty()) {
            let header = part.header.len();
            let count = if self.done < header {
                let count = piece.len().min(header - self.done);
                if piece[..count] != part.header[self.done..self.done + count] {
                    return Progress::Strange(taken);
                }
                count
            } else {
                let into = self.done - header;
                let count = piece.len().min(part.size - into);
                self.flight.write(part.offset + into, &piece[..count]);
                count
            };
            piece = &piece[count..];
            taken += count;
            self.done += count;
            self.left -= count;
            if self.done == header + part.size {
                (self.part, self.done) = (self.part + 1, 0);
            }
        }
        Progress::Taken
    }

    /// The message so far, as it came.
    pub(crate) fn restore(&self) -> BytesMut {
        let mut message = BytesMut::from(&self.opening[..]);
        for (number, part) in self.parts.iter().enumerate().take(self.part + 1) {
            let done = if number < self.part { part.header.len() + part.size } else { self.done };
            message.extend_from_slice(&part.header[..done.min(part.header.len())]);
            self.flight.read(part.offset, done.saturating_sub(part.header.len()), &mut message);
        }
        message
    }
}

fn part(offset: usize, size: usize) -> Part {
    let mut header = vec![RAW];
    put_varint(size, &mut header);
    Part { header, offset, size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{HEAD, Rig, SLOTS, rebuilt, spec};

    /// A front end that knows requests with two tensors, of 40 and of 20 bytes.
    fn rig() -> Rig {
        let rig = Rig::leased();
        let two = crate::templates::template::TemplateSpec {
            inputs: vec![(40, 0), (20, 64)],
            out_offset: 96,
            ..spec(1)
        };
        rig.direct.add_template(HEAD.to_vec(), two).unwrap();
        rig
    }

    fn message() -> Bytes {
        rebuilt(HEAD, b"42", &[&[1; 40], &[2; 20]])
    }

    fn begin(rig: &Rig, message: &Bytes, first: usize) -> Option<Upload> {
        Upload::begin(&rig.direct, &message.slice(..first), message.len(), 0, 0)
    }

    #[test]
    fn pieces_of_any_length_find_their_place() {
        let (rig, message) = (rig(), message());
        for first in HEAD.len() + 5..message.len() {
            for step in [1, 7, 100] {
                let mut upload = begin(&rig, &message, first).unwrap();
                let opening = upload.opening_length();
                assert_eq!(upload.push(&message[opening..first]), Progress::Taken);
                for piece in message[first..].chunks(step) {
                    assert_eq!(upload.push(piece), Progress::Taken);
                }
                assert_eq!(upload.missing(), 0);
                let mut read = BytesMut::new();
                upload.flight.read(0, 40, &mut read);
                upload.flight.read(64, 20, &mut read);
                assert_eq!(&read[..], [[1; 40].as_slice(), &[2; 20]].concat());
                assert_eq!(upload.restore(), message);
            }
        }
        assert_eq!(rig.free(), SLOTS);
    }

    #[test]
    fn what_is_strange_leaves_the_message_as_it_came() {
        let rig = rig();
        let other = rebuilt(HEAD, b"42", &[&[1; 41], &[2; 19]]); // as long, and otherwise cut
        let mut upload = begin(&rig, &other, 12).unwrap();
        let opening = upload.opening_length();
        let Progress::Strange(taken) = upload.push(&other[opening..]) else { panic!() };
        assert_eq!([&upload.restore()[..], &other[opening + taken..]].concat(), other);
    }

    #[test]
    fn only_what_has_a_template_and_fits_begins() {
        let (rig, message) = (rig(), message());
        assert!(begin(&rig, &message, 2).is_none(), "the opening is not whole");
        let longer = rebuilt(HEAD, b"42", &[&[1; 40], &[2; 21]]);
        assert!(begin(&rig, &longer, 12).is_none());
        let other = rebuilt(b"\x0a\x01n", b"42", &[&[1; 40], &[2; 20]]);
        assert!(begin(&rig, &other, 12).is_none());
        assert_eq!((rig.free(), rig.direct.load(1).0), (SLOTS, 0));
    }

    #[test]
    fn a_request_without_tags_is_put_together_as_it_came() {
        for length in 0..=8 {
            for step in [1, 3, 8] {
                let rig = Rig::leased();
                let mut upload = Upload::bare(Box::new(rig.fly()), Bytes::from_static(b"opening"));
                for piece in b"12345678"[..length].chunks(step) {
                    assert_eq!(upload.push(piece), Progress::Taken);
                }
                assert_eq!(upload.missing(), 8 - length);
                assert_eq!(upload.restore(), [b"opening", &b"12345678"[..length]].concat());
            }
        }
    }
}
