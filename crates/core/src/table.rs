//! A hash map for very many entries, in half the memory of `HashMap`. Entries stand in the full
//! chunks of a [`Slab`], and only their four-byte rows stand in a hash table that has gaps. No
//! entry is copied as the table grows. Other structures can name an entry by its [row](Row), in
//! four bytes, for as long as the entry exists.

use crate::map::Fold;
pub use crate::slab::Row;
use crate::slab::Slab;
use hashbrown::HashTable;
use std::hash::{Hash, Hasher};
use std::ops::Index;

/// A hash map of few bytes per entry. It iterates in the same order in every run. See the
/// [module](self).
#[derive(Debug)]
pub struct Table<K, V> {
    entries: Slab<(K, V)>,
    rows: HashTable<Row>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table { entries: Slab::default(), rows: HashTable::new() }
    }
}

fn hash(key: &impl Hash) -> u64 {
    let mut hasher = Fold::default();
    key.hash(&mut hasher);
    hasher.finish()
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// Returns how many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the row of this key's entry.
    pub fn row(&self, key: &K) -> Option<Row> {
        let is_it = |row: &Row| self.entries.get(*row).is_some_and(|(there, _)| there == key);
        self.rows.find(hash(key), is_it).copied()
    }

    /// Returns the key and value in `row`.
    ///
    /// # Panics
    /// If the row is free.
    pub fn at(&self, row: Row) -> (&K, &V) {
        let (key, value) = self.entries.get(row).expect("the entry was not removed");
        (key, value)
    }

    /// Returns the value in `row`, mutable.
    ///
    /// # Panics
    /// If the row is free.
    pub fn at_mut(&mut self, row: Row) -> &mut V {
        &mut self.entries.get_mut(row).expect("the entry was not removed").1
    }

    /// Returns whether there is an entry with this key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.row(key).is_some()
    }

    /// Returns the value of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.row(key).map(|row| self.at(row).1)
    }

    /// Returns the value of this key, mutable.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.row(key).map(|row| self.at_mut(row))
    }

    /// Adds an entry, or replaces its value. Returns the entry's row, and the value that was
    /// replaced.
    pub fn insert(&mut self, key: K, value: V) -> (Row, Option<V>) {
        match self.row(&key) {
            Some(row) => (row, Some(std::mem::replace(self.at_mut(row), value))),
            None => (self.add(key, value), None),
        }
    }

    fn add(&mut self, key: K, value: V) -> Row {
        let hash_of_key = hash(&key);
        let row = self.entries.insert((key, value));
        let entries = &self.entries;
        let hash_of = |row: &Row| hash(&entries.get(*row).expect("the row is full").0);
        *self.rows.insert_unique(hash_of_key, row, hash_of).get()
    }

    /// Returns the value of this key, mutable. Adds the default value if the key has none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let row = match self.row(&key) {
            Some(row) => row,
            None => self.add(key, V::default()),
        };
        self.at_mut(row)
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entries = &self.entries;
        let is_it = |row: &Row| entries.get(*row).is_some_and(|(there, _)| there == key);
        let (row, _) = self.rows.find_entry(hash(key), is_it).ok()?.remove();
        self.entries.remove(row).map(|(_, value)| value)
    }

    /// Iterates over all entries, in the order of their rows.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(_, (key, value))| (key, value))
    }

    /// Iterates over all keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Iterates over all values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Hash + Eq, V> Index<&K> for Table<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("the table has this key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeMap;

    #[test]
    fn a_table_behaves_like_a_map() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut table, mut expected) = (Table::default(), BTreeMap::new());
            let keys = 1 + random.below(400);
            for step in 0..2000 {
                let key = random.below(keys);
                match random.below(4) {
                    0 => assert_eq!(table.remove(&key), expected.remove(&key)),
                    1 => {
                        *table.get_or_default(key) += 1;
                        *expected.entry(key).or_default() += 1;
                    }
                    _ => {
                        let (row, old) = table.insert(key, step);
                        assert_eq!(old, expected.insert(key, step));
                        assert_eq!(table.at(row), (&key, &step));
                        assert_eq!(table.row(&key), Some(row));
                    }
                }
                let other = random.below(keys);
                assert_eq!(table.get(&other), expected.get(&other));
                assert_eq!(table.get_mut(&other).copied(), expected.get(&other).copied());
                assert_eq!(table.contains_key(&other), expected.contains_key(&other));
                assert_eq!(table.len(), expected.len());
            }
            let mut all: Vec<(u64, u64)> =
                table.iter().map(|(key, value)| (*key, *value)).collect();
            all.sort_unstable();
            assert_eq!(all, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_entry_keeps_its_row_until_it_is_removed() {
        let mut table = Table::default();
        let rows: Vec<Row> = (0..1000).map(|key| table.insert(key, key * 2).0).collect();
        assert!((0..1000).filter(|key| key % 3 == 0).all(|key| table.remove(&key).is_some()));
        for key in (0..1000).filter(|key| key % 3 != 0) {
            assert_eq!(table.at(rows[key as usize]), (&key, &(key * 2)));
        }
        assert_eq!(table.row(&3), None);
    }
}
