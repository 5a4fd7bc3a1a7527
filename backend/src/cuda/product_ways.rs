//! Which way of a product is expected to be the fastest at a size, as measured on an H100.

use super::alternatives::Way;
use super::nvrtc::Arch;
use piecewise_kernels::cuda::{MatMulSpec, RingForm, STREAM_ROWS, TENSOR_ROWS};

/// The most rows that absorb: with two, what each block computes again and the other ways of a
/// product that are lost cost more than a launch.
pub(super) const ABSORBING_ROWS: u64 = 1;
/// Elements of a result, padding included, from which the product in tiles is expected to be the
/// fastest over the true rows that come: it is within some percent of the library where all rows are
/// real, and ahead by what is padding.
const TILE_ELEMENTS: u64 = 4 << 20;
/// The most rows of such a product where nothing follows it in the tiles: steps of more are prompts in
/// parts that fill them, for which the library is as fast.
const TILE_ROWS: u64 = 4096;
/// The depth from which the rows of x that each block of the kernel on tensor cores holds cost more
/// than they save.
const DEEP: u64 = 4096;

/// By what a product of a piece is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ProductWays {
    arch: Arch,
    /// Whether a row has the same bits in any company, so that only ways are left whose sums do not
    /// depend on the number of rows.
    batch_invariant: bool,
    /// Whether tiles take in what follows a product of any size that they can compute.
    tiles_of_any_size: bool,
}

impl ProductWays {
    pub(super) fn new(arch: Arch, batch_invariant: bool) -> Self {
        Self { arch, batch_invariant, tiles_of_any_size: false }
    }

    /// The same, where products also take in by tiles what they are not expected to be faster with: for
    /// measuring to find where they are.
    pub(super) fn with_tiles_of_any_size(self) -> Self {
        Self { tiles_of_any_size: true, ..self }
    }

    /// Whether a product of so many rows can be computed in tiles.
    pub(super) fn has_tiles(self, spec: &MatMulSpec, rows: u64) -> bool {
        self.arch.has_warpgroup_products()
            && (spec.multiplies_in_tiles() || spec.widens_into_tiles())
            && (rows > TENSOR_ROWS
                || self.batch_invariant
                || (spec.has_codes() && !spec.multiplies_in_a_ring(rows)))
    }

    /// Whether it is expected to be fastest so, alone.
    pub(super) fn prefers_tiles(self, spec: &MatMulSpec, rows: u64) -> bool {
        let is_moderate = self.batch_invariant || spec.has_codes() || rows <= TILE_ROWS;
        is_moderate && self.prefers_tiles_with_region(spec, rows)
    }

    /// The same with the region after it, whose operand then never leaves the tiles.
    pub(super) fn prefers_tiles_with_region(self, spec: &MatMulSpec, rows: u64) -> bool {
        let is_large = spec.has_codes() || rows.saturating_mul(spec.columns) >= TILE_ELEMENTS;
        self.has_tiles(spec, rows) && (self.batch_invariant || self.tiles_of_any_size || is_large)
    }

    /// Whether a product of so many rows is expected to be fastest through a ring.
    pub(super) fn prefers_ring(self, spec: &MatMulSpec, rows: u64) -> bool {
        !self.batch_invariant
            && self.arch.has_warpgroup_products()
            && (rows > ABSORBING_ROWS || spec.has_codes())
            && spec.multiplies_in_a_ring(rows)
    }

    /// The ways through a ring of a product that is expected to be fastest so, the fastest first.
    pub(super) fn rings(
        self,
        spec: &MatMulSpec,
        rows: u64,
        longer: bool,
    ) -> impl Iterator<Item = (Way, RingForm)> {
        let way = |form| match form {
            RingForm::Whole => Way::Ring,
            RingForm::Half { .. } => Way::HalfRing,
            RingForm::Panel => Way::Panel,
        };
        spec.ring_forms(rows, longer).into_iter().map(move |form| (way(form), form))
    }

    /// Whether it can be computed by the kernel on tensor cores.
    pub(super) fn has_tensor(self, spec: &MatMulSpec, rows: u64) -> bool {
        let bytes = self.arch.shared_bytes_of_block();
        !self.batch_invariant && rows >= 2 && spec.multiplies_on_tensor_cores(rows, bytes)
    }

    /// Whether its weights can stream.
    pub(super) fn has_stream(self, spec: &MatMulSpec, rows: u64) -> bool {
        !self.batch_invariant && spec.streams() && (1..=STREAM_ROWS).contains(&rows)
    }

    /// Whether a library may be asked.
    pub(super) fn has_library(self) -> bool {
        !self.batch_invariant
    }

    /// Whether a product of so many rows takes in the regions beside it by streaming.
    pub(super) fn absorbs(self, rows: u64) -> bool {
        !self.batch_invariant && rows <= ABSORBING_ROWS
    }

