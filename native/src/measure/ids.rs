//! Maps by ids that the front end or Python gave out. They are small numbers that no client chooses, so a hash need
//! not resist anyone, and they are looked up several times for each request.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by ids.
pub(crate) type ById<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Mixes ids of up to 64 bits, one or several.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15); // the table looks at the upper bits, too
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
