//! Handles: numbers that name an object and can be wrong without harm.
//!
//! An id holds a slot's index, a tag for the sort of object, and the slot's generation, which grows
//! each time the slot is used again. So an id is never 0, and an id that was destroyed, invented or
//! meant for another sort of object differs from every live one. The memory of slots is never freed
//! or moved.
//!
//! A slot's word holds its whole state: its generation, whether its id is OPEN, and how many
//! [`Ref`]s there are. [`Table::get`] adds a `Ref` in the same compare-and-swap that checks the
//! generation, so no lock is held across an operation. [`Table::remove`] clears OPEN: from then on
//! `get` adds none. The thread that drops the last `Ref` of a slot that is not OPEN drops the
//! object and puts the slot on the free list.

use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ops::Deref,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::sync::{AtomicU64, Ordering, broken, fence};

/// An object that a handle can name.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// The tag of this sort of object in its ids, 1 to 15.
    const ID_TAG: u64;

    fn table() -> &'static Table<Self>;
}

const INDEX_BITS: u32 = 28;
/// The number of slots in the first chunk. Each further chunk has twice as many, so few chunks
/// reach far, and a little arithmetic finds a slot.
const FIRST_CHUNK: usize = if cfg!(marline_model) { 1 } else { 64 };
/// The most chunks: as many as the index can name, 64 × (2²² − 1) slots.
const CHUNKS: usize = 22;

const ONE: u64 = 1;
const REFS: u64 = OPEN - 1;
const OPEN: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;

/// All objects of one sort.
pub(crate) struct Table<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<u32>,
    /// The first slot that was never used.
    next: u32,
}

/// A slot has its own cache lines, because other threads use its neighbours.
#[repr(C, align(128))]
struct Slot<T> {
    word: AtomicU64,
    index: u32,
    object: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the object is written before the slot is opened and dropped after the last `Ref`; in
// between it is only shared, and `Object` is `Send + Sync`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// A reference that keeps an object alive and in its place.
pub(crate) struct Ref<T: Object> {
    slot: &'static Slot<T>,
}

impl<T: Object> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free { slots: Vec::new(), next: 0 }),
        }
    }

    /// Gives an object an id. Returns the object if there is no memory or no id left.
    pub(crate) fn insert(&'static self, object: T) -> Result<u64, T> {
        let Some(slot) = self.take_free() else {
            return Err(object);
        };
        let generation = slot.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        // SAFETY: a free slot belongs to the thread that took it off the list.
        unsafe { (*slot.object.get()).write(object) };
        // Release: a thread that sees OPEN sees the object.
        slot.word.store(generation << GENERATION_SHIFT | OPEN, Ordering::Release);
        Ok(generation << GENERATION_SHIFT | T::ID_TAG << INDEX_BITS | u64::from(slot.index))
    }

    /// Returns the object of a live id.
    #[inline(always)]
    pub(crate) fn get(&'static self, id: u64) -> Option<Ref<T>> {
        self.reach(id, |word| word + ONE)
    }

    /// Ends an id and returns its object. None if the id was not live, or if another thread ended
    /// it first.
    pub(crate) fn remove(&'static self, id: u64) -> Option<Ref<T>> {
        self.reach(id, |word| (word & !OPEN) + ONE)
    }

    #[inline(always)]
    fn reach(&'static self, id: u64, change: impl Fn(u64) -> u64) -> Option<Ref<T>> {
        let generation = id >> GENERATION_SHIFT;
        let slot = self.slot(id)?;
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if word & !REFS != generation << GENERATION_SHIFT | OPEN && !broken("check-open") {
                return None;
            }
            // Acquire: this thread sees the object as `insert` wrote it.
            match slot.word.compare_exchange_weak(
                word,
                change(word),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Ref { slot }),
                Err(now) => word = now,
            }
        }
    }

    #[inline(always)]
    fn slot(&'static self, id: u64) -> Option<&'static Slot<T>> {
        let low = id & (OPEN * 2 - 1);
        if low >> INDEX_BITS != T::ID_TAG {
            return None;
        }
        self.slot_at((low & ((1 << INDEX_BITS) - 1)) as usize)
    }

    #[inline(always)]
    fn slot_at(&'static self, index: usize) -> Option<&'static Slot<T>> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    fn take_free(&'static self) -> Option<&'static Slot<T>> {
        let mut free = self.free();
        if let Some(index) = free.slots.pop() {
            return self.slot_at(index as usize);
        }
        let index = free.next;
        let chunk = self.chunks.get(place(index as usize).0)?;
        if chunk.get().is_none() {
            let slots = new_chunk(index)?;
            // Every slot gets room on the free list now, so that putting a slot back cannot fail.
            let every_slot = index as usize + slots.len();
            let missing = every_slot.saturating_sub(free.slots.len());
            free.slots.try_reserve(missing).ok()?;
            // Under the lock, so no other thread has set the chunk.
            let _ = chunk.set(slots);
        }
        free.next += 1;
        self.slot_at(index as usize)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the chunk of a slot, and the slot's place in it.
#[inline(always)]
fn place(index: usize) -> (usize, usize) {
    let from_first = index + FIRST_CHUNK;
    let chunk = (from_first.ilog2() - FIRST_CHUNK.ilog2()) as usize;
    (chunk, from_first - (FIRST_CHUNK << chunk))
}

/// Allocates the chunk that begins with slot `first`.
fn new_chunk<T>(first: u32) -> Option<Box<[Slot<T>]>> {
    let length = FIRST_CHUNK << place(first as usize).0;
    let mut slots = Vec::new();
    slots.try_reserve_exact(length).ok()?;
    slots.extend((first..).take(length).map(|index| Slot {
        word: AtomicU64::new(0),
        index,
        object: UnsafeCell::new(MaybeUninit::uninit()),
    }));
    Some(slots.into_boxed_slice())
}

impl<T: Object> Ref<T> {
    /// Whether the id is still live.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.slot.word.load(Ordering::Acquire) & OPEN != 0
    }

    /// Returns the object, for as long as the caller keeps this reference, and no longer.
    ///
    /// # Safety
    /// Everything derived from the result goes before this reference does.
    #[inline(always)]
    pub(crate) unsafe fn extended(&self) -> &'static T {
        // SAFETY: slots live for ever, and the object until the last reference is gone.
        unsafe { (*self.slot.object.get()).assume_init_ref() }
    }
}

impl<T: Object> Deref for Ref<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the result borrows this reference.
        unsafe { self.extended() }
    }
}

impl<T: Object> Drop for Ref<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: what this reference did to the object happens before the object's end.
        let before = self.slot.word.fetch_sub(ONE, Ordering::Release);
        if before & (OPEN | REFS) == ONE {
            fence(Ordering::Acquire);
            retire(self.slot);
        }
    }
}

/// Drops the object of a slot that no thread can reach, and puts the slot on the free list.
#[cold]
#[inline(never)]
fn retire<T: Object>(slot: &'static Slot<T>) {
    // SAFETY: the last reference is gone, and the slot is not OPEN, so there will be no other.
    unsafe { (*slot.object.get()).assume_init_drop() };
    let generation = (slot.word.load(Ordering::Relaxed) >> GENERATION_SHIFT) + 1;
    if generation > u64::from(u32::MAX) {
        // The generations are used up: the slot stays closed for ever, so that no id comes twice.
        return;
    }
    slot.word.store(generation << GENERATION_SHIFT, Ordering::Relaxed);
    // The lock orders this with the next `insert`.
    T::table().free().slots.push(slot.index);
}

#[cfg(all(test, not(marline_model)))]
mod tests;
