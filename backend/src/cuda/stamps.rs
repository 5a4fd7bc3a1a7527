//! Block stamps: where and when each block of a captured graph ran. Kernels note it only where
//! they were compiled to, so that normal programs hold nothing of this.

use super::context::Context;
use super::error::device_error;
use super::memory::TemporaryBlock;
use super::program::{BoundLaunch, Work};
use super::stream::Stream;
use crate::device::DeviceError;
use crate::measure::BlockTime;
use piecewise_kernels::op::cuda::{LaunchRecipe, Param};
use std::sync::Arc;

/// The header that notes, by the name that sources include it by.
pub(super) const TIMELINE: (&str, &str) = ("timeline.cuh", include_str!("kernels/timeline.cuh"));

/// Bytes of a block's place: `PwBlock` of the header.
const BLOCK_BYTES: usize = 32;

/// A kernel whose blocks note where and when they run, at the address of one more parameter. A
/// source in which the entry's head is not found stays as it is, and nothing is known of it.
pub(super) fn stamped(mut recipe: LaunchRecipe) -> LaunchRecipe {
    let Some(head) = Head::find(&recipe.source, &recipe.entry) else { return recipe };
    let comma = if recipe.params.is_empty() { "" } else { ", " };
    recipe.source.insert_str(head.body, "\n  PwStamp pw_stamp(pw_stamps);");
    recipe.source.insert_str(head.last_parameter, &format!("{comma}PwBlock* pw_stamps"));
    recipe.source.insert_str(0, &format!("#include \"{}\"\n", TIMELINE.0));
    recipe.params.push(Param::Stamps);
    recipe
}

/// Places in a source: where an entry's parameters end, and where its body starts.
struct Head {
    last_parameter: usize,
    body: usize,
}

impl Head {
    fn find(source: &str, entry: &str) -> Option<Self> {
        for (at, keyword) in source.match_indices("__global__") {
            let rest = &source[at + keyword.len()..];
            let Some(end) = rest.find(['{', ';']) else { continue };
            let named = format!(" {entry}(");
            let Some(name) = rest[..end].find(&named) else { continue };
            let open = at + keyword.len() + name + named.len();
            let mut depth = 1;
            let close = source[open..].char_indices().find(|(_, c)| {
                depth += i32::from(*c == '(') - i32::from(*c == ')');
                depth == 0
            });
            let last_parameter = open + close?.0;
            let after = &source[last_parameter + 1..];
            if !after.trim_start().starts_with('{') {
                continue;
            }
            let body = last_parameter + 1 + after.find('{')? + 1;
            return Some(Self { last_parameter, body });
        }
        None
    }
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
    /// Places for launches at these sizes; `None` where none of them notes anything.
    pub(super) fn of(
        context: &Arc<Context>,
        stream: &Stream,
        launches: &[Arc<BoundLaunch>],
        sizes: &[u64],
    ) -> Result<Option<Self>, DeviceError> {
        let mut blocks = 0;
        let mut places = Vec::with_capacity(launches.len());
        for launch in launches {
            let Work::Kernel(bound) = &launch.work else {
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
        context.driver.copy_out(to, self.memory.address, n, stream.handle).map_err(failed)?;
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
            place.map_or_else(Vec::new, |(first, own)| (first..first + own).map(time).collect())
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
    fn the_entry_alone_gets_a_parameter_and_a_stamp() {
        let source = "#include \"prelude.cuh\"\n\
            extern \"C\" __global__ void k(int a);\n\
            extern \"C\" __global__ void other_k(int a) { k(a); }\n\
            extern \"C\" __global__ void __launch_bounds__(32) k(\n    int a, int (*b)[4]) {\n\
            }\n";
        let made = stamped(recipe(source, "k", vec![Param::Arg(0), Param::Arg(1)]));
        insta::assert_snapshot!(made.source, @r##"
        #include "timeline.cuh"
        #include "prelude.cuh"
        extern "C" __global__ void k(int a);
        extern "C" __global__ void other_k(int a) { k(a); }
        extern "C" __global__ void __launch_bounds__(32) k(
            int a, int (*b)[4], PwBlock* pw_stamps) {
          PwStamp pw_stamp(pw_stamps);
        }
        "##);
        assert_eq!(made.params, [Param::Arg(0), Param::Arg(1), Param::Stamps]);
    }

    #[test]
    fn a_source_without_the_entry_stays_as_it_is() {
        let made = recipe("MAKE_KERNEL(k)", "k", vec![Param::Counts]);
        assert_eq!(stamped(made.clone()), made);
        let made = stamped(recipe("__global__ void k() {}", "k", Vec::new()));
        assert!(made.source.ends_with("k(PwBlock* pw_stamps) {\n  PwStamp pw_stamp(pw_stamps);}"));
    }
}
