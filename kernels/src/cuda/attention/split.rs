//! Sequences with few tokens: their keys cut into ranges, so that a few rows keep a device busy.

use super::super::matmul::options;
use super::super::recipe::{Blocks, GridAxis, LaunchRecipe, OpKernels, Param, Scalar};
use super::{Shape, number, shorter, size};
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::Entity;

/// The most ranges that the keys of a sequence are cut into.
const MAX_SPLITS: u64 = 16;
/// The most ranges where longer sequences keep the device busy beside them.
const MIXED_SPLITS: u64 = 4;
/// Bytes that the partial results of such steps stay below.
const MIXED_SCRATCH: u64 = 64 << 20;
/// Blocks that keep a large device busy: two for each of its multiprocessors.
const ENOUGH_BLOCKS: u64 = 264;

/// Query rows of a block: those of one token where sequences bring one each.
fn tile(shape: &Shape, sizes: &[u64], few: Option<u64>) -> u64 {
    let one_token = few.is_some() || shape.rows.eval(sizes) < 4 * shape.sequences.eval(sizes);
    if one_token { shape.group().next_power_of_two().min(4) } else { 4 }
}

/// The launches for sequences of up to `few` tokens, or for all.
pub(super) fn kernels(shape: &Shape, sizes: &[u64], few: Option<u64>) -> OpKernels {
    let tile = tile(shape, sizes, few);
    let lanes = shape.dim.max(shape.value_dim).div_ceil(8).next_power_of_two();
    let each = shape.heads * (shape.value_dim + 2) * 4;
    let (tiles, places, splits) = match few {
        None => {
            let rows = shape.rows.eval(sizes).saturating_mul(shape.group());
            let blocks = rows.div_ceil(tile).saturating_mul(shape.kv_heads).max(1);
            let splits = (ENOUGH_BLOCKS / blocks).clamp(1, MAX_SPLITS);
            (GridAxis::Blocks(shape.tiles(tile)), shape.rows.clone(), splits)
        }
        Some(few) => {
            let of_each = (few * shape.group()).div_ceil(tile);
            let units = shape.sequences.times(of_each as i64);
            let tiles = shorter(shape.tiles(tile), vec![Blocks { units, per_block: 1 }], sizes);
            let places = shape.sequences.times(few as i64);
            let bytes = places.eval(sizes).saturating_mul(each).max(1);
            // As many sequences as rows: decodes, that keep the device busy if they are many.
            let [rows, sequences] = [&shape.rows, &shape.sequences].map(|dim| dim.eval(sizes));
            let most = match rows < 2 * sequences {
                true => ENOUGH_BLOCKS / sequences.saturating_mul(shape.kv_heads).max(1),
                false => MIXED_SPLITS,
            };
            (tiles, places, most.min(MIXED_SCRATCH / bytes).clamp(1, MIXED_SPLITS))
        }
    };
    let defines = [("LANES", lanes), ("TILE", tile)];
    let source = shape.header(few.unwrap_or(0), &defines) + include_str!("split.cu");
    let mut params: Vec<Param> = (0..8).map(Param::Arg).collect();
    params.extend([
        // One range writes the result at once and no partial sum: any valid address does.
        if splits > 1 { Param::Scratch(0) } else { Param::Arg(7) },
        Param::Counts,
        size(&shape.rows),
        size(&shape.sequences),
        number(shape.sequence_symbol.index() as u64),
        Param::Scalar(Scalar::U64(shape.kv_rows.clone())),
        number(shape.pages),
        number(splits),
        shape.scale(),
    ]);
    let mut launches = vec![LaunchRecipe {
        source: source.clone(),
        entry: "attention_split".to_owned(),
        options: options(),
        grid: [tiles, GridAxis::of(shape.kv_heads, 1), GridAxis::of(splits, 1)],
        block: [128, 1, 1],
        static_shared: 4 * 4 * tile as u32 * (2 + lanes as u32 * 8),
        dynamic_shared: 0,
        params,
        programmatic: true,
    }];
    let mut scratch = Dim::constant(0);
    if splits > 1 {
        scratch = places.times((each * splits) as i64);
        let grid = GridAxis::of(places.times(shape.heads as i64), 4);
        launches.push(LaunchRecipe {
            source,
            entry: "attention_combine".to_owned(),
            options: options(),
            grid: [grid, GridAxis::one(), GridAxis::one()],
            block: [128, 1, 1],
            static_shared: 0,
            dynamic_shared: 0,
            params: vec![
                Param::Scratch(0),
                Param::Arg(5),
                Param::Arg(6),
                Param::Arg(7),
                Param::Counts,
                size(&shape.rows),
                size(&shape.sequences),
                number(shape.row_symbol.index() as u64),
                number(shape.sequence_symbol.index() as u64),
                number(splits),
            ],
            programmatic: true,
        });
    }
    OpKernels { launches, scratch }
}
