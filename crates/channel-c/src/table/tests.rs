//! The handle table by itself: generations, reuse, and destroy against use.

use super::*;
use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// Object types. Each test has its own, since tables are process-wide. Only [`Counted`] counts how
/// many of its objects were dropped.
macro_rules! objects {
    ($($Name:ident = $sort:literal),*) => {$(
        struct $Name(#[allow(dead_code, reason = "held for its drop")] Arc<Ends>);
        impl Object for $Name {
            const ID_TAG: u64 = $sort;
            fn table() -> &'static Table<$Name> {
                static TABLE: Table<$Name> = Table::new();
                &TABLE
            }
        }
    )*};
}
objects!(Reused = 1, Kept = 2, Raced = 3, Many = 4, Worn = 15);

#[derive(Default)]
struct Ends(AtomicUsize);

struct Counted(Arc<Ends>);
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Relaxed);
    }
}
impl Object for Counted {
    const ID_TAG: u64 = 5;
    fn table() -> &'static Table<Counted> {
        static TABLE: Table<Counted> = Table::new();
        &TABLE
    }
}

fn insert<T: Object>(object: T) -> u64 {
    T::table().insert(object).ok().expect("there is room")
}

#[test]
fn a_removed_id_is_never_live_again_although_its_slot_is_reused() {
    let mut seen = vec![];
    for _ in 0..100 {
        let id = insert(Reused(Arc::default()));
        assert_ne!(id, 0);
        assert!(!seen.contains(&id));
        assert!(Reused::table().get(id).is_some());
        assert!(Reused::table().remove(id).is_some());
        assert!(Reused::table().remove(id).is_none(), "removed twice");
        seen.push(id);
    }
    assert!(seen.iter().all(|id| Reused::table().get(*id).is_none()));
    let slots: std::collections::HashSet<u64> = seen.iter().map(|id| id & 0xfff_ffff).collect();
    assert_eq!(slots.len(), 1, "all ids had one slot");
}

#[test]
fn an_object_lives_until_its_last_reference_is_gone() {
    let ends = Arc::new(Ends::default());
    let id = insert(Counted(ends.clone()));
    let held = Counted::table().get(id).unwrap();
    let removed = Counted::table().remove(id).unwrap();
    assert!(!held.is_open());
    drop(removed);
    assert_eq!(ends.0.load(Relaxed), 0, "a reference is left");
    drop(held);
    assert_eq!(ends.0.load(Relaxed), 1);
}

#[test]
fn ids_that_were_never_issued_are_not_live() {
    let id = insert(Kept(Arc::default()));
    let other_sort = id & !(0xf << INDEX_BITS) | 3 << INDEX_BITS;
    let next_slot = id + 1;
    let next_generation = id + (1 << GENERATION_SHIFT);
    for wrong in [0, 1, u64::MAX, other_sort, next_slot, next_generation, !id] {
        assert!(Kept::table().get(wrong).is_none(), "{wrong:#x}");
        assert!(Kept::table().remove(wrong).is_none(), "{wrong:#x}");
    }
    assert!(Kept::table().get(id).is_some());
}

#[test]
fn objects_have_distinct_ids_and_free_slots_are_reused() {
    let ids: Vec<u64> = (0..10_000).map(|_| insert(Many(Arc::default()))).collect();
    let distinct: std::collections::HashSet<&u64> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    for id in ids {
        assert!(Many::table().remove(id).is_some());
    }
    assert_eq!(Many::table().free().next, 10_000);
    insert(Many(Arc::default()));
    assert_eq!(Many::table().free().next, 10_000, "a free slot is used first");
}

#[test]
fn a_slot_without_generations_left_is_not_reused() {
    let id = insert(Worn(Arc::default()));
    let slot = Worn::table().slot(id).unwrap();
    let last = u64::from(u32::MAX);
    slot.word.store(last << GENERATION_SHIFT | OPEN, Relaxed);
    let id = id | last << GENERATION_SHIFT;
    assert!(Worn::table().remove(id).is_some());
    assert_ne!(insert(Worn(Arc::default())) & 0xfff_ffff, id & 0xfff_ffff);
    assert!(Worn::table().get(id).is_none());
}

#[test]
fn one_of_two_destroyers_wins_while_other_threads_use_the_object() {
    const ROUNDS: usize = 200;
    const THREADS: usize = 4;
    let ends = Arc::new(Ends::default());
    for _ in 0..ROUNDS {
        let id = insert(Raced(ends.clone()));
        let (start, won) = (Barrier::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (start, won) = (&start, &won);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..50 {
                        if let Some(held) = Raced::table().get(id) {
                            assert!(Arc::strong_count(&held.0) > 1, "the object is alive");
                        }
                    }
                    if number < 2 && Raced::table().remove(id).is_some() {
                        won.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(won.load(Relaxed), 1);
        assert!(Raced::table().get(id).is_none());
    }
    assert_eq!(Arc::strong_count(&ends), 1, "every object was dropped");
}
