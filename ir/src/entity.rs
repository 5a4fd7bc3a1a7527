//! Dense typed ids and the arenas that hand them out.
//!
//! An id is a `u32` newtype whose `Display` is its token in the textual IR. Ids are given out in
//! program order and never reused inside one arena.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A dense id: convertible to and from its index in an [`Arena`].
pub trait Entity: Copy + Eq + Ord + fmt::Debug {
    /// The id of the element at `index`.
    fn new(index: usize) -> Self;
    /// The position of this id in its arena.
    fn index(self) -> usize;
}

/// Declares an entity: a `u32` newtype that prints as its prefix and number.
macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[derive(derive_more::Debug, derive_more::Display)]
        #[debug("{self}")]
        #[display("{}{_0}", $prefix)]
        pub struct $name(pub u32);

        impl $crate::entity::Entity for $name {
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
entity!(
    /// A tensor value: an input, a weight, a state, or a result of a node.
    Value, "v"
);
entity!(
    /// One use of an op in a graph, with its operands and results.
    Node, "n"
);
entity!(
    /// A symbolic dimension declared by the graph with bounds, such as the tokens of a step.
    Symbol, "d"
);
entity!(
    /// A unique piece: what is compiled, tuned and cached once.
    UniquePieceId, "u"
);
entity!(
    /// One use of a unique piece in the step.
    PieceId, "p"
);
entity!(
    /// A fixed-address buffer of the plan.
    Slot, "b"
);

/// A growable map from dense ids to `V`, in the order in which ids were given out.
#[derive(Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<fn() -> K>,
}

impl<K: Entity, V> Arena<K, V> {
    /// Without elements; ids are given from 0 on.
    pub fn new() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }

    /// Appends `value` and returns its id.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::new(self.items.len() - 1)
    }

    /// The element of `key`, if the arena has it.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }

    /// How many ids were given.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The ids in the order in which they were given out.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::new)
    }

    /// The elements in the order of their ids.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }

    /// The elements in order, mutable.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }

    /// Ids and elements in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: Entity, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Entity, V> Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}

impl<K: Entity, V> FromIterator<V> for Arena<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        Self { items: iter.into_iter().collect(), key: PhantomData }
    }
}

impl<K: Entity, V: fmt::Debug> fmt::Debug for Arena<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
