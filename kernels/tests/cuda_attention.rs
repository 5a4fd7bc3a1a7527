//! Attention kernels on the host against the f64 reference, with NaN past every length.

use crate::emulate::{Case, Rng, available, fill, floats, try_emulate_hiding};
use piecewise_ir::custom::CustomOpDef;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::eval::Array;
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::PagedAttention;
use piecewise_kernels::cuda::{OperandRole, attention_kernels, other_attention_kernels};
use piecewise_kernels::op::cuda::{CudaOpCall, CudaTarget};
use std::ops::Range;

const PAGES: usize = 160;
const POOL_PAGES: usize = 256;
/// Sequences past the count, with lengths that nothing may follow.
const PADDING: usize = 2;

#[derive(Clone, Copy)]
struct Step<'a> {
    dtypes: [DType; 2],
    heads: [usize; 2],
    dims: [usize; 2],
    causal: bool,
    lengths: &'a [i32],
    queries: &'a [i32],
    /// Rows past those of the sequences.
    padding_rows: usize,
    capability: (u32, u32),
    /// Of every sequence, where the kernels are those of uniform batches.
    query_length: Option<u64>,
    /// Whether the keys are in more ranges than usual.
    more_ranges: bool,
}

/// What a step is run on, and what must come of it.
struct Checked {
    case: Case,
    /// Of the keys and the values, as arguments, the bytes of pages that the step writes to.
    written: Vec<(usize, Range<usize>)>,
    expected: Array,
}

impl Default for Step<'_> {
    fn default() -> Self {
        Self {
            dtypes: [BF16; 2],
            heads: [4, 2],
            dims: [64, 64],
            causal: true,
            lengths: &[],
            queries: &[],
            padding_rows: 3,
            capability: (8, 0),
            query_length: None,
            more_ranges: false,
        }
    }
}

