//! Memory for request messages: reserved before it is allocated, given back when its holder goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many bytes of request messages may be held at any time.
pub struct Budget {
    bound: u64,
    used: AtomicU64,
}

/// There is no room for what was asked.
#[derive(Debug, PartialEq, Eq)]
pub struct OverBudget;

impl Budget {
    /// An empty budget.
    pub fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: AtomicU64::new(0) })
    }

    /// Bytes that are reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Whether that much would find room now.
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes as u64 <= self.bound.saturating_sub(self.used())
    }

    /// A reservation of nothing, to be grown.
    pub fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }
}

/// A part of the budget; dropping it gives it back.
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Makes the reservation this large; on failure it stays as it was.
    pub fn resize(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let bytes = bytes as u64;
        if bytes <= self.bytes {
            self.budget.used.fetch_sub(self.bytes - bytes, Relaxed);
        } else {
            let more = bytes - self.bytes;
            self.budget
                .used
                .fetch_update(Relaxed, Relaxed, |used| {
                    used.checked_add(more).filter(|sum| *sum <= self.budget.bound)
                })
                .map_err(|_| OverBudget)?;
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// A buffer that fills up to a bound: memory is taken as bytes really arrive, after it was reserved.
pub struct Assembly {
    buffer: Vec<u8>,
    reservation: Reservation,
    bound: usize,
}

/// Below this the memory is taken at once; above it a buffer is at most four times what has arrived.
const FLOOR: usize = 64 * 1024;

impl Assembly {
    /// A buffer for at most `bound` bytes. Nothing is allocated yet.
    pub fn new(budget: &Arc<Budget>, bound: usize) -> Self {
        Self { buffer: Vec::new(), reservation: budget.reserve(), bound }
    }

    /// How many bytes are still missing to the bound.
    pub fn missing(&self) -> usize {
        self.bound - self.buffer.len()
    }

    /// Appends; the caller has made sure that there are no more than `missing` bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), OverBudget> {
        let needed = self.buffer.len() + bytes.len();
        assert!(needed <= self.bound, "more bytes than the assembly was made for");
        if needed > self.buffer.capacity() {
            let capacity = needed.saturating_mul(4).max(FLOOR).min(self.bound);
            let capacity = match self.reservation.resize(capacity) {
                Ok(()) => capacity,
                Err(OverBudget) => self.reservation.resize(needed).map(|()| needed)?, // the last of the room
            };
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The message, with the reservation for exactly what it holds.
    pub fn finish(mut self) -> Message {
        if self.buffer.capacity() > self.buffer.len() + self.buffer.len() / 2 {
            self.buffer.shrink_to_fit();
        }
        let _ = self.reservation.resize(self.buffer.capacity()); // never more than before
        Message { bytes: self.buffer.into(), reservation: self.reservation }
    }
}

/// A whole request message and its part of the budget.
pub struct Message {
    /// What the client sent, without prefix and compression.
    pub bytes: bytes::Bytes,
    /// Given back when the message is dropped.
    pub reservation: Reservation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_given_back_when_it_is_dropped() {
        let budget = Budget::new(100);
        let mut one = budget.reserve();
        let mut two = budget.reserve();
        one.resize(60).unwrap();
        assert_eq!(two.resize(41), Err(OverBudget));
        assert!(budget.has_room(40) && !budget.has_room(41));
        two.resize(40).unwrap();
        one.resize(10).unwrap();
        assert_eq!(budget.used(), 50);
        drop(one);
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_announced_message_does_not_take_its_memory_before_it_arrives() {
        let budget = Budget::new(64 << 20);
        let mut assembly = Assembly::new(&budget, 64 << 20);
        assembly.push(&[1; 1000]).unwrap();
        assert_eq!(budget.used(), FLOOR as u64);
        assembly.push(&[2; 100_000]).unwrap();
        assert!(budget.used() <= 4 * 101_000);
    }

    #[test]
    fn an_assembly_holds_what_was_pushed() {
        let budget = Budget::new(1 << 20);
        let mut assembly = Assembly::new(&budget, 300_000);
        for part in 0..3u8 {
            assembly.push(&[part; 100_000]).unwrap();
        }
        assert_eq!(assembly.missing(), 0);
        let message = assembly.finish();
        assert_eq!(message.bytes.len(), 300_000);
        assert_eq!((message.bytes[0], message.bytes[150_000], message.bytes[299_999]), (0, 1, 2));
        assert_eq!(budget.used(), 300_000);
        drop(message);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_assembly_beyond_the_budget_is_refused_before_memory_is_taken() {
        let budget = Budget::new(FLOOR as u64);
        let mut assembly = Assembly::new(&budget, 1 << 20);
        assembly.push(&[0; FLOOR]).unwrap();
        assert_eq!(assembly.push(&[0; 1]), Err(OverBudget));
        drop(assembly);
        assert_eq!(budget.used(), 0);
    }
}
