//! Slots of the arena that the engine has left to the front end, and the memory behind them.
//!
//! Each group of workers has a memory object of its own, as large as the arena; a slot is the same place in all of them,
//! and its tensors lie in the object of whoever runs them. A slot has pages in one object at a time.
//!
//! Workers may write to any of their object at any time. So nothing here ever makes a reference to its bytes: they are
//! copied in and out through raw pointers, and what is copied out is never trusted.

use crate::measure::ids::ById;
use bytes::{BufMut, BytesMut};
use std::io::{Error, Result};
use std::os::fd::RawFd;
use std::sync::Arc;

/// The memory object of one group, mapped.
pub(crate) struct MemoryObject {
    /// Which one it is: never used for another.
    pub(crate) number: u32,
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping is never changed or unmapped while this lives, and is only copied to and from; see above.
unsafe impl Send for MemoryObject {}
// SAFETY: as above.
unsafe impl Sync for MemoryObject {}

impl MemoryObject {
    /// Maps `length` bytes behind a descriptor, which stays the caller's.
    pub(crate) fn map(number: u32, descriptor: RawFd, length: usize) -> Result<Self> {
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
        Ok(Self { number, base: base.cast(), length })
    }

    fn check(&self, offset: usize, size: usize) {
        assert!(
            offset.checked_add(size).is_some_and(|end| end <= self.length),
            "{size} bytes at {offset} lie outside of the memory"
        );
    }

    /// Copies bytes into it.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range was checked to lie in the mapping; the source is ours and cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    /// Appends bytes of it.
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

    /// Gives the pages of whole pages of it back to the kernel.
    fn discard(&self, offset: usize, size: usize) {
        self.check(offset, size);
        // SAFETY: the range was checked to lie in the mapping, to which no reference is made. What fails costs memory.
        unsafe { libc::madvise(self.base.add(offset).cast(), size, libc::MADV_REMOVE) };
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length, and no pointer into it is left.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    class: usize,
    /// The memory object that its tensors lie in.
    object: u32,
    /// Where it begins there.
    pub(crate) offset: usize,
}

/// What another object has still of a slot that was taken.
pub(crate) struct Leftover {
    object: Arc<MemoryObject>,
    offset: usize,
    size: usize,
}

impl Leftover {
    /// Gives it back to the kernel, which takes a while if it is much.
    pub(crate) fn discard(self) {
        self.object.discard(self.offset, self.size);
    }
}

/// Free slots of one size: those that have pages in an object, by its number, and the others.
struct SizeClass {
    size: usize,
    warm: ById<u32, Vec<usize>>,
    blank: Vec<usize>,
}

impl SizeClass {
    /// A free slot, rather one that has its pages in this object; and the other one in which it has them.
    fn take(&mut self, object: u32) -> Option<(usize, Option<u32>)> {
        if let Some(offset) = self.warm.get_mut(&object).and_then(Vec::pop).or_else(|| self.blank.pop()) {
            return Some((offset, None));
        }
        self.warm.iter_mut().find_map(|(last, offsets)| Some((offsets.pop()?, Some(*last))))
    }
}

/// An object that lanes share with their workers, and how many do.
struct Shared {
    object: Arc<MemoryObject>,
    lanes: usize,
}

/// The slots that are free, by size, and the objects in which they may be used. Those of an object are used last in,
/// first out, so that few pages are touched.
#[derive(Default)]
pub(crate) struct Slots {
    classes: Vec<SizeClass>,
    objects: ById<u32, Shared>,
    length: usize,
}

impl Slots {
    /// Slots given as size and offsets, ascending by size, all of them inside objects of `length` bytes.
    pub(crate) fn new(classes: Vec<(usize, Vec<usize>)>, length: usize) -> std::result::Result<Self, String> {
        let outside = |size: usize, offset: usize| offset.checked_add(size).is_none_or(|end| end > length);
        for (size, offsets) in &classes {
            if let Some(offset) = offsets.iter().find(|offset| outside(*size, **offset)) {
                return Err(format!("the slot of {size} bytes at {offset} lies outside of the memory"));
            }
        }
        if !classes.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Err("the sizes of slots must ascend".into());
        }
        let class = |(size, blank)| SizeClass { size, warm: ById::default(), blank };
        Ok(Self { classes: classes.into_iter().map(class).collect(), objects: ById::default(), length })
    }

    /// The object with this number, which lies behind `descriptor` if it is not known yet.
    pub(crate) fn object(&self, number: u32, descriptor: RawFd) -> Result<Arc<MemoryObject>> {
        match self.objects.get(&number) {
            Some(shared) => Ok(shared.object.clone()),
            None => Ok(Arc::new(MemoryObject::map(number, descriptor, self.length)?)),
        }
    }

    /// One more lane shares this object.
    pub(crate) fn share(&mut self, object: &Arc<MemoryObject>) {
        let new = || Shared { object: object.clone(), lanes: 0 };
        self.objects.entry(object.number).or_insert_with(new).lanes += 1;
    }

    /// A lane that shared this object is closed. That of the last one goes, with its pages.
    pub(crate) fn leave(&mut self, number: u32) {
        let Some(shared) = self.objects.get_mut(&number) else { return };
        shared.lanes -= 1;
        if shared.lanes == 0 {
            self.objects.remove(&number);
            for class in &mut self.classes {
                class.blank.append(&mut class.warm.remove(&number).unwrap_or_default());
            }
        }
    }