impl Step<'_> {
    fn operands(&self) -> Vec<TensorType> {
        let [t, s, p] = [0, 1, 2].map(|i| Dim::from(Symbol::new(i)));
        let n = |x: usize| Dim::constant(x as u64);
        let metadata = TensorType::new(I32, [s.clone()]);
        let [q, kv] = self.dtypes;
        let [heads, kv_heads] = self.heads.map(n);
        let [dim, value_dim] = self.dims.map(n);
        vec![
            TensorType::new(q, [t, heads, dim.clone()]),
            TensorType::new(kv, [p.clone(), kv_heads.clone(), dim]),
            TensorType::new(kv, [p, kv_heads, value_dim]),
            TensorType::new(I32, [s, n(PAGES)]),
            metadata.clone(),
            metadata.clone(),
            metadata,
        ]
    }

    /// What is written of the keys and values, in bytes: the pages with positions of the step's own tokens,
    /// but for those that another sequence has seen already.
    fn written(&self, table: &[i32]) -> Vec<(usize, Range<usize>)> {
        let pages = |i: usize, positions: Range<i32>| {
            let numbers = positions.start as usize / 16..(positions.end as usize).div_ceil(16);
            let is_empty = positions.is_empty();
            numbers.filter(move |_| !is_empty).map(move |p| table[i * PAGES + p] as usize)
        };
        let sequences = || self.lengths.iter().zip(self.queries).enumerate();
        let before: Vec<usize> = sequences()
            .flat_map(|(i, (length, queries))| pages(i, 0..(length - queries) / 16 * 16))
            .collect();
        let own = sequences()
            .flat_map(|(i, (length, queries))| pages(i, length - queries..*length))
            .filter(|page| !before.contains(page));
        let own: Vec<usize> = own.collect();
        let parts = [1, 2].map(|arg: usize| {
            let bytes = 16 * self.heads[1] * self.dims[arg - 1] * self.dtypes[1].size();
            own.iter().map(move |page| (arg, page * bytes..(page + 1) * bytes)).collect::<Vec<_>>()
        });
        parts.concat()
    }

    /// The result's bytes of the real rows; checked against the reference, that no padding row is
    /// written, and that nothing of what the step writes is read before the wait.
    fn check(&self, name: &str, entries: &[&str]) -> Vec<u8> {
        let Checked { case, written, expected } = self.made(name, entries);
        let (qt, h, d1) = (self.dtypes[0], self.heads[0], self.dims[1]);
        let result = try_emulate_hiding(name, &case, &written);
        let mut got = result.unwrap_or_else(|refused| panic!("{name} {refused}")).remove(7);
        let padding = got.split_off(expected.data.len() * qt.size());
        assert!(padding.iter().all(|x| *x == 0x5a), "{name}: padding rows are written");
        let limit = if qt == BF16 { 1e-2 } else { 8e-3 };
        for (i, (a, b)) in floats(qt, &got).iter().zip(&expected.data).enumerate() {
            let at = (i / (h * d1), i / d1 % h, i % d1);
            assert!((a - b).abs() < limit, "{name} at {at:?}: {a}, not {b}");
        }
        got
    }

    fn made(&self, name: &str, entries: &[&str]) -> Checked {
        let mut r = Rng(5);
        let [qt, kt] = self.dtypes;
        let [h, kh] = self.heads;
        let [d0, d1] = self.dims;
        let (s, pool) = (self.lengths.len(), POOL_PAGES * 16);
        let t: usize = self.queries.iter().map(|x| *x as usize).sum();
        let rows = t + self.padding_rows;
        let mut k = fill(kt, pool * kh * d0, &mut r);
        let mut v = fill(kt, pool * kh * d1, &mut r);
        let q = fill(qt, rows * h * d0, &mut r);
        let table: Vec<i32> =
            (0..(s + PADDING) * PAGES).map(|i| ((i * 13 + 5) % POOL_PAGES) as i32).collect();
        let mut used = vec![false; pool];
        for (i, length) in self.lengths.iter().enumerate() {
            for p in 0..*length as usize {
                used[table[i * PAGES + p / 16] as usize * 16 + p % 16] = true;
            }
        }
        let (kf, vf) = (floats(kt, &k), floats(kt, &v));
        for (bytes, width) in [(&mut k, kh * d0 * kt.size()), (&mut v, kh * d1 * kt.size())] {
            for (row, _) in bytes.chunks_mut(width).zip(&used).filter(|(_, used)| !**used) {
                row.fill(0xff);
            }
        }
        let padded = |x: &[i32]| -> Vec<i32> { x.iter().copied().chain([7; PADDING]).collect() };
        let starts: Vec<i32> = (0..s).map(|i| self.queries[..i].iter().sum()).collect();
        let attrs = PagedAttention::attrs(0.2, self.causal);
        let array = |dtype, shape: Vec<usize>, data: Vec<f64>| Array { dtype, shape, data };
        let ints = |x: &[i32]| array(I32, vec![x.len()], x.iter().map(|v| f64::from(*v)).collect());
        let mut expected = PagedAttention
            .evaluate(
                &[
                    array(qt, vec![t, h, d0], floats(qt, &q)[..t * h * d0].to_vec()),
                    array(kt, vec![pool, kh, d0], kf),
                    array(kt, vec![pool, kh, d1], vf),
                    array(I32, vec![s, PAGES], ints(&table[..s * PAGES]).data),
                    ints(self.lengths),
                    ints(&starts),
                    ints(self.queries),
                ],
                &attrs,
                &[],
            )
            .unwrap();
        let sizes = vec![rows as u64, (s + PADDING) as u64, pool as u64];
        let role = |i| OperandRole { state: i == 1 || i == 2, weight: false, staged: i > 2 };
        let roles: Vec<OperandRole> = (0..7).map(role).collect();
        let at = |capability| {
            let call = CudaOpCall {
                operands: &self.operands(),
                roles: &roles,
                results: &[],
                attrs: &attrs,
                target: CudaTarget { capability },
                sizes: &sizes,
                query_length: self.query_length,
            };
            let usual = attention_kernels(&call).unwrap();
            if !self.more_ranges {
                return usual;
            }
            let mut others = other_attention_kernels(&call).unwrap();
            assert_eq!(others.len(), 1, "{name}");
            assert!(others[0].scratch.eval(&sizes) > usual.scratch.eval(&sizes), "{name}");
            others.remove(0)
        };
        let mut kernels = at((8, 0));
        if self.capability != (8, 0) {
            // Blocks run one after the other here, and are no clusters: prompts alone differ.
            kernels.launches.pop();
            kernels.launches.extend(at(self.capability).launches.pop());
        }
        let made: Vec<&str> = kernels.launches.iter().map(|l| l.entry.as_str()).collect();
        assert_eq!(made, entries, "{name}");
        let scratch = kernels.scratch.eval(&sizes);
        kernels.launches.iter().for_each(|launch| launch.check(8, scratch).unwrap());
        let bytes = |x: &[i32]| bytemuck::cast_slice::<i32, u8>(x).to_vec();
        let case = Case {
            launches: kernels.launches,
            args: vec![
                q,
                k,
                v,
                bytes(&table),
                bytes(&padded(self.lengths)),
                bytes(&padded(&starts)),
                bytes(&padded(self.queries)),
                vec![0x5a; rows * h * d1 * qt.size()],
            ],
            sizes,
            counts: vec![t as i32, s as i32, pool as i32],
            scratch: scratch.max(256),
        };
        Checked { case, written: self.written(&table), expected: expected.remove(0) }
    }
}

