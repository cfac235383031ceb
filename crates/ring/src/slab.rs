//! A vector with stable keys and a free list. A key carries a generation, so that a late use of a
//! freed place is noticed instead of hitting its next owner.

/// Place in the low 32 bits, generation above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    fn place(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

pub(crate) struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    count: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Stores what `make` builds from its own key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 entries")
        });
        let entry = &mut self.entries[place as usize];
        let key = Key(u64::from(entry.0) << 32 | u64::from(place));
        entry.1 = Some(make(key));
        self.count += 1;
        key
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.place())?;
        if entry.0 == key.generation() { entry.1.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.place())?;
        if entry.0 != key.generation() {
            return None;
        }
        let value = entry.1.take()?;
        // The top values are the driver's own tokens: generations stay below them.
        entry.0 = (entry.0 + 1) & 0x7fff_ffff;
        self.free.push(key.place() as u32);
        self.count -= 1;
        Some(value)
    }

    /// The keys of some values.
    pub(crate) fn keys_of(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<Key> {
        let key = |(place, (generation, value)): (usize, &(u32, Option<T>))| {
            let is_wanted = value.as_ref().is_some_and(&is_wanted);
            is_wanted.then_some(Key(u64::from(*generation) << 32 | place as u64))
        };
        self.entries.iter().enumerate().filter_map(key).collect()
    }

    pub(crate) fn for_each(&self, visit: impl FnMut(&T)) {
        self.entries.iter().filter_map(|entry| entry.1.as_ref()).for_each(visit);
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.count = 0;
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().filter_map(|entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let old = slab.insert_with(|_| 1);
        assert_eq!(slab.remove(old), Some(1));
        let new = slab.insert_with(|_| 2);
        assert_eq!((slab.remove(old), slab.get_mut(new).copied()), (None, Some(2)));
        assert_eq!(slab.len(), 1);
    }
}
