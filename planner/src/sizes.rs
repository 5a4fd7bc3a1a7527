//! Capture sizes: which token counts and decode batches have graphs.

/// Why a list of sizes is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "a field is what the message calls it")]
pub enum SizeError {
    /// The list is empty.
    #[error("{list} is empty; give at least one size, or a single number for the default pattern")]
    Empty { list: &'static str },
    /// A size of 0.
    #[error("{list} contains 0; a size is at least 1")]
    Zero { list: &'static str },
    /// The sizes do not ascend.
    #[error("{list} is not ascending at {at}; sort it and drop repeated sizes")]
    Unsorted {
        list: &'static str,
        /// The first size that is not above the one before.
        at: u64,
    },
    /// More than a step can bring, or the device's bound.
    #[error("{list} contains {size}, above {bound_name} = {bound}; drop it or raise {bound_name}")]
    AboveBound { list: &'static str, size: u64, bound_name: &'static str, bound: u64 },
}

impl SizeError {
    /// The list that is refused, by its name in the configuration.
    pub fn list(&self) -> &'static str {
        match self {
            Self::Empty { list }
            | Self::Zero { list }
            | Self::Unsorted { list, .. }
            | Self::AboveBound { list, .. } => list,
        }
    }
}

/// Ascending, distinct capture sizes, none above the bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeList {
    sizes: Vec<u64>,
    /// For each of the least counts, the place of the size that holds it: every step looks for several.
    places: Vec<u16>,
}

/// Counts up to this have their places ready.
const PLACES: u64 = 4096;

impl SizeList {
    /// Checks a list given by a user.
    ///
    /// # Errors
    /// When it is empty, contains 0, does not ascend, or passes the bound.
    pub fn new(
        list: &'static str,
        sizes: Vec<u64>,
        bound_name: &'static str,
        bound: u64,
    ) -> Result<Self, SizeError> {
        if sizes.is_empty() {
            return Err(SizeError::Empty { list });
        }
        if sizes.contains(&0) {
            return Err(SizeError::Zero { list });
        }
        if let Some(pair) = sizes.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(SizeError::Unsorted { list, at: pair[1] });
        }
        if let Some(&size) = sizes.iter().find(|&&size| size > bound) {
            return Err(SizeError::AboveBound { list, size, bound_name, bound });
        }
        Ok(Self::of(sizes))
    }

    /// The default pattern up to `max`: powers of two to 256, then steps of an eighth of the
    /// power of two below, so that padding stays under a half for small sizes and under an
    /// eighth for large ones; `max` is the last.
    pub fn default_pattern(max: u64) -> Self {
        let max = max.max(1);
        let next = |&size: &u64| {
            let step = if size < 256 { size } else { (1 << size.ilog2()) / 8 };
            size.checked_add(step)
        };
        let below = std::iter::successors(Some(1), next).take_while(|&size| size < max);
        Self::of(below.chain([max]).collect())
    }

    fn of(sizes: Vec<u64>) -> Self {
        let most = sizes.last().copied().unwrap_or(0).min(PLACES);
        let place = |count| u16::try_from(sizes.partition_point(|&size| size < count));
        let places = (0..=most).map_while(|count| place(count).ok()).collect();
        Self { sizes, places }
    }

    /// What was validated: at least one, none 0, ascending without repeats.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The largest count that it has a size for.
    pub fn max(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// The smallest size that holds `count`.
    #[inline]
    pub fn padded(&self, count: u64) -> Option<u64> {
        let place = match self.places.get(count as usize) {
            Some(&place) => usize::from(place),
            None => self.sizes.partition_point(|&size| size < count),
        };
        self.sizes.get(place).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_pattern_doubles_to_256_and_then_takes_eighths() {
        let pattern = |max| SizeList::default_pattern(max).sizes;
        let sizes = pattern(1000);
        assert_eq!(sizes[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 288]);
        assert_eq!(sizes[sizes.len() - 5..], [768, 832, 896, 960, 1000]);
        assert_eq!((pattern(0), pattern(1), pattern(2)), (vec![1], vec![1], vec![1, 2]));
        assert_eq!(pattern(u64::MAX).last(), Some(&u64::MAX));
    }

    #[test]
    fn the_smallest_size_that_holds_a_count_is_found_with_and_without_its_place() {
        for max in [1, 300, PLACES - 1, PLACES, PLACES + 1, 3 * PLACES] {
            let list = SizeList::default_pattern(max);
            for count in 0..=max + 2 {
                let holds = list.sizes.iter().find(|&&size| size >= count);
                assert_eq!(list.padded(count).as_ref(), holds, "{count} of {max}");
            }
        }
    }
}
