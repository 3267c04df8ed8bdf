//! Slots of the arena that the engine has left to the front end, and the arena itself.
//!
//! The arena is shared with workers, which may write to any of it at any time. So nothing here ever makes a reference
//! to its bytes: they are copied in and out through raw pointers, and what is copied out is never trusted.

use bytes::{BufMut, BytesMut};
use std::io::{Error, Result};
use std::os::fd::RawFd;

/// The arena, mapped.
pub(crate) struct Arena {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping is never changed or unmapped while this lives, and is only copied to and from; see above.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `length` bytes of the arena behind a descriptor, which stays the caller's.
    pub(crate) fn map(descriptor: RawFd, length: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; a bad descriptor or length is an error.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Self { base: base.cast(), length })
    }

    /// Its size in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn check(&self, offset: usize, size: usize) {
        assert!(
            offset.checked_add(size).is_some_and(|end| end <= self.length),
            "{size} bytes at {offset} lie outside of the arena"
        );
    }

    /// Copies bytes into the arena.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range was checked to lie in the mapping; the source is ours and cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    /// Appends bytes of the arena.
    pub(crate) fn append_to(&self, offset: usize, size: usize, into: &mut BytesMut) {
        self.check(offset, size);
        into.reserve(size);
        // SAFETY: the range was checked to lie in the mapping; `into` has room for as much, which is written before it
        // is counted, and cannot overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.add(offset).cast_const(),
                into.chunk_mut().as_mut_ptr(),
                size,
            );
            into.advance_mut(size);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length, and no pointer into it is left.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    class: usize,
    /// Where it begins in the arena.
    pub(crate) offset: usize,
}

struct SizeClass {
    size: usize,
    free: Vec<usize>,
}

/// The slots that are free, by size. Used last in, first out, so that few pages are touched.
#[derive(Default)]
pub(crate) struct Slots(Vec<SizeClass>);

impl Slots {
    /// Slots given as size and offsets, ascending by size, all of them inside an arena of `length` bytes.
    pub(crate) fn new(classes: Vec<(usize, Vec<usize>)>, length: usize) -> std::result::Result<Self, String> {
        let outside = |size: usize, offset: usize| offset.checked_add(size).is_none_or(|end| end > length);
        for (size, offsets) in &classes {
            if let Some(offset) = offsets.iter().find(|offset| outside(*size, **offset)) {
                return Err(format!("the slot of {size} bytes at {offset} lies outside of the arena"));
            }
        }
        if !classes.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Err("the sizes of slots must ascend".into());
        }
        Ok(Self(classes.into_iter().map(|(size, free)| SizeClass { size, free }).collect()))
    }

    /// A slot of at least `span` bytes, of the smallest size that has one free.
    pub(crate) fn take(&mut self, span: usize) -> Option<Slot> {
        let mut fitting = self.0.iter_mut().enumerate().filter(|(_, class)| class.size >= span);
        fitting.find_map(|(class, slots)| slots.free.pop().map(|offset| Slot { class, offset }))
    }

    /// Gives a slot back; it may not be written to any more.
    pub(crate) fn give(&mut self, slot: Slot) {
        self.0[slot.class].free.push(slot.offset);
    }

    /// How many slots of each size are free.
    pub(crate) fn free(&self) -> Vec<usize> {
        self.0.iter().map(|class| class.free.len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// An arena of `length` bytes of its own.
    fn arena(length: usize) -> Arena {
        // SAFETY: a valid name; the descriptor is new and has no other owner.
        let memory = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"arena".as_ptr(), 0)) };
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::ftruncate(memory.as_raw_fd(), length as i64) }, 0);
        Arena::map(memory.as_raw_fd(), length).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let arena = arena(4096);
        arena.write(4090, b"123456");
        let mut read = BytesMut::from(&b"0"[..]);
        arena.append_to(4090, 6, &mut read);
        assert_eq!(&read[..], b"0123456");
    }

    #[test]
    #[should_panic(expected = "outside of the arena")]
    fn nothing_is_written_outside() {
        arena(4096).write(4091, b"123456");
    }

    #[test]
    fn the_smallest_slot_that_fits_and_is_free_is_taken() {
        let mut slots = Slots::new(vec![(64, vec![0, 64]), (256, vec![128])], 384).unwrap();
        let (a, b, c) = (slots.take(1).unwrap(), slots.take(64).unwrap(), slots.take(10).unwrap());
        assert_eq!((a.offset, b.offset, c.offset), (64, 0, 128));
        assert!(slots.take(1).is_none() && slots.take(257).is_none());
        slots.give(b);
        assert_eq!(slots.take(65), None);
        assert_eq!(slots.take(64), Some(b));
        slots.give(c);
        assert_eq!(slots.free(), [0, 1]);
    }

    #[test]
    fn slots_outside_of_the_arena_are_refused() {
        assert!(Slots::new(vec![(64, vec![1])], 64).is_err());
        assert!(Slots::new(vec![(64, vec![usize::MAX])], 64).is_err());
        assert!(Slots::new(vec![(64, vec![]), (64, vec![])], 64).is_err());
    }
}
