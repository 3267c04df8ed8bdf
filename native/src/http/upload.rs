//! The binary tensors of a large HTTP request on their way into its slot: each piece is copied to where it belongs as
//! it arrives, while it is warm, and nothing is gathered before. Should the rest not come, or the worker not do it,
//! the request is put together again, as it was.

use crate::fastpath::flight::Flight;
use crate::templates::template::Place;
use bytes::BytesMut;

/// From this length on it pays to copy tensors as they arrive.
pub(crate) const UPLOAD: usize = 32 * 1024;

/// See the head of this file.
pub(crate) struct Upload {
    /// All before the tensors.
    opening: BytesMut,
    places: Vec<Place>,
    place: usize,
    done: usize,
    missing: usize,
}

impl Upload {
    /// Of the tensors that follow `opening`.
    pub(crate) fn new(flight: &Flight, opening: BytesMut) -> Self {
        let places: Vec<_> = flight.template().raw_inputs().collect();
        Self { opening, places, place: 0, done: 0, missing: flight.template().raw_bytes() }
    }

    /// Bytes that are still to come.
    pub(crate) fn missing(&self) -> usize {
        self.missing
    }

    /// Takes the next piece, at most as much as is missing.
    pub(crate) fn push(&mut self, flight: &Flight, mut piece: &[u8]) {
        while let (Some(place), false) = (self.places.get(self.place), piece.is_empty()) {
            let count = piece.len().min(place.size - self.done);
            flight.write(place.offset + self.done, &piece[..count]);
            piece = &piece[count..];
            self.done += count;
            self.missing -= count;
            if self.done == place.size {
                (self.place, self.done) = (self.place + 1, 0);
            }
        }
    }

    /// The request so far, as it came.
    pub(crate) fn restore(self, flight: &Flight) -> BytesMut {
        let mut message = self.opening;
        for (number, place) in self.places.iter().enumerate().take(self.place + 1) {
            let done = if number < self.place { place.size } else { self.done };
            flight.read(place.offset, done, &mut message);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::Rig;

    #[test]
    fn a_request_is_put_together_as_it_came() {
        let rig = Rig::leased();
        let flight = rig.fly();
        for length in 0..=8 {
            for step in [1, 3, 8] {
                let mut upload = Upload::new(&flight, BytesMut::from(&b"opening"[..]));
                b"12345678"[..length].chunks(step).for_each(|piece| upload.push(&flight, piece));
                assert_eq!(upload.missing(), 8 - length);
                assert_eq!(upload.restore(&flight), [b"opening", &b"12345678"[..length]].concat());
            }
        }
    }
}