    /// The ways of a product but for those through a ring, which come before, the one first that is
    /// expected to be fastest.
    pub(super) fn in_order(self, spec: &MatMulSpec, rows: u64) -> [Way; 5] {
        use Way::{General, Library, Stream, Tensor, Tile};
        match (rows, spec.depth < DEEP) {
            (..=1, _) | (2, false) => [Stream, Library, Tensor, Tile, General],
            _ if self.prefers_tiles(spec, rows) => [Tile, Library, Tensor, Stream, General],
            (_, true) => [Tensor, Library, Tile, Stream, General],
            (_, false) => [Library, Tensor, Tile, Stream, General],
        }
    }

    /// Why [`Self::in_order`] has the order that it has, or rings come before it.
    pub(super) fn reason(self, spec: &MatMulSpec, rows: u64) -> String {
        let few = || "so few rows wait for the weights, and what reads them fastest is first";
        let rule = match (rows, spec.depth < DEEP) {
            _ if self.prefers_ring(spec, rows) => {
                "weights pass a ring in shared memory, which reads them as fast as the device can"
            }
            _ if self.prefers_tiles(spec, rows) && self.batch_invariant => {
                "in tiles the sums of a row do not depend on how many there are"
            }
            (..=1, _) | (2, false) => few(),
            _ if self.prefers_tiles(spec, rows) => {
                "tiles of a large result fill the device, and skip what is padding"
            }
            (_, true) => {
                "blocks hold the rows of the left side, and tensor cores read weights once"
            }
            (_, false) => {
                "a block would hold more of the left side than that saves, so the library is first"
            }
        };
        let MatMulSpec { columns, depth, .. } = spec;
        format!("{rows} rows, {columns} columns, depth {depth}: {rule}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::dim::Dim;
    use piecewise_ir::dtype::DType::{self, BF16, F32};
    use piecewise_ir::entity::{Entity, Symbol};
    use piecewise_ir::types::TensorType;

    fn linear(dtype: DType, depth: u64, columns: u64) -> MatMulSpec {
        let rows = Dim::from(Symbol::new(0));
        let x = TensorType::new(dtype, [rows.clone(), depth.into()]);
        let w = TensorType::new(dtype, [columns, depth]);
        let y = TensorType::new(dtype, [rows, columns.into()]);
        MatMulSpec::new(false, true, &x, &w, &y).unwrap().of_weight()
    }

    /// Tiles on Hopper where types and widths allow it, else the general kernel.
    #[test]
    fn where_a_row_has_the_same_bits_in_any_company_no_number_of_rows_changes_the_way() {
        for number in [80, 87, 89, 90, 100, 120] {
            let arch = Arch { number };
            let ways = ProductWays::new(arch, true);
            for spec in [linear(BF16, 768, 3072), linear(BF16, 60, 100), linear(F32, 768, 768)] {
                let tiles = arch == Arch::HOPPER && spec.multiplies_in_tiles();
                for rows in [1, 2, 3, 8, 9, 32, 33, 96, 128, 129, 4096, 4097, 8192] {
                    let asked = [
                        ways.has_tiles(&spec, rows),
                        ways.prefers_tiles(&spec, rows),
                        ways.prefers_tiles_with_region(&spec, rows),
                        ways.prefers_ring(&spec, rows),
                        ways.has_tensor(&spec, rows),
                        ways.has_stream(&spec, rows),
                        ways.has_library(),
                        ways.absorbs(rows),
                    ];
                    let expected = [tiles, tiles, tiles, false, false, false, false, false];
                    assert_eq!(asked, expected, "{arch}, {rows} rows, {spec:?}");
                }
            }
        }
        assert!(linear(BF16, 768, 3072).multiplies_in_tiles());
        assert!(ProductWays::new(Arch::HOPPER, false).has_stream(&linear(BF16, 768, 3072), 1));
    }

    #[test]
    fn prompts_of_any_length_keep_what_follows_a_product_in_its_tiles() {
        let (ways, spec) = (ProductWays::new(Arch::HOPPER, false), linear(BF16, 4096, 24576));
        for (rows, alone, with_region) in
            [(128, false, false), (512, true, true), (4096, true, true), (8192, false, true)]
        {
            assert_eq!(ways.prefers_tiles(&spec, rows), alone, "{rows}");
            assert_eq!(ways.prefers_tiles_with_region(&spec, rows), with_region, "{rows}");
            let first = ways.in_order(&spec, rows)[0];
            assert_eq!(first == Way::Tile, alone, "{rows}: {first}");
            let of_any_size = ways.with_tiles_of_any_size();
            assert!(of_any_size.prefers_tiles_with_region(&spec, rows), "{rows}");
        }
    }
}