const ONE: [&str; 1] = ["attention_split"];
const SPLIT: [&str; 2] = ["attention_split", "attention_combine"];
const DECODE_ONE: [&str; 1] = ["attention_decode"];
const DECODE: [&str; 2] = ["attention_decode", "attention_combine"];
const BOTH: [&str; 3] = ["attention_decode", "attention_combine", "attention_prefill"];
const BOTH_ONE: [&str; 2] = ["attention_decode", "attention_prefill"];

#[test]
fn kernels_without_tensor_cores_see_nothing_past_a_length() {
    if !available() {
        return;
    }
    let step = Step { lengths: &[37, 5, 0, 100], queries: &[1, 1, 0, 1], ..Step::default() };
    Step { dtypes: [F32, BF16], ..step }.check("split_decodes", &SPLIT);
    for (dtypes, heads, dims, causal, lengths, queries, entries) in [
        ([F32, F32], [4, 1], [20, 12], true, &[37, 5, 33][..], &[20, 5, 2][..], &SPLIT[..]),
        ([F32, F32], [6, 2], [128, 64], false, &[40, 17], &[3, 17], &SPLIT),
        ([F16, F16], [2, 2], [20, 256], true, &[65, 16], &[1, 16], &SPLIT),
        ([F32, BF16], [16, 1], [80, 80], true, &[70], &[9], &SPLIT),
        // No tensor cores for these types, whatever the rows.
        ([F32, BF16], [4, 4], [16, 16], true, &[280], &[270], &ONE),
    ] {
        let step = Step { dtypes, heads, dims, causal, lengths, queries, ..Step::default() };
        step.check(&format!("split_{}_{}_{}", dtypes[0], dims[0], heads[0]), entries);
    }
}

/// One token each: no key before it, a page less one, a page, one more, and longer ones.
fn decodes(dtype: DType, heads: [usize; 2], dims: [usize; 2], padding_rows: usize, one: bool) {
    let step = Step {
        dtypes: [dtype; 2],
        heads,
        dims,
        lengths: &[1, 15, 16, 17, 0, 100, 700],
        queries: &[1, 1, 1, 1, 0, 1, 1],
        padding_rows,
        ..Step::default()
    };
    if available() {
        let name = format!("decode_{dtype}_{}_{}_{}_{one}", heads[0], dims[0], dims[1]);
        step.check(&name, if one { &DECODE_ONE } else { &DECODE });
    }
}

#[test]
fn decodes_of_every_group_on_tensor_cores() {
    decodes(BF16, [2, 2], [64, 64], 3, false);
    decodes(F16, [4, 2], [64, 64], 3, false);
    decodes(BF16, [8, 2], [128, 128], 3, false);
    decodes(F16, [5, 1], [80, 80], 3, false);
    decodes(BF16, [8, 1], [16, 16], 3, false);
    decodes(F16, [16, 1], [128, 128], 3, false);
}

#[test]
fn decodes_with_wide_heads_on_tensor_cores() {
    decodes(BF16, [4, 1], [256, 256], 3, false);
    decodes(F16, [2, 1], [192, 128], 3, false);
    decodes(BF16, [2, 2], [16, 256], 3, false);
}

#[test]
fn decodes_whose_keys_are_in_one_range_take_one_launch() {
    decodes(BF16, [10, 10], [64, 48], 40, true);
    decodes(F16, [16, 8], [128, 128], 40, true);
    decodes(BF16, [16, 8], [256, 16], 40, true);
}

