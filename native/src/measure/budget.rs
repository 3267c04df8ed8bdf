//! Memory for messages: reserved before it is allocated, given back when its holder goes.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many bytes of messages may be held at any time, by all or by one connection.
pub(crate) struct Budget {
    bound: u64,
    used: AtomicU64,
    whole: Option<Arc<Budget>>,
}

/// There is no room for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverBudget {
    /// In the budget of all.
    Whole,
    /// In the share of this one.
    Share,
}

impl Budget {
    /// An empty budget.
    pub(crate) fn new(bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: AtomicU64::new(0), whole: None })
    }

    /// A share for one holder: what is reserved in it is reserved in the whole as well.
    pub(crate) fn share(self: &Arc<Self>, bound: u64) -> Arc<Self> {
        Arc::new(Self { bound, used: AtomicU64::new(0), whole: Some(self.clone()) })
    }

    /// Bytes that are reserved now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Whether that much would find room now.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), OverBudget> {
        self.whole.as_ref().map_or(Ok(()), |whole| whole.check_room(bytes))?;
        if bytes as u64 > self.bound.saturating_sub(self.used()) { Err(self.over()) } else { Ok(()) }
    }

    fn over(&self) -> OverBudget {
        if self.whole.is_some() { OverBudget::Share } else { OverBudget::Whole }
    }

    fn take(&self, bytes: u64) -> Result<(), OverBudget> {
        self.whole.as_ref().map_or(Ok(()), |whole| whole.take(bytes))?;
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bound);
        if self.used.fetch_update(Relaxed, Relaxed, more).is_ok() {
            return Ok(());
        }
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
        Err(self.over())
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }

    /// A reservation of nothing, to be grown.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation { budget: self.clone(), bytes: 0 }
    }
}

/// A part of the budget; dropping it gives it back.
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Makes the reservation this large; on failure it stays as it was.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let bytes = bytes as u64;
        if bytes <= self.bytes {
            self.budget.give_back(self.bytes - bytes);
        } else {
            self.budget.take(bytes - self.bytes)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Takes over what another one holds of the same budget.
    pub(crate) fn join(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.budget, &other.budget), "reservations of two budgets");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// These bytes, which hold their part of the budget for as long as any part of them is there.
    pub(crate) fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Held(bytes, self))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Bytes with their part of a budget.
struct Held<B>(B, #[allow(dead_code)] Reservation);

impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// A buffer that fills up to a bound: memory is taken as bytes really arrive, after it was reserved.
pub(crate) struct Assembly {
    buffer: Vec<u8>,
    reservation: Reservation,
    bound: usize,
}

/// Below this the memory is taken at once; above it a buffer is at most four times what has arrived.
const FLOOR: usize = 64 * 1024;

impl Assembly {
    /// A buffer for at most `bound` bytes. Nothing is allocated yet.
    pub(crate) fn new(budget: &Arc<Budget>, bound: usize) -> Self {
        Self { buffer: Vec::new(), reservation: budget.reserve(), bound }
    }

    /// How many bytes are still missing to the bound.
    pub(crate) fn missing(&self) -> usize {
        self.bound - self.buffer.len()
    }

    /// Appends; the caller has made sure that there are no more than `missing` bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), OverBudget> {
        let needed = self.buffer.len() + bytes.len();
        assert!(needed <= self.bound, "more bytes than the assembly was made for");
        if needed > self.buffer.capacity() {
            let capacity = needed.saturating_mul(4).max(FLOOR).min(self.bound);
            let capacity = match self.reservation.resize(capacity) {
                Ok(()) => capacity,
                Err(_) => self.reservation.resize(needed).map(|()| needed)?, // the last of the room
            };
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The message, with the reservation for exactly what it holds.
    pub(crate) fn finish(mut self) -> Message {
        if self.buffer.capacity() > self.buffer.len() + self.buffer.len() / 2 {
            self.buffer.shrink_to_fit();
        }
        let _ = self.reservation.resize(self.buffer.capacity()); // never more than before
        Message { bytes: self.buffer.into(), reservation: self.reservation }
    }
}

/// A whole request message and its part of the budget.
pub(crate) struct Message {
    /// What the client sent, without prefix and compression.
    pub(crate) bytes: Bytes,
    /// Given back when the message is dropped.
    #[allow(dead_code)] // held, and never read
    pub(crate) reservation: Reservation,
}

/// Messages beyond this take most of what they were read with.
const SMALL: usize = 32 * 1024;

impl Message {
    /// For one that is to wait: a small one has memory of its own from here on, since it would keep all that was read
    /// with it, which no budget knows.
    pub(crate) fn settle(&mut self) {
        if self.bytes.len() <= SMALL {
            self.bytes = Bytes::copy_from_slice(&self.bytes);
        }
    }
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
        assert_eq!(two.resize(41), Err(OverBudget::Whole));
        assert_eq!((budget.check_room(40), budget.check_room(41)), (Ok(()), Err(OverBudget::Whole)));
        two.resize(40).unwrap();
        one.resize(10).unwrap();
        assert_eq!(budget.used(), 50);
        drop(one);
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn joined_reservations_are_given_back_once() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (budget.reserve(), budget.reserve());
        one.resize(60).unwrap();
        two.resize(30).unwrap();
        one.join(two);
        assert_eq!(budget.used(), 90);
        drop(one);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_share_is_bounded_by_itself_and_by_the_whole() {
        let whole = Budget::new(100);
        let (one, two) = (whole.share(60), whole.share(60));
        let (mut first, mut second) = (one.reserve(), two.reserve());
        assert_eq!(first.resize(61), Err(OverBudget::Share));
        first.resize(60).unwrap();
        assert_eq!(second.resize(41), Err(OverBudget::Whole));
        assert_eq!((whole.used(), two.used()), (60, 0), "a refusal leaves nothing behind");
        assert_eq!(two.check_room(41), Err(OverBudget::Whole));
        second.resize(40).unwrap();
        assert_eq!(whole.used(), 100);
        drop((first, second));
        assert_eq!((whole.used(), one.used(), two.used()), (0, 0, 0));
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
    fn held_bytes_give_back_when_their_last_part_goes() {
        let budget = Budget::new(100);
        let mut reservation = budget.reserve();
        reservation.resize(4).unwrap();
        let mut whole = reservation.hold(vec![1, 2, 3, 4]);
        let part = whole.split_to(1);
        drop(whole);
        assert_eq!((budget.used(), &part[..]), (4, &[1][..]));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_small_message_that_waits_keeps_nothing_that_was_read_with_it() {
        let budget = Budget::new(100);
        for (length, keeps) in [(300, false), (SMALL, false), (SMALL + 1, true)] {
            let block = Bytes::from(vec![7; 2 * SMALL]);
            let mut message = Message { bytes: block.slice(..length), reservation: budget.reserve() };
            message.settle();
            assert_eq!((message.bytes.len(), message.bytes[length - 1]), (length, 7));
            assert_eq!(block.is_unique(), !keeps, "{length}");
        }
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
        assert_eq!(assembly.push(&[0; 1]), Err(OverBudget::Whole));
        drop(assembly);
        assert_eq!(budget.used(), 0);
    }
}
