//! Block stamps: where and when each block of a captured graph ran. Kernels note it only where
//! they were compiled to, so that normal programs hold nothing of this.

use super::bound::{BoundLaunch, Work};
use super::context::Context;
use super::error::device_error;
use super::memory::TemporaryBlock;
use super::stream::Stream;
use crate::device::DeviceError;
use crate::device::measure::BlockTime;
use piecewise_kernels::op::cuda::{LaunchRecipe, Param};
use std::sync::Arc;

/// The header that notes, by the name that sources include it by.
pub(super) const TIMELINE: (&str, &str) = ("timeline.cuh", include_str!("kernels/timeline.cuh"));

/// Bytes of a block's place: `PwBlock` of the header.
const BLOCK_BYTES: usize = 32;

/// A kernel whose blocks note where and when they run, at the address of one more parameter, which
/// a macro of the entry's name adds. The header has `PW_LAUNCH_DEPENDENTS` note: of a kernel that
/// does not begin with it nothing is known.
pub(super) fn stamped(mut recipe: LaunchRecipe) -> LaunchRecipe {
    let (header, entry) = (TIMELINE.0, &recipe.entry);
    let before = if recipe.params.is_empty() { "" } else { "__VA_ARGS__, " };
    let head = format!(
        "#include \"{header}\"\n#define {entry}(...) {entry}({before}PwBlock* pw_stamps)\n"
    );
    recipe.source.insert_str(0, &head);
    recipe.params.push(Param::Stamps);
    recipe
}

/// The places of the blocks of a captured graph's launches.
#[derive(Debug)]
pub(super) struct Stamps {
    memory: TemporaryBlock,
    /// For each launch, its first block and how many it has; `None` where it notes nothing.
    places: Vec<Option<(u64, u64)>>,
    blocks: u64,
}

impl Stamps {
    /// Places for launches at these sizes; `None` where none of them notes anything. Those that follow other
    /// sizes have none: they may have more blocks then.
    pub(super) fn of(
        context: &Arc<Context>,
        stream: &Stream,
        launches: &[Arc<BoundLaunch>],
        follows: &dyn Fn(usize) -> bool,
        sizes: &[u64],
    ) -> Result<Option<Self>, DeviceError> {
        let mut blocks = 0;
        let mut places = Vec::with_capacity(launches.len());
        for (i, launch) in launches.iter().enumerate() {
            let (Work::Kernel(bound), false) = (&launch.work, follows(i)) else {
                places.push(None);
                continue;
            };
            let grid = bound.recipe.grid_at(sizes, context.device.multiprocessors);
            let own: u64 = grid.map_or(0, |grid| grid.iter().copied().map(u64::from).product());
            let notes = bound.recipe.params.contains(&Param::Stamps) && own > 0;
            places.push(notes.then_some((blocks, own)));
            blocks += if notes { own } else { 0 };
        }
        if blocks == 0 {
            return Ok(None);
        }
        let bytes = blocks * BLOCK_BYTES as u64;
        let memory = TemporaryBlock::allocate(context, "the times of blocks", bytes)?;
        context
            .driver
            .set(memory.address, 0, 4, bytes / 4, stream.handle)
            .map_err(|e| device_error("clear the times of blocks", &e))?;
        Ok(Some(Self { memory, places, blocks }))
    }

    /// Where the blocks of a launch note; 0 for nowhere.
    pub(super) fn address(&self, launch: usize) -> u64 {
        let place = self.places.get(launch).copied().flatten();
        place.map_or(0, |(first, _)| self.memory.address + first * BLOCK_BYTES as u64)
    }

    /// What the blocks of each launch noted last.
    pub(super) fn read(
        &self,
        context: &Context,
        stream: &Stream,
    ) -> Result<Vec<Vec<BlockTime>>, DeviceError> {
        let mut bytes = vec![0; self.blocks as usize * BLOCK_BYTES];
        let failed = |e| device_error("read the times of blocks", &e);
        let (to, n) = (bytes.as_mut_ptr(), bytes.len() as u64);
        // SAFETY: the bytes are this function's own until the stream is waited for below.
        unsafe { context.driver.copy_out(to, self.memory.address, n, stream.handle) }
            .map_err(failed)?;
        stream.synchronize().map_err(failed)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let time = |block: u64| {
            let at = block as usize * BLOCK_BYTES;
            let released = Some(word(at + 8)).filter(|&ns| ns > 0);
            let multiprocessor = word(at + 24) as u32;
            BlockTime { multiprocessor, start: word(at), released, end: word(at + 16) }
        };
        let launch = |place: &Option<(u64, u64)>| {
            let (first, own) = place.unwrap_or_default();
            let blocks: Vec<_> = (first..first + own).map(time).collect();
            if blocks.iter().any(|block| block.end > 0) { blocks } else { Vec::new() }
        };
        Ok(self.places.iter().map(launch).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_kernels::op::cuda::GridAxis;

    fn recipe(source: &str, entry: &str, params: Vec<Param>) -> LaunchRecipe {
        LaunchRecipe::new(source, entry, GridAxis::one(), 32, params)
    }

    #[test]
    fn a_macro_gives_the_entry_one_more_parameter() {
        let source = "#include \"prelude.cuh\"\n\
            extern \"C\" __global__ void k(int a, int (*b)[4]) { PW_LAUNCH_DEPENDENTS(); }\n";
        let made = stamped(recipe(source, "k", vec![Param::Arg(0), Param::Arg(1)]));
        insta::assert_snapshot!(made.source, @r##"
        #include "timeline.cuh"
        #define k(...) k(__VA_ARGS__, PwBlock* pw_stamps)
        #include "prelude.cuh"
        extern "C" __global__ void k(int a, int (*b)[4]) { PW_LAUNCH_DEPENDENTS(); }
        "##);
        assert_eq!(made.params, [Param::Arg(0), Param::Arg(1), Param::Stamps]);
        let alone = stamped(recipe("__global__ void k() {}", "k", Vec::new()));
        assert!(alone.source.contains("#define k(...) k(PwBlock* pw_stamps)\n"));
    }
}