/// A step's own keys are written by the kernels that decodes wait for: a bound that reads one page more
/// ahead of them is found, and which of its pages the step writes is no guess.
#[test]
fn a_page_too_many_that_is_read_ahead_is_found() {
    if !available() {
        return;
    }
    const BOUND: &str = "(length - queries) / PAGE : 0;";
    for (name, lengths, queries, query_length) in [
        ("decode", &[33, 100][..], &[1, 1][..], None),
        ("uniform", &[40, 64], &[4, 4], Some(4)),
        ("tokens", &[50, 90], &[5, 2], None),
    ] {
        // Heads of 32 have pages of half of what the host protects.
        for dims in [[64, 64], [32, 32]] {
            let padding_rows = PADDING * query_length.unwrap_or(1) as usize;
            let step =
                Step { lengths, queries, dims, query_length, padding_rows, ..Step::default() };
            let name = format!("ahead_{name}_{}", dims[0]);
            step.check(&name, &DECODE);
            let Checked { mut case, written, .. } = step.made(&name, &DECODE);
            let decode = &case.launches[0];
            assert_eq!(decode.ahead, (1..=6).collect::<Vec<u32>>(), "keys are read ahead");
            assert_eq!(decode.source.matches(BOUND).count(), 1);
            for launch in &mut case.launches {
                launch.source = launch.source.replace(BOUND, "(length - queries) / PAGE + 1 : 0;");
            }
            let refused = try_emulate_hiding(&format!("{name}_planted"), &case, &written);
            let refused = refused.expect_err(&name);
            assert!(refused.contains("what is written of argument 1 is touched"), "{refused}");
        }
    }
}

/// A warp finds 32 of its pages at a time.
#[test]
fn a_decode_of_more_pages_than_a_warp_finds_at_a_time() {
    let step = Step {
        heads: [20, 20],
        dims: [16, 16],
        lengths: &[2150],
        queries: &[1],
        padding_rows: 40,
        ..Step::default()
    };
    if available() {
        step.check("decode_long", &DECODE_ONE);
    }
}

#[test]
fn sequences_of_several_tokens_in_small_steps_on_tensor_cores() {
    if !available() {
        return;
    }
    for (dtypes, heads, dims, causal, lengths, queries) in [
        ([BF16, BF16], [4, 1], [64, 64], true, &[37, 5, 333][..], &[20, 5, 2][..]),
        ([F16, F16], [6, 2], [128, 64], false, &[40, 17], &[3, 17]),
        ([BF16, BF16], [5, 1], [256, 256], true, &[65, 16], &[1, 16]),
        ([F16, F16], [16, 1], [80, 80], true, &[70, 0, 600], &[9, 0, 3]),
    ] {
        let step = Step { dtypes, heads, dims, causal, lengths, queries, ..Step::default() };
        step.check(&format!("tokens_{}_{}_{}", dtypes[0], dims[0], heads[0]), &DECODE);
    }
}

#[test]
fn a_decode_has_the_same_bits_whatever_is_beside_it() {
    if !available() {
        return;
    }
    let alone = Step { lengths: &[333, 0, 0], queries: &[1, 0, 0], ..Step::default() };
    let beside =
        Step { lengths: &[333, 700, 20], queries: &[1, 1, 1], padding_rows: 1, ..Step::default() };
    let alone = alone.check("decode_alone", &DECODE);
    assert_eq!(beside.check("decode_beside", &DECODE)[..alone.len()], alone);
}

/// One kernel takes a uniform batch, however many rows it has.
#[test]
fn uniform_batches_on_tensor_cores() {
    if !available() {
        return;
    }
    for (heads, dims, query_length, lengths, entries) in [
        ([4, 2], [64, 64], 1, &[64; 70][..], &DECODE_ONE[..]),
        ([4, 2], [64, 64], 4, &[9, 4, 333, 20], &DECODE),
        ([8, 1], [64, 48], 8, &[8, 70, 301, 16, 17, 9, 33, 100], &DECODE),
        ([5, 1], [80, 80], 3, &[40; 30], &DECODE),
        ([16, 1], [16, 32], 5, &[70; 20], &["attention_prefill"]),
    ] {
        let queries = vec![query_length as i32; lengths.len()];
        let step = Step {
            heads,
            dims,
            lengths,
            queries: &queries,
            padding_rows: PADDING * query_length,
            query_length: Some(query_length as u64),
            ..Step::default()
        };
        step.check(&format!("uniform_{}_{query_length}", heads[0]), entries);
    }
}

