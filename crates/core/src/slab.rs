//! Values in rows, which are in chunks that are full: what is kept of very many things takes no more than they do,
//! and nothing is moved as they become more. A row is used again when what had it is gone.

use std::num::NonZeroU32;

/// Where something stands in a [`Slab`], until it is removed: four bytes, also where there may be none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Row(NonZeroU32);

impl Row {
    fn of(index: usize) -> Row {
        let row = u32::try_from(index + 1).ok().and_then(Row::from_number);
        row.expect("there are fewer than four billion")
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// It, as a number, which is never 0.
    pub fn number(self) -> u32 {
        self.0.get()
    }

    /// Which row has this number.
    pub fn from_number(number: u32) -> Option<Row> {
        NonZeroU32::new(number).map(Row)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    /// The one that is used next, if one is free.
    free: Option<Row>,
    len: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Full(T),
    /// And which is the next that is free.
    Free(Option<Row>),
}

/// So many in a chunk.
const CHUNK: usize = 64;

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: None, len: 0 }
    }
}

impl<T> Slab<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one, and says where it stands.
    pub fn insert(&mut self, value: T) -> Row {
        self.len += 1;
        if let Some(row) = self.free {
            let slot = self.slot_mut(row).expect("it was used before");
            let Slot::Free(next) = std::mem::replace(slot, Slot::Full(value)) else {
                panic!("{row:?} is free");
            };
            self.free = next;
            return row;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("it was added");
        chunk.push(Slot::Full(value));
        Row::of(before + chunk.len() - 1)
    }

    fn slot_mut(&mut self, row: Row) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(row.index() / CHUNK)?.get_mut(row.index() % CHUNK)
    }

    /// What stands there.
    pub fn get(&self, row: Row) -> Option<&T> {
        match self.chunks.get(row.index() / CHUNK)?.get(row.index() % CHUNK)? {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, row: Row) -> Option<&mut T> {
        match self.slot_mut(row)? {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Takes out what stands there. When nothing is left, its memory is given back.
    pub fn remove(&mut self, row: Row) -> Option<T> {
        self.get(row)?;
        let next = self.free;
        let slot = self.slot_mut(row).expect("something stands there");
        let Slot::Full(value) = std::mem::replace(slot, Slot::Free(next)) else {
            panic!("{row:?} is not free");
        };
        self.free = Some(row);
        self.len -= 1;
        if self.is_empty() {
            *self = Slab::default();
        }
        Some(value)
    }

    /// All of them, by where they stand.
    pub fn iter(&self) -> impl Iterator<Item = (Row, &T)> {
        let slots = self.chunks.iter().flatten().enumerate();
        slots.filter_map(|(index, slot)| match slot {
            Slot::Full(value) => Some((Row::of(index), value)),
            Slot::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_what_a_map_is_that_says_its_keys() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut slab, mut expected) = (Slab::default(), BTreeMap::new());
            let most = 1 + random.below(300) as usize;
            for step in 0..2000_u64 {
                let any = |random: &mut Random| Row::of(random.below(most as u64) as usize);
                let grows = (step / 400) % 2 == 0 && expected.len() < most;
                if grows || random.one_in(3) {
                    let row = slab.insert(step);
                    assert!(expected.insert(row, step).is_none(), "{row:?} is in use");
                } else {
                    let row = any(&mut random);
                    assert_eq!(slab.remove(row), expected.remove(&row));
                }
                let row = any(&mut random);
                assert_eq!(slab.get(row), expected.get(&row));
                assert_eq!(slab.get_mut(row).copied(), expected.get(&row).copied());
                assert_eq!(slab.len(), expected.len());
            }
            let all: Vec<(Row, u64)> = slab.iter().map(|(row, value)| (row, *value)).collect();
            assert_eq!(all, expected.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_stands_there_takes_no_more_than_it_does_and_gives_it_back() {
        assert_eq!(size_of::<Option<Row>>(), 4);
        assert_eq!(size_of::<Slot<Box<u64>>>(), 16, "a row does not fit beside it");
        assert_eq!(size_of::<Slot<(Box<u64>, u64)>>(), 16);
        let mut slab = Slab::default();
        let rows: Vec<Row> = (0..10 * CHUNK).map(|value| slab.insert(value)).collect();
        assert!(rows.into_iter().all(|row| slab.remove(row).is_some()));
        assert!(slab.chunks.is_empty());
        assert_eq!(slab.insert(7), Row::of(0));
    }
}
