//! The weight-streaming kernel on tensor cores: where x lies on the multiprocessor.

use super::MatMulSpec;
use crate::cuda::text::defines;
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe};
use piecewise_ir::dtype::DType;

/// The most rows that the kernel on tensor cores takes.
pub const TENSOR_ROWS: u64 = 32;
/// Warps of a block; they share k.
const WARPS: u64 = 16;
/// The depth that a lane's 16 bytes of each row make.
const STEP: u64 = 32;
/// Steps of weights in flight, best first; each is two loads of 16 bytes a lane.
const AHEAD: [u64; 3] = [8, 6, 4];
/// Registers of a lane where 16 warps fill a multiprocessor.
const REGISTERS: u64 = 128;
/// Those for addresses, counters, and the fragments at work, which the tensor cores take from
/// aligned quadruples of registers and so as copies.
const WORKING_REGISTERS: u64 = 44;
/// Bytes of a fragment of x, of 8 rows and a step, of all lanes.
const FRAGMENT_BYTES: u64 = WARPS * 32 * 16;

/// How a block goes through k and where its lanes keep their fragments of x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placement {
    /// Rows of x, in whole fragments.
    rows: u64,
    /// Steps of a warp in a tile.
    steps: u64,
    /// Whether every warp has that many.
    whole: bool,
    /// Steps and empty ones, so that `ahead` divides those of `tiles` tiles.
    round: u64,
    /// Tiles that are unrolled.
    tiles: u64,
    /// Steps of weights in flight.
    ahead: u64,
    /// Fragments of a lane in shared memory and in registers.
    staged: u64,
    held: u64,
    /// Buffers for the warps' sums: with two, a tile needs one barrier.
    buffers: u64,
}

impl Placement {
    /// The one with the most weights in flight, if x fits at all.
    fn new(rows: u64, depth: u64, shared_bytes: u64) -> Option<Self> {
        let rows = rows.next_multiple_of(8);
        let steps = (depth / STEP).div_ceil(WARPS);
        let whole = steps * STEP * WARPS == depth;
        let fragments = steps * rows / 8;
        AHEAD.iter().flat_map(|&most| [(most, 2), (most, 1)]).find_map(|(most, buffers)| {
            let (tiles, ahead) = match most / steps {
                0 => (1, steps.div_ceil(steps.div_ceil(most))),
                tiles => (tiles, tiles * steps),
            };
            let round = if tiles * steps == ahead { steps } else { steps.next_multiple_of(ahead) };
            let room = shared_bytes.checked_sub(buffers * sums_bytes(rows))?;
            let staged = (room / FRAGMENT_BYTES).min(fragments);
            let held = fragments - staged;
            // Two loads of 4 registers a step, 4 sums for 8 rows of x, 4 registers a fragment.
            let registers = WORKING_REGISTERS + 8 * ahead + rows / 2 + 4 * held;
            let fits = registers <= REGISTERS;
            fits.then_some(Self { rows, steps, whole, round, tiles, ahead, staged, held, buffers })
        })
    }

    fn shared_bytes(&self) -> u64 {
        self.staged * FRAGMENT_BYTES + self.buffers * sums_bytes(self.rows)
    }

    fn defines(&self) -> String {
        defines([
            ("M", self.rows),
            ("STEPS", self.steps),
            ("WHOLE", u64::from(self.whole)),
            ("ROUND", self.round),
            ("TILES", self.tiles),
            ("AHEAD", self.ahead),
            ("STAGED", self.staged),
            ("HELD", self.held),
            ("BUFFERS", self.buffers),
        ])
    }
}

/// Bytes of all warps' sums of a tile.
fn sums_bytes(rows: u64) -> u64 {
    WARPS * 16 * rows * 4
}

impl MatMulSpec {
    fn placement(&self, rows: u64, shared_bytes: u64) -> Option<Placement> {
        let [x, w, _] = self.types;
        let multiplied = x == w && matches!(x, DType::BF16 | DType::F16);
        let taken = multiplied
            && (1..=TENSOR_ROWS).contains(&rows)
            && self.of_weight
            && self.column_major
            && self.depth > 0
            && self.depth.is_multiple_of(STEP);
        taken.then(|| Placement::new(rows, self.depth, shared_bytes)).flatten()
    }