/// Chunks that start a sequence, that go on, that are as short as decodes, and all of them beside
/// decodes.
const LENGTHS: [i32; 7] = [130, 300, 5, 64, 0, 201, 77];
const QUERIES: [i32; 7] = [130, 64, 5, 17, 0, 1, 2];

fn ragged(name: &str, dtype: DType, heads: [usize; 2], dims: [usize; 2], causal: bool) {
    let step = Step {
        dtypes: [dtype; 2],
        heads,
        dims,
        causal,
        lengths: &LENGTHS,
        queries: &QUERIES,
        ..Step::default()
    };
    if available() {
        step.check(name, &BOTH);
    }
}

#[test]
fn tensor_cores_in_ragged_steps() {
    ragged("ragged_group_2", BF16, [4, 2], [128, 128], true);
    ragged("ragged_group_1", F16, [2, 2], [64, 64], true);
    ragged("ragged_group_3", BF16, [6, 2], [80, 80], false);
}

#[test]
fn tensor_cores_in_ragged_steps_of_other_groups() {
    ragged("ragged_group_4", F16, [4, 1], [96, 96], true);
    ragged("ragged_group_5", BF16, [5, 1], [64, 48], true);
    ragged("ragged_group_8", BF16, [8, 1], [64, 64], false);
    ragged("ragged_group_16", F16, [16, 1], [16, 32], true);
}

#[test]
fn tensor_cores_with_wide_heads() {
    ragged("wide_256", BF16, [2, 2], [256, 256], true);
    ragged("wide_192_128", F16, [2, 1], [192, 128], true);
    ragged("wide_64_256", BF16, [2, 1], [64, 256], true);
}

/// So many rows of padding that no keys are cut into ranges: those need clusters, which the host
/// does not have.
fn by_warpgroups(name: &str, dtype: DType, heads: [usize; 2], dims: [usize; 2], causal: bool) {
    let step = Step {
        dtypes: [dtype; 2],
        heads,
        dims,
        causal,
        lengths: &LENGTHS,
        queries: &QUERIES,
        padding_rows: 8400,
        capability: (9, 0),
        ..Step::default()
    };
    if available() {
        step.check(name, &BOTH);
    }
}

#[test]
fn warpgroups_in_ragged_steps() {
    by_warpgroups("warpgroups_128", BF16, [4, 2], [128, 128], true);
    by_warpgroups("warpgroups_64", F16, [2, 2], [64, 64], true);
}

#[test]
fn warpgroups_in_ragged_steps_of_other_groups_and_widths() {
    by_warpgroups("warpgroups_64_128", F16, [3, 1], [64, 128], true);
    by_warpgroups("warpgroups_128_64", BF16, [8, 1], [128, 64], false);
    by_warpgroups("warpgroups_80", F16, [2, 2], [80, 80], true);
    by_warpgroups("warpgroups_96_112", BF16, [2, 1], [96, 112], true);
}

#[test]
fn a_row_has_the_same_bits_in_every_grid() {
    if !available() {
        return;
    }
    let step = Step { lengths: &LENGTHS, queries: &QUERIES, ..Step::default() };
    let here = step.check("grid_close", &BOTH);
    assert_eq!(Step { padding_rows: 400, ..step }.check("grid_wide", &BOTH), here);
    // So many rows that a block of prompts takes twice as many.
    assert_eq!(Step { padding_rows: 8400, ..step }.check("grid_widest", &BOTH), here);
}

#[test]
fn decodes_in_more_ranges_than_usual() {
    if !available() {
        return;
    }
    for query_length in [None, Some(1)] {
        let lengths: Vec<i32> = (0..20).map(|i| 1 + i * 29).collect();
        let step = Step {
            lengths: &lengths,
            queries: &[1; 20],
            query_length,
            padding_rows: PADDING,
            more_ranges: true,
            ..Step::default()
        };
        step.check("more_ranges", &DECODE);
    }
}

#[test]
fn many_decodes_take_no_second_launch_for_ranges() {
    let step = Step {
        heads: [4, 4],
        lengths: &[64; 70],
        queries: &[1; 70],
        padding_rows: 2,
        ..Step::default()
    };
    if available() {
        step.check("many", &BOTH_ONE);
    }
}
