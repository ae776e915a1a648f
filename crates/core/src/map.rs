//! Hash maps that iterate in the same order in every run, so that a simulation replays.
//!
//! The keys are ids, which authenticated clients draw from a good random source, numbers that this
//! process counts, and demands of work (`Demand`), which contain names that people choose. So the
//! hash is quick, and does not resist chosen keys. Maps by a name alone are ordered maps instead.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with the same order in every run.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;
/// A hash set with the same order in every run.
pub type Set<K> = HashSet<K, BuildHasherDefault<Fold>>;

/// A hasher that folds words together with one multiplication each.
#[derive(Clone, Copy, Default)]
pub struct Fold(u64);

impl Fold {
    fn mix(&mut self, word: u64) {
        // An odd constant without structure (the golden ratio); folding brings the high bits down.
        let product = u128::from(self.0.rotate_left(23) ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }
    fn write_u8(&mut self, word: u8) {
        self.mix(u64::from(word));
    }
    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }
    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
