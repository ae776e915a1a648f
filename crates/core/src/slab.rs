//! Values in numbered rows. Rows stand in chunks of fixed size, so very many values take hardly
//! more memory than the values themselves, and no value moves as the slab grows. A removed value's
//! row is used again.

use std::num::NonZeroU32;

/// The place of a value in a [`Slab`], valid until the value is removed. Four bytes, also as an
/// `Option`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Row(NonZeroU32);

impl Row {
    fn of(index: usize) -> Row {
        let row = u32::try_from(index + 1).ok().and_then(Row::from_number);
        row.expect("a slab has fewer than four billion rows")
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// Returns the row as a number, which is never 0.
    pub fn number(self) -> u32 {
        self.0.get()
    }

    /// Returns the row with this number.
    pub fn from_number(number: u32) -> Option<Row> {
        NonZeroU32::new(number).map(Row)
    }
}

/// Values in numbered rows. See the [module](self).
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    /// The first free row. Free rows form a list.
    free: Option<Row>,
    len: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Full(T),
    /// A free row, with the next free row.
    Free(Option<Row>),
}

/// How many rows a chunk has. A chunk is allocated whole, so larger chunks would waste more memory
/// in small slabs.
const CHUNK: usize = 64;

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: None, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Returns how many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value and returns its row.
    pub fn insert(&mut self, value: T) -> Row {
        self.len += 1;
        if let Some(row) = self.free {
            let slot = self.slot_mut(row).expect("a free row was used before");
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
        let chunk = self.chunks.last_mut().expect("a chunk was added");
        chunk.push(Slot::Full(value));
        Row::of(before + chunk.len() - 1)
    }

    fn slot_mut(&mut self, row: Row) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(row.index() / CHUNK)?.get_mut(row.index() % CHUNK)
    }

    /// Returns the value in `row`.
    pub fn get(&self, row: Row) -> Option<&T> {
        match self.chunks.get(row.index() / CHUNK)?.get(row.index() % CHUNK)? {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Returns the value in `row`, mutable.
    pub fn get_mut(&mut self, row: Row) -> Option<&mut T> {
        match self.slot_mut(row)? {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Removes the value in `row` and returns it. Frees all memory when the last value is removed.
    pub fn remove(&mut self, row: Row) -> Option<T> {
        self.get(row)?;
        let next = self.free;
        let slot = self.slot_mut(row).expect("the row is full");
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

    /// Iterates over the rows and values, in the order of the rows.
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
    fn a_slab_behaves_like_a_map_that_chooses_its_keys() {
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
    fn slots_have_no_overhead_and_an_empty_slab_frees_its_memory() {
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