    /// A slot of at least `span` bytes in this object, of the smallest size that has one free; and what is to be
    /// discarded of it before it is written to.
    pub(crate) fn take(&mut self, span: usize, object: u32) -> Option<(Slot, Option<Leftover>)> {
        let mut fitting = self.classes.iter_mut().enumerate().filter(|(_, class)| class.size >= span);
        let (class, size, (offset, last)) =
            fitting.find_map(|(number, class)| Some((number, class.size, class.take(object)?)))?;
        let last = last.and_then(|last| self.objects.get(&last));
        let leftover = last.map(|last| Leftover { object: last.object.clone(), offset, size });
        Some((Slot { class, object, offset }, leftover))
    }

    /// Gives a slot back; it may not be written to any more.
    pub(crate) fn give(&mut self, slot: Slot) {
        let class = &mut self.classes[slot.class];
        if self.objects.contains_key(&slot.object) {
            class.warm.entry(slot.object).or_default().push(slot.offset);
        } else {
            class.blank.push(slot.offset);
        }
    }

    /// How many slots of each size are free.
    pub(crate) fn free(&self) -> Vec<usize> {
        let free = |class: &SizeClass| class.blank.len() + class.warm.values().map(Vec::len).sum::<usize>();
        self.classes.iter().map(free).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// An object of `length` bytes, and its descriptor.
    fn shared(number: u32, length: usize) -> (Arc<MemoryObject>, OwnedFd) {
        // SAFETY: a valid name; the descriptor is new and has no other owner.
        let memory = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"arena".as_ptr(), 0)) };
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::ftruncate(memory.as_raw_fd(), length as i64) }, 0);
        (Arc::new(MemoryObject::map(number, memory.as_raw_fd(), length).unwrap()), memory)
    }

    /// Two slots of a page for two objects.
    fn two_of_two() -> (Slots, [(Arc<MemoryObject>, OwnedFd); 2]) {
        let mut slots = Slots::new(vec![(4096, vec![0, 4096])], 8192).unwrap();
        let objects = [shared(1, 8192), shared(2, 8192)];
        objects.iter().for_each(|(object, _)| slots.share(object));
        (slots, objects)
    }

    fn pages(memory: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::File::from(memory.try_clone().unwrap()).metadata().unwrap().blocks() * 512 / 4096
    }

    #[test]
    fn what_was_written_is_read() {
        let (object, _) = shared(1, 4096);
        object.write(4090, b"123456");
        let mut read = BytesMut::from(&b"0"[..]);
        object.append_to(4090, 6, &mut read);
        assert_eq!(&read[..], b"0123456");
    }

    #[test]
    #[should_panic(expected = "outside of the memory")]
    fn nothing_is_written_outside() {
        shared(1, 4096).0.write(4091, b"123456");
    }

    #[test]
    fn the_smallest_slot_that_fits_and_is_free_is_taken() {
        let mut slots = Slots::new(vec![(64, vec![0, 64]), (256, vec![128])], 384).unwrap();
        let mut take = |span| slots.take(span, 1).map(|(slot, _)| slot);
        let (a, b, c) = (take(1).unwrap(), take(64).unwrap(), take(10).unwrap());
        assert_eq!((a.offset, b.offset, c.offset), (64, 0, 128));
        assert!(take(1).is_none() && take(257).is_none());
        slots.give(b);
        assert!(slots.take(65, 1).is_none());
        assert_eq!(slots.take(64, 1).unwrap().0, b);
        slots.give(c);
        assert_eq!(slots.free(), [0, 1]);
    }

    #[test]
    fn slots_outside_of_the_memory_are_refused() {
        assert!(Slots::new(vec![(64, vec![1])], 64).is_err());
        assert!(Slots::new(vec![(64, vec![usize::MAX])], 64).is_err());
        assert!(Slots::new(vec![(64, vec![]), (64, vec![])], 64).is_err());
    }

    #[test]
    fn a_slot_goes_back_to_the_object_that_has_its_pages() {
        let (mut slots, _objects) = two_of_two();
        let (one, other) = (slots.take(1, 1).unwrap().0, slots.take(1, 2).unwrap().0);
        slots.give(one);
        slots.give(other);
        assert_eq!(slots.take(1, 1).unwrap().0, one, "not the last one that was given back");
        assert_eq!(slots.take(1, 2).unwrap().0, other);
    }

    #[test]
    fn a_slot_has_pages_in_one_object_at_a_time() {
        let (mut slots, [(one, memory), (other, _)]) = two_of_two();
        let mut mine: Vec<_> = (0..2).map(|_| slots.take(1, 1).unwrap().0).collect();
        mine.iter().for_each(|slot| one.write(slot.offset, b"mine"));
        assert_eq!(pages(&memory), 2);
        slots.give(mine.pop().unwrap());
        let (theirs, leftover) = slots.take(1, 2).unwrap();
        leftover.expect("its pages are still the other's").discard();
        assert_eq!(pages(&memory), 1);
        let mut read = BytesMut::new();
        other.append_to(theirs.offset, 4, &mut read);
        assert_eq!(&read[..], [0; 4], "nothing of it is to be seen where it was not written");
    }

    #[test]
    fn an_object_goes_with_its_last_lane() {
        let (mut slots, [(one, _memory), _]) = two_of_two();
        slots.share(&one);
        let (used, free) = (slots.take(1, 1).unwrap().0, slots.take(1, 1).unwrap().0);
        slots.give(free);
        slots.leave(1);
        assert!(Arc::ptr_eq(&one, &slots.object(1, -1).unwrap()), "there is a lane yet");
        slots.leave(1);
        assert!(slots.object(1, -1).is_err());
        slots.give(used);
        assert_eq!(slots.free(), [2]);
        assert!((0..2).all(|_| slots.take(1, 2).unwrap().1.is_none()), "nothing is left of it");
    }
}
