//! Launches made ready: of the few sizes that a program was launched with last, what each launch
//! hands the driver, so that submitting it again computes neither grids nor arguments.

use super::bound::{BoundLaunch, needed_once};
use super::driver::{KernelLaunch, TensorMap};
use super::lt::LtProduct;
use super::memory::AddressRange;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// For how many sizes a program keeps its launches: prompts of any length that are launched between
/// decodes of a few sizes do not displace those.
const KEPT: usize = 4;

/// A launch that is ready for its sizes.
#[derive(Debug)]
pub(super) enum Ready {
    /// It has no work at these sizes.
    LeftOut,
    /// A kernel, but for its stream, with where its parameters and maps are.
    Kernel { launch: KernelLaunch<'static>, parameters: Range<usize>, maps: Range<usize> },
    /// A product of the library.
    Product(LtProduct),
    /// What has nothing to prepare.
    AsBound,
}

/// The launches of a program at some sizes.
#[derive(Debug, Default)]
pub(super) struct AtSizes {
    sizes: SmallVec<[u64; 8]>,
    is_ready: bool,
    launches: Vec<Ready>,
    /// The parameters of all kernels, one after the other, and the maps among them.
    parameters: Vec<u64>,
    maps: Vec<(usize, TensorMap)>,
}

impl AtSizes {
    /// Begins anew for these sizes; memory stays.
    pub(super) fn reset(&mut self, sizes: &[u64]) {
        self.sizes.clear();
        self.sizes.extend_from_slice(sizes);
        self.is_ready = false;
        self.launches.clear();
        self.parameters.clear();
        self.maps.clear();
    }

    /// Adds the program's next launch.
    pub(super) fn push(&mut self, ready: Ready) {
        self.launches.push(ready);
    }

    /// Adds a kernel as the program's next launch.
    pub(super) fn push_kernel(
        &mut self,
        launch: KernelLaunch<'static>,
        parameters: impl Iterator<Item = u64>,
        maps: &[(usize, TensorMap)],
    ) {
        let (first, first_map) = (self.parameters.len(), self.maps.len());
        self.parameters.extend(parameters);
        self.maps.extend_from_slice(maps);
        let (parameters, maps) = (first..self.parameters.len(), first_map..self.maps.len());
        self.launches.push(Ready::Kernel { launch, parameters, maps });
    }

    /// Whether these are the sizes that it was made for.
    pub(super) fn is_of(&self, sizes: &[u64]) -> bool {
        self.sizes.as_slice() == sizes
    }

    /// Kernel `i`, but for its stream; nothing where that is none or has no work.
    pub(super) fn kernel(&self, i: usize) -> Option<KernelLaunch<'_>> {
        let Ready::Kernel { launch, parameters, maps } = self.launches.get(i)? else { return None };
        let (parameters, maps) = (self.parameters(parameters), self.maps(maps));
        Some(KernelLaunch { parameters, maps, ..*launch })
    }

    pub(super) fn launch(&self, i: usize) -> &Ready {
        self.launches.get(i).unwrap_or(&Ready::AsBound)
    }

    pub(super) fn parameters(&self, at: &Range<usize>) -> &[u64] {
        &self.parameters[at.clone()]
    }

    pub(super) fn maps(&self, at: &Range<usize>) -> &[(usize, TensorMap)] {
        &self.maps[at.clone()]
    }
}

/// What a program was launched with last, and what it needs backed. It lives in the program: other
/// addresses are another program.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// The sizes used last come first.
    kept: Vec<AtSizes>,
    /// Each range once: launches share few.
    needed: Vec<Arc<AddressRange>>,
}

impl Prepared {
    /// Nothing yet, for the launches of a program.
    pub(super) fn of(launches: &[Arc<BoundLaunch>]) -> Self {
        Self { kept: Vec::new(), needed: needed_once(launches) }
    }

    /// The launches at these sizes, made by `make` when they come for the second time: a warm-up and
    /// prompts of all lengths launch with most sizes once. `None` where they are not ready, or memory
    /// that they use is not backed.
    pub(super) fn at(
        &mut self,
        sizes: &[u64],
        make: impl FnOnce(&mut AtSizes) -> Result<(), String>,
    ) -> Option<&AtSizes> {
        let found = self.kept.iter().position(|at| at.sizes.as_slice() == sizes);
        let place = match found {
            Some(place) => place,
            None if self.kept.len() < KEPT => {
                self.kept.reserve_exact(if self.kept.is_empty() { 1 } else { KEPT });
                self.kept.push(AtSizes::default());
                self.kept.len() - 1
            }
            None => KEPT - 1,
        };
        self.kept[..=place].rotate_right(1);
        let at = self.kept.first_mut()?;
        if found.is_none() {
            at.reset(sizes);
            return None;
        }
        if !at.is_ready {
            // What can't be made fails at its launch, after those before it.
            if make(at).is_err() {
                at.reset(sizes);
                return None;
            }
            at.is_ready = true;
        }
        self.needed.iter().all(|range| range.is_backed()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_made_at_their_second_launch_and_the_last_four_are_kept() {
        let mut prepared = Prepared::default();
        let mut made = 0;
        let mut launch = |size: u64| {
            let before = made;
            let at = prepared.at(&[size], |at| {
                made += 1;
                at.push(Ready::LeftOut);
                Ok(())
            });
            let is_ready = at.is_some_and(|at| matches!(at.launch(0), Ready::LeftOut));
            (is_ready, made - before)
        };
        assert_eq!(launch(8), (false, 0));
        assert_eq!(launch(8), (true, 1));
        assert_eq!(launch(8), (true, 0));
        for prompt in 100..200 {
            assert_eq!(launch(prompt), (false, 0));
            assert_eq!(launch(8), (true, 0), "prompts do not displace a size in use");
        }
        for size in [1, 2, 3, 4] {
            assert_eq!(launch(size), (false, 0));
        }
        assert_eq!(launch(8), (false, 0), "the one used longest ago is forgotten");
        assert_eq!(launch(8), (true, 1), "and made again");
    }

    #[test]
    fn what_can_not_be_made_is_tried_again() {
        let mut prepared = Prepared::default();
        let mut launch = |fails: bool| {
            let made = |at: &mut AtSizes| {
                at.push(Ready::LeftOut);
                if fails { Err("no".to_owned()) } else { Ok(()) }
            };
            prepared.at(&[1], made).map(|at| at.launches.len())
        };
        assert_eq!([launch(true), launch(true), launch(true)], [None; 3]);
        assert_eq!([launch(false), launch(false)], [Some(1); 2]);
    }
}