    /// Whether [`Self::tensor_kernel`] takes it: x and w are of the same 16-bit dtype, w is a
    /// weight `[n, k]` with k a multiple of 32, and `rows` rows of x (up to [`TENSOR_ROWS`]) fit
    /// in the registers and the `shared_bytes` of shared memory that a block may have.
    pub fn multiplies_on_tensor_cores(&self, rows: u64, shared_bytes: u64) -> bool {
        self.placement(rows, shared_bytes).is_some()
    }

    /// The kernel that reads each weight once and multiplies on tensor cores, for sizes of up to
    /// `rows` rows, on a device whose blocks may have `shared_bytes` of shared memory. Sums are of
    /// `f32`; their order follows from `rows`, rounded up to 8, and k. Arguments: x, w, y.
    ///
    /// # Errors
    /// When [`Self::multiplies_on_tensor_cores`] is false.
    pub fn tensor_kernel(&self, rows: u64, shared_bytes: u64) -> Result<LaunchRecipe, LowerError> {
        let placement = self.placement(rows, shared_bytes).ok_or_else(|| {
            LowerError(format!(
                "{rows} rows of depth {} for the matmul on tensor cores, which takes up to \
                 {TENSOR_ROWS} that fit on a multiprocessor with {shared_bytes} bytes of shared \
                 memory, of the 16-bit dtype of weights [n, k], k a multiple of {STEP}; take the \
                 general one",
                self.depth
            ))
        })?;
        let source = self.header() + &placement.defines() + "\n" + include_str!("tensor.cu");
        let grid = GridAxis::Persistent { per_multiprocessor: 1 }.alone();
        Ok(LaunchRecipe {
            dynamic_shared: placement.shared_bytes() as u32,
            ahead: vec![1],
            ..LaunchRecipe::own(source, "matmul", grid, WARPS * 32, self.row_params()?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOPPER: u64 = 227 << 10;

    #[test]
    fn x_stays_on_the_multiprocessor() {
        let place = |rows, depth| Placement::new(rows, depth, HOPPER);
        let shown =
            |rows, depth| place(rows, depth).map(|p| [p.ahead, p.staged, p.held, p.buffers]);
        assert_eq!(shown(2, 4096), Some([8, 8, 0, 2]));
        assert_eq!(shown(16, 4096), Some([8, 16, 0, 2]));
        assert_eq!(shown(24, 4096), Some([8, 22, 2, 2]));
        assert_eq!(shown(32, 4096), Some([4, 24, 8, 1]));
        assert_eq!(shown(8, 12288), Some([8, 24, 0, 2]));
        assert_eq!(shown(9, 12288), None);
        assert_eq!(Placement::new(8, 12288, 163 << 10).map(|p| p.held), Some(6));
        // A slice of two steps has four tiles in flight, one of 19 three times 7.
        assert_eq!(place(8, 1024).map(|p| [p.tiles, p.round, p.ahead]), Some([4, 2, 8]));
        assert_eq!(place(8, 9728).map(|p| [p.tiles, p.round, p.ahead]), Some([1, 21, 7]));
    }

    proptest! {
        #[test]
        fn every_placement_is_whole(rows in 1u64..=32, steps in 1u64..600, kib in 0u64..256) {
            if let Some(p) = Placement::new(rows, steps * STEP, kib << 10) {
                prop_assert!(p.shared_bytes() <= kib << 10);
                prop_assert_eq!(p.held + p.staged, p.steps * p.rows / 8);
                prop_assert!(p.rows >= rows && p.steps * WARPS >= steps && p.steps <= p.round);
                prop_assert_eq!(p.whole, p.steps * WARPS == steps);
                prop_assert!(p.tiles >= 1 && p.ahead <= p.tiles * p.steps);
                prop_assert_eq!(p.tiles * p.round % p.ahead, 0);
            }
        }
    }
}
