//! Exact least-recently-used order: a doubly linked list of slots in one flat array.

use super::lines::{FAR_LOOKS_MAX, Lines, NEAR_LOOKS_MAX};

use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::Slot;

/// Towards the more recently used.
const NEWER: usize = 0;
/// Towards the less recently used.
const OLDER: usize = 1;
/// The sentinel that closes the ring: its OLDER is the newest line, its NEWER the oldest.
const END: u32 = 0;

/// Node 0 is the sentinel, slot `s` is node `s + 1`. An all-zero node is not in the list (or is the only
/// one), so that fresh memory needs no initialising.
///
/// Two hands look for a victim. The near hand walks from the oldest line up to the far hand and starts
/// over, so it meets lines that were cleaned behind it. The far hand goes on where nobody has looked
/// yet. Both step aside when their line moves. While a look from the oldest line succeeds, the next one
/// starts there again: that is what keeps the order exact.
#[derive(Debug)]
pub(super) struct Lru {
    nodes: Vec<[u32; 2]>,
    near: u32,
    far: u32,
}

impl Lru {
    pub(super) fn new(slots: u32) -> Result<Self, NoMemory> {
        Ok(Self { nodes: memory::zeroes(u64::from(slots) + 1)?, near: END, far: END })
    }

    pub(super) fn bytes_for(slots: u32) -> u64 {
        bytes_of::<[u32; 2]>(u64::from(slots) + 1)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<[u32; 2]>()
    }

    fn newest(&self) -> u32 {
        self.nodes[END as usize][OLDER]
    }

    fn oldest(&self) -> u32 {
        self.nodes[END as usize][NEWER]
    }

    fn knows(&self, node: u32) -> bool {
        self.nodes[node as usize] != [END; 2] || self.newest() == node
    }

    #[inline]
    pub(super) fn insert(&mut self, slot: Slot) {
        let node = slot.0 + 1;
        assert!(!self.knows(node), "slot {slot} is already in the order");
        self.push(node);
    }

    #[inline]
    pub(super) fn touch(&mut self, slot: Slot) {
        let node = slot.0 + 1;
        if self.newest() != node {
            self.unlink(node);
            self.push(node);
        }
    }

    #[inline]
    pub(super) fn relocate(&mut self, from: Slot, to: Slot) {
        if from == to {
            return;
        }
        let (from, to) = (from.0 + 1, to.0 + 1);
        assert!(self.knows(from) && !self.knows(to), "a line moves from its slot to a free one");
        let [newer, older] = std::mem::take(&mut self.nodes[from as usize]);
        self.nodes[to as usize] = [newer, older];
        self.nodes[newer as usize][OLDER] = to;
        self.nodes[older as usize][NEWER] = to;
        for hand in [&mut self.near, &mut self.far] {
            if *hand == from {
                *hand = to;
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, slot: Slot) {
        self.unlink(slot.0 + 1);
    }

    pub(super) fn victim(&mut self, lines: &impl Lines) -> Option<Slot> {
        let from_oldest = self.near == END || self.far == END || self.near == self.far;
        if from_oldest {
            self.near = self.oldest();
        }
        let mut met_far = self.far == END;
        for _ in 0..NEAR_LOOKS_MAX {
            met_far |= self.near == self.far;
            if self.near == END || met_far && !from_oldest {
                break;
            }
            let slot = Slot(self.near.wrapping_sub(1));
            if lines.evictable(slot) {
                if from_oldest {
                    self.near = END;
                }
                return Some(slot);
            }
            self.near = self.nodes[self.near as usize][NEWER];
        }
        if met_far {
            self.far = self.near;
        }
        for _ in 0..FAR_LOOKS_MAX {
            if self.far == END {
                break;
            }
            let slot = Slot(self.far - 1);
            if lines.evictable(slot) {
                return Some(slot);
            }
            self.far = self.nodes[self.far as usize][NEWER];
        }
        None
    }

    #[inline]
    fn push(&mut self, node: u32) {
        let newest = self.newest();
        self.nodes[node as usize] = [END, newest];
        self.nodes[newest as usize][NEWER] = node;
        self.nodes[END as usize][OLDER] = node;
    }

    #[inline]
    fn unlink(&mut self, node: u32) {
        assert!(self.knows(node), "slot {} is not in the order", node - 1);
        let [newer, older] = std::mem::take(&mut self.nodes[node as usize]);
        self.nodes[newer as usize][OLDER] = older;
        self.nodes[older as usize][NEWER] = newer;
        for hand in [&mut self.near, &mut self.far] {
            if *hand == node {
                *hand = newer;
            }
        }
    }
}
