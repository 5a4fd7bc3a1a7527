//! Kernels of matmul, attention and sampling: recipes, and that NVRTC takes all of them.

use crate::nvrtc::Nvrtc;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::{self, BF16, F16, F32, I32, I64};
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::types::TensorType;
use piecewise_kernels::attention::{PagedAttention, other_attention_kernels};
use piecewise_kernels::cuda::{
    LaunchRecipe, MatMulSpec, OpKernels, OperandRole, PRELUDE, Param, STREAM_ROWS, TENSOR_ROWS,
    controlled_sample_kernels, sample_kernels,
};
use piecewise_kernels::lower::LowerError;
use piecewise_kernels::op::cuda::{CudaOpCall, CudaTarget};
use std::collections::BTreeSet;

/// Compute capabilities without and with clusters and products of warpgroups.
const AMPERE: (u32, u32) = (8, 0);
const HOPPER: (u32, u32) = (9, 0);
const ARCHS: [&str; 6] = ["sm_80", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_120"];

fn rows() -> Dim {
    Dim::from(Symbol::new(0))
}

/// Attention over states, with metadata that the host stages: as usual, and the other ways.
fn attention_ways(
    operands: &[TensorType],
    attrs: &Attrs,
    sizes: &[u64],
    capability: (u32, u32),
) -> Result<(OpKernels, Vec<OpKernels>), LowerError> {
    let role = |i| OperandRole { state: i == 1 || i == 2, weight: false, staged: i > 2 };
    let roles: Vec<OperandRole> = (0..operands.len()).map(role).collect();
    let call = CudaOpCall {
        operands,
        roles: &roles,
        results: &[],
        attrs,
        target: CudaTarget { capability },
        sizes,
        query_length: None,
    };
    let usual = piecewise_kernels::attention::attention_kernels(&call)?;
    Ok((usual, other_attention_kernels(&call)?))
}

fn attention_kernels(
    operands: &[TensorType],
    attrs: &Attrs,
    sizes: &[u64],
    capability: (u32, u32),
) -> Result<OpKernels, LowerError> {
    attention_ways(operands, attrs, sizes, capability).map(|(usual, _)| usual)
}

fn linear(types: [DType; 3], depth: u64, columns: u64) -> MatMulSpec {
    let x = TensorType::new(types[0], [rows(), depth.into()]);
    let w = TensorType::new(types[1], [columns, depth]);
    let y = TensorType::new(types[2], [rows(), columns.into()]);
    MatMulSpec::new(false, true, &x, &w, &y).unwrap().of_weight()
}

fn attention(q: DType, kv: DType, heads: [u64; 2], dims: [u64; 2]) -> Vec<TensorType> {
    let (t, s, p) = (rows(), Dim::from(Symbol::new(1)), Dim::from(Symbol::new(2)));
    let metadata = TensorType::new(I32, [s.clone()]);
    vec![
        TensorType::new(q, [t, heads[0].into(), dims[0].into()]),
        TensorType::new(kv, [p.clone(), heads[1].into(), dims[0].into()]),
        TensorType::new(kv, [p, heads[1].into(), dims[1].into()]),
        TensorType::new(I32, [s, 256u64.into()]),
        metadata.clone(),
        metadata.clone(),
        metadata,
    ]
}

/// Prompts by warpgroups: each pair of widths, a group that divides no tile, and all ranges. Decodes
/// beside them in clusters of each size.
fn hopper_kernels() -> Vec<LaunchRecipe> {
    let mut all = Vec::new();
    for (dtype, heads, dims, causal) in [
        (BF16, [32, 8], [128, 128], true),
        (F16, [32, 8], [64, 64], true),
        (BF16, [6, 2], [128, 64], false),
        (F16, [4, 4], [64, 128], false),
        (BF16, [32, 32], [80, 80], true),
        (F16, [32, 32], [96, 112], true),
    ] {
        let attrs = PagedAttention::attrs(0.125, causal);
        for rows in [64, 128, 512, 8192] {
            let operands = attention(dtype, dtype, heads, dims);
            let made = attention_ways(&operands, &attrs, &[rows, 64, 4096], HOPPER);
            let (usual, others) = made.unwrap();
            all.extend(std::iter::once(usual).chain(others).filter_map(|mut k| k.launches.pop()));
        }
    }
    let attrs = PagedAttention::attrs(0.125, true);
    let operands = attention(BF16, BF16, [32, 8], [128, 128]);
    let (usual, others) = attention_ways(&operands, &attrs, &[512, 64, 4096], HOPPER).unwrap();
    all.extend(usual.launches.into_iter().chain(others.into_iter().flat_map(|k| k.launches)));
    all
}

fn sampling() -> [OpKernels; 2] {
    let parameter = |dtype| TensorType::new(dtype, [rows()]);
    let logits = TensorType::new(F32, [rows(), 151_936u64.into()]);
    let parameters = [F32, I32, F32, I64, I32].map(parameter);
    let operands = [vec![logits], parameters.to_vec()].concat();
    [sample_kernels(&operands).unwrap(), controlled_sample_kernels(&operands).unwrap()]
}

fn all_kernels() -> Vec<LaunchRecipe> {
    let mut all = Vec::new();
    for x in [BF16, F16, F32] {
        for w in [BF16, F16, F32] {
            let spec = linear([x, w, if x == w { x } else { F32 }], 1024, 4096);
            all.push(spec.general_kernel().unwrap());
            all.extend([1, 8].map(|m| spec.stream_kernel(m).unwrap()));
        }
    }
    for (depth, columns) in [(2048, 1024), (3072, 1024), (4096, 6144), (12288, 4096)] {
        let spec = linear([BF16; 3], depth, columns);
        all.extend([1, 2, 3, 8].map(|m| spec.stream_kernel(m).unwrap()));
    }
    for dtype in [BF16, F16] {
        for depth in [32, 896, 1024, 2048, 3584, 4096, 9728, 12288] {
            let spec = linear([dtype; 3], depth, 4096);
            for rows in [8, 16, 24, TENSOR_ROWS] {
                // What a block may have on every architecture.
                all.extend(spec.tensor_kernel(rows, 99 << 10));
            }
        }
    }
    for (q, kv) in [(BF16, BF16), (F16, F16), (F32, F32), (F32, BF16)] {
        for heads in [[16, 8], [16, 1], [6, 2], [4, 4]] {
            for dims in [[128, 128], [64, 64], [80, 80], [192, 128], [256, 256], [4, 4], [20, 12]] {
                // Every shape in bf16, and of the other dtypes one that has no whole chunks.
                if q != BF16 && (heads != [6, 2] || dims[0] == 256) {
                    continue;
                }
                let causal = dims[0] != 64;
                let operands = attention(q, kv, heads, dims);
                let attrs = PagedAttention::attrs(0.125, causal);
                for sizes in [[1, 1, 4096], [32, 32, 4096], [64, 64, 4096], [8192, 64, 4096]] {
                    let made = attention_kernels(&operands, &attrs, &sizes, AMPERE);
                    all.extend(made.unwrap().launches);
                }
            }
        }
    }
    all.extend(sampling().into_iter().flat_map(|kernels| kernels.launches));
    all
}

#[test]
fn products_stream_where_weights_are_rows_of_16_bytes() {
    assert!(linear([BF16; 3], 1024, 4096).streams());
    assert!(!linear([BF16; 3], 1020, 4096).streams());
    // What a kernel of the step writes is not read before the wait.
    let (x, w) =
        (TensorType::new(BF16, [rows(), 64u64.into()]), TensorType::new(BF16, [64u64, 64]));
    assert!(!MatMulSpec::new(false, true, &x, &w, &x).unwrap().streams());
    let spec = linear([BF16; 3], 1024, 4096);
    assert!(spec.stream_kernel(STREAM_ROWS + 1).is_err() && spec.stream_kernel(0).is_err());
    let wide = spec.stream_kernel(8).unwrap();
    assert_eq!(wide.dynamic_shared, 8 * 1024 * 2);
    assert_eq!(wide.grid_at(&[8], 132), Ok([264, 1, 1]));
    // x of 8 rows of 12288 does not fit and is read where it lies.
    assert_eq!(linear([BF16; 3], 12288, 4096).stream_kernel(8).unwrap().dynamic_shared, 0);
    let tensor = spec.tensor_kernel(8, 99 << 10).unwrap();
    assert_eq!(tensor.dynamic_shared, 8 * 1024 * 2 + 2 * 16 * 16 * 8 * 4);
    assert_eq!((tensor.grid_at(&[8], 132), tensor.block), (Ok([132, 1, 1]), [512, 1, 1]));
    let general = spec.general_kernel().unwrap();
    assert_eq!(general.grid_at(&[130], 132), Ok([64, 3, 1]));
}

#[test]
fn one_source_serves_every_size_of_a_product() {
    let (a, b) = (linear([BF16; 3], 1024, 4096), linear([BF16; 3], 4096, 512));
    assert_eq!(a.general_kernel().unwrap().source, b.general_kernel().unwrap().source);
}

#[test]
fn the_keys_of_a_decode_are_split_by_the_captured_size_alone() {
    let attrs = PagedAttention::attrs(0.125, true);
    let splits = |t: u64, s: u64| {
        let operands = attention(BF16, BF16, [16, 8], [128, 128]);
        let made = attention_kernels(&operands, &attrs, &[t, s, 4096], AMPERE).unwrap();
        let grid = made.launches[0].grid_at(&[t, s, 4096], 132).unwrap();
        assert_eq!(made.launches.len(), if grid[2] == 1 { 1 } else { 2 });
        let scratch = made.scratch.eval(&[t, s, 4096]);
        assert_eq!(scratch > 0, grid[2] > 1);
        made.launches.iter().for_each(|launch| launch.check(8, scratch).unwrap());
        assert!(made.launches[0].params.contains(&Param::Counts));
        grid
    };
    assert_eq!(splits(1, 1), [1, 8, 16]);
    assert_eq!(splits(8, 8), [8, 8, 4]);
    assert_eq!(splits(14, 14), [14, 8, 2]);
    // About a block for each multiprocessor: a launch to combine ranges would cost more.
    assert_eq!(splits(16, 16), [16, 8, 1]);
    assert_eq!(splits(63, 63), [63, 8, 1]);
    // Tiles of 16 rows: 6 at most for one sequence's 40 tokens and 2 heads a group.
    assert_eq!(splits(40, 1), [6, 8, 5]);
}

#[test]
fn the_ranges_of_a_decode_become_one_in_a_cluster_where_there_are_clusters() {
    let attrs = PagedAttention::attrs(0.125, true);
    let operands = attention(BF16, BF16, [16, 8], [128, 128]);
    // From 15 on the long ones alone are shared, by blocks that stay.
    let clusters = [
        (1, [1, 8, 8], [1, 1, 8]),
        (8, [8, 8, 4], [1, 1, 4]),
        (14, [14, 8, 2], [1, 1, 2]),
        (16, [528, 1, 1], [4, 1, 1]),
        (63, [792, 1, 1], [4, 1, 1]),
    ];
    for (sequences, grid, cluster) in clusters {
        let sizes = [sequences, sequences, 4096];
        let made = attention_kernels(&operands, &attrs, &sizes, HOPPER).unwrap();
        let [launch] = &made.launches[..] else { panic!("{} launches", made.launches.len()) };
        assert_eq!(launch.grid_at(&sizes, 132), Ok(grid));
        assert_eq!((launch.cluster, made.scratch.eval(&sizes)), (cluster, 0));
        launch.check(8, 0).unwrap();
    }
}

/// Where a mixed step of as many rows has a launch for prompts beside.
#[test]
fn a_uniform_batch_has_one_kernel_and_no_block_too_many() {
    let attrs = PagedAttention::attrs(0.125, true);
    let operands = attention(BF16, BF16, [16, 8], [128, 128]);
    let roles = vec![OperandRole::default(); operands.len()];
    for (sequences, query_length, tiles) in [(64, 1, 64), (32, 2, 32), (16, 8, 16), (8, 12, 16)] {
        let sizes = [sequences * query_length, sequences, 4096];
        let made = |query_length| {
            piecewise_kernels::attention::attention_kernels(&CudaOpCall {
                operands: &operands,
                roles: &roles,
                results: &[],
                attrs: &attrs,
                target: CudaTarget { capability: HOPPER },
                sizes: &sizes,
                query_length,
            })
            .unwrap()
            .launches
        };
        let uniform = made(Some(query_length));
        let [launch] = &uniform[..] else { panic!("{} launches", uniform.len()) };
        assert_eq!(launch.entry, "attention_decode");
        assert_eq!(launch.grid_at(&sizes, 132).unwrap()[0], tiles);
        let mixed = made(None);
        assert_eq!(mixed.last().unwrap().entry, "attention_prefill");
    }
}

#[test]
fn only_what_no_kernel_of_a_step_writes_is_read_ahead() {
    let attrs = PagedAttention::attrs(0.125, true);
    let operands = attention(BF16, BF16, [16, 8], [128, 128]);
    let sizes = [1, 1, 4096];
    let ahead = |roles: &[OperandRole]| {
        let made = piecewise_kernels::attention::attention_kernels(&CudaOpCall {
            operands: &operands,
            roles,
            results: &[],
            attrs: &attrs,
            target: CudaTarget { capability: HOPPER },
            sizes: &sizes,
            query_length: None,
        });
        let launch = made.unwrap().launches.remove(0);
        (launch.ahead, launch.source.contains("#define EARLY 1"))
    };
    let known = |i| OperandRole { state: i == 1 || i == 2, weight: false, staged: i > 2 };
    let roles: Vec<OperandRole> = (0..7).map(known).collect();
    assert_eq!(ahead(&roles), (vec![1, 2, 3, 4, 5, 6], true));
    for other in 1..7 {
        let mut roles = roles.clone();
        roles[other] = OperandRole::default();
        assert_eq!(ahead(&roles), (vec![], false));
    }
    assert_eq!(linear([BF16; 3], 1024, 4096).stream_kernel(1).unwrap().ahead, [1]);
}

#[test]
fn one_row_is_spread_by_how_many_units_a_device_takes_at_once() {
    let spread = |depth, columns| {
        let launch = linear([BF16; 3], depth, columns).stream_kernel(1).unwrap();
        let define = |name: &str| {
            let line =
                launch.source.lines().find_map(|l| l.strip_prefix(&format!("#define {name} ")));
            line.unwrap().parse::<u32>().unwrap()
        };
        let blocks = launch.grid_at(&[1], 132).unwrap()[0] / 132;
        (["SPLIT", "R", "J", "KEEP"].map(define), blocks)
    };
    // Short rows: all units at once by warps together, or each warp with rows of its own.
    assert_eq!(spread(1024, 4096), ([4, 8, 1, 1], 2));
    assert_eq!(spread(1024, 6144), ([1, 2, 4, 1], 2));
    // One block of half a multiprocessor has all of them.
    assert_eq!(spread(2048, 1024), ([4, 8, 2, 1], 1));
    assert_eq!(spread(3072, 1024), ([8, 8, 2, 1], 1));
    assert_eq!(spread(4096, 6144), ([8, 8, 2, 1], 2));
    assert_eq!(spread(12288, 4096), ([8, 2, 6, 1], 2));
    // Long ones come in two waves.
    assert_eq!(spread(4096, 24576), ([8, 8, 2, 1], 4));
    // Too deep for registers.
    assert_eq!(spread(65536, 512), ([8, 1, 16, 0], 2));
}

#[test]
fn steps_of_many_rows_go_to_both_kernels() {
    let attrs = PagedAttention::attrs(0.125, true);
    let made = |dtype: DType, heads: [u64; 2], dims: [u64; 2], sizes: [u64; 3]| {
        attention_kernels(&attention(dtype, dtype, heads, dims), &attrs, &sizes, AMPERE).unwrap()
    };
    let sizes = [2048, 64, 4096];
    let kernels = made(BF16, [16, 8], [128, 128], sizes);
    let grids: Vec<[u32; 3]> =
        kernels.launches.iter().map(|l| l.grid_at(&sizes, 132).unwrap()).collect();
    assert_eq!(kernels.launches.last().unwrap().entry, "attention_prefill");
    assert_eq!(grids, [[64, 8, 4], [4096, 1, 1], [64 + 64, 8, 1]]);
    assert!(kernels.scratch.eval(&sizes) <= 64 << 20);
    assert_eq!(kernels.launches.last().unwrap().block, [128, 1, 1]);
    let sizes = [4096, 64, 4096];
    let last = made(BF16, [16, 8], [128, 128], sizes).launches.pop().unwrap();
    assert_eq!(last.grid_at(&sizes, 132), Ok([64 + 64, 8, 1]));
    assert_eq!(last.block, [256, 1, 1]);
    // As many sequences as rows: those with more tokens than a few are fewer.
    let sizes = [256, 256, 4096];
    let launches = made(BF16, [16, 8], [128, 128], sizes).launches;
    let grids: Vec<[u32; 3]> = launches.iter().map(|l| l.grid_at(&sizes, 132).unwrap()).collect();
    assert_eq!(grids, [[256, 8, 1], [8 + 52, 8, 1]]);
    // Few sequences keep the ranges that they have alone.
    for (sequences, splits) in [(1, 8), (4, 8), (5, 6), (8, 4)] {
        let operands = attention(BF16, BF16, [32, 8], [128, 128]);
        for rows in [512, 8192] {
            let sizes = [rows, sequences, 4096];
            let made = attention_kernels(&operands, &attrs, &sizes, HOPPER).unwrap();
            let grid = made.launches[0].grid_at(&sizes, 132);
            assert_eq!(grid, Ok([sequences as u32, 8, splits]));
        }
    }
    // Where there may be many, twice as many blocks stay as there is room for.
    let sizes = [512, 64, 4096];
    let operands = attention(BF16, BF16, [32, 8], [128, 128]);
    let staying = attention_kernels(&operands, &attrs, &sizes, HOPPER).unwrap().launches.remove(0);
    assert_eq!(staying.grid_at(&sizes, 132), Ok([2 * 3 * 132, 1, 1]));
    assert_eq!(staying.cluster, [4, 1, 1]);
    // Whatever the sequences, partial results stay bounded.
    let sizes = [8192, 1024, 4096];
    let kernels = made(BF16, [64, 8], [256, 256], sizes);
    assert_eq!((kernels.launches.len(), kernels.scratch.eval(&sizes)), (2, 0));
    for (dtype, dims) in [(F32, [128, 128]), (BF16, [20, 12]), (F16, [128, 24])] {
        let launches = made(dtype, [16, 8], dims, [2048, 64, 4096]).launches;
        assert!(launches.iter().all(|launch| launch.entry != "attention_prefill"));
    }
    for heads in [[16, 1], [6, 2], [4, 4]] {
        for dims in [[16, 256], [128, 128], [192, 128], [256, 256]] {
            for rows in [1, 64] {
                for launch in made(F16, heads, dims, [rows, 1, 4096]).launches {
                    assert!(launch.static_shared + launch.dynamic_shared <= 99 << 10);
                }
            }
        }
    }
}

#[test]
fn a_mixed_step_may_have_more_ranges_of_decodes_of_prompts_or_of_both() {
    let attrs = PagedAttention::attrs(0.125, true);
    let operands = attention(BF16, BF16, [32, 8], [128, 128]);
    let (decodes, more_decodes) = ([64, 8, 4], [64, 8, 8]);
    // In clusters of as many ranges.
    let staying = [792, 1, 1];
    let (prompts, more_prompts) = ([132, 1, 1], [16, 8, 2]);
    for (rows, sequences, capability, expected) in [
        (512, 64, HOPPER, [[[staying, prompts]; 2], [[staying, more_prompts]; 2]].concat()),
        // So many tiles of prompts that more ranges have no use.
        (2048, 64, HOPPER, vec![[staying, prompts], [staying, prompts]]),
        // As many as a cluster has, and as many sequences as rows.
        (2048, 4, HOPPER, vec![[[4, 8, 8], prompts]]),
        (64, 64, HOPPER, vec![[staying, [2, 8, 4]], [staying, [2, 8, 4]]]),
        (512, 1, HOPPER, vec![[[1, 8, 8], prompts], [[1, 8, 8], more_prompts]]),
        (512, 64, AMPERE, vec![[decodes, [96, 8, 1]], [more_decodes, [96, 8, 1]]]),
    ] {
        let sizes = [rows, sequences, 4096];
        let (usual, others) = attention_ways(&operands, &attrs, &sizes, capability).unwrap();
        let grids = |kernels: OpKernels| {
            let scratch = kernels.scratch.eval(&sizes);
            assert!(scratch <= if capability == HOPPER { 0 } else { 64 << 20 });
            let ends = [kernels.launches.first(), kernels.launches.last()];
            ends.map(|launch| {
                let launch = launch.unwrap();
                let grid = launch.grid_at(&sizes, 132).unwrap();
                launch.check(8, scratch).unwrap();
                assert!(launch.cluster[2] == 1 || launch.cluster[2] == grid[2]);
                grid
            })
        };
        let made: Vec<_> = std::iter::once(usual).chain(others).map(grids).collect();
        assert_eq!(made, expected, "{rows} rows, {sequences} sequences");
    }
}

#[test]
fn prompts_go_to_warpgroups_where_a_device_and_widths_allow() {
    let attrs = PagedAttention::attrs(0.125, true);
    let made = |heads: [u64; 2], dims: [u64; 2], rows: u64, capability| {
        let operands = attention(BF16, BF16, heads, dims);
        let sizes = [rows, 64, 4096];
        let launch = attention_kernels(&operands, &attrs, &sizes, capability)
            .unwrap()
            .launches
            .pop()
            .unwrap();
        assert_eq!(launch.entry, "attention_prefill");
        assert!(launch.static_shared + launch.dynamic_shared <= 227 << 10);
        (launch.source.contains("wgmma"), launch.grid_at(&sizes, 132).unwrap(), launch.block[0])
    };
    // A block for each multiprocessor, or ranges of keys by the blocks of a cluster.
    assert_eq!(made([32, 8], [128, 128], 8192, HOPPER), (true, [132, 1, 1], 384));
    assert_eq!(made([32, 8], [128, 128], 512, HOPPER), (true, [132, 1, 1], 384));
    assert_eq!(made([32, 8], [128, 128], 128, HOPPER), (true, [4, 8, 4], 384));
    assert_eq!(made([32, 8], [128, 128], 64, HOPPER), (true, [2, 8, 4], 384));
    assert_eq!(made([32, 8], [64, 64], 64, HOPPER), (true, [2, 8, 4], 512));
    assert_eq!(made([6, 2], [128, 64], 8192, HOPPER), (true, [132, 1, 1], 512));
    assert_eq!(made([32, 8], [96, 96], 64, HOPPER), (true, [2, 8, 4], 384));
    for (dims, capability) in
        [([128, 128], (9, 1)), ([128, 128], (10, 0)), ([48, 48], HOPPER), ([256, 128], HOPPER)]
    {
        assert!(!made([32, 8], dims, 8192, capability).0, "{dims:?} {capability:?}");
    }
}

#[test]
fn decodes_are_on_tensor_cores_where_types_and_widths_allow() {
    let attrs = PagedAttention::attrs(0.125, true);
    let entry = |q: DType, kv: DType, dims: [u64; 2], attrs: &Attrs| {
        let operands = attention(q, kv, [16, 8], dims);
        let made = attention_kernels(&operands, attrs, &[4, 4, 4096], AMPERE).unwrap();
        made.launches[0].entry.clone()
    };
    for (q, kv, dims) in [(BF16, BF16, [128, 128]), (F16, F16, [80, 48]), (BF16, BF16, [256, 16])] {
        assert_eq!(entry(q, kv, dims, &attrs), "attention_decode");
        // The largest score is found before it is scaled.
        assert_eq!(entry(q, kv, dims, &PagedAttention::attrs(-0.125, true)), "attention_split");
    }
    for (q, kv, dims) in [(F32, F32, [128, 128]), (BF16, F16, [64, 64]), (F16, F16, [128, 24])] {
        assert_eq!(entry(q, kv, dims, &attrs), "attention_split");
    }
    // Three blocks of the usual width fit a multiprocessor of the devices with the most bandwidth.
    let operands = attention(BF16, BF16, [32, 8], [128, 128]);
    let made = attention_kernels(&operands, &attrs, &[32, 32, 4096], AMPERE).unwrap();
    let launch = &made.launches[0];
    assert_eq!(
        (launch.dynamic_shared, launch.static_shared, launch.block[0]),
        (68 << 10, 512, 128)
    );
}

#[test]
fn attention_says_what_it_has_no_kernel_for() {
    let attrs = PagedAttention::attrs(0.125, true);
    let wide = attention(BF16, BF16, [16, 8], [512, 512]);
    let error = attention_kernels(&wide, &attrs, &[1, 1, 64], AMPERE).unwrap_err().to_string();
    assert!(error.contains("512") && error.contains("256"), "{error}");
    let many = attention(BF16, BF16, [32, 1], [64, 64]);
    assert!(attention_kernels(&many, &attrs, &[1, 1, 64], AMPERE).is_err());
}

#[test]
fn sources_of_ops() {
    let [plain, controlled] = sampling();
    insta::assert_snapshot!("sampling", plain.launches[0].source);
    insta::assert_snapshot!("controlled_sampling", controlled.launches[0].source);
    let spec = linear([BF16; 3], 4096, 6144);
    insta::assert_snapshot!("stream", spec.stream_kernel(1).unwrap().source);
    insta::assert_snapshot!("tensor", spec.tensor_kernel(8, 227 << 10).unwrap().source);
    let operands = attention(BF16, BF16, [32, 8], [128, 128]);
    let attrs = PagedAttention::attrs(0.125, true);
    let decode = attention_kernels(&operands, &attrs, &[32, 32, 4096], AMPERE).unwrap();
    insta::assert_snapshot!("decode", decode.launches[0].source);
}

/// Each kernel for one architecture in turn, and one in 24 for all: what a kernel is compiled to
/// differs by architecture, but hardly whether it is compiled.
#[test]
fn nvrtc_takes_every_kernel_and_some_for_every_architecture() {
    let Some(nvrtc) = Nvrtc::find() else { return };
    let sources = |all: Vec<LaunchRecipe>| -> BTreeSet<_> {
        all.into_iter().map(|recipe| (recipe.source, recipe.options)).collect()
    };
    let compile = |arch: &str, source: &str, options: &[String]| {
        if let Err(log) = nvrtc.compile(source, PRELUDE, arch, options) {
            panic!("{arch}:\n{log}\n{source}");
        }
    };
    sources(hopper_kernels()).iter().for_each(|(s, options)| compile("sm_90a", s, options));
    for (i, (source, options)) in sources(all_kernels()).iter().enumerate() {
        for (a, arch) in ARCHS.iter().enumerate() {
            if (i + a) % ARCHS.len() == 0 || i % 24 == 0 {
                compile(arch, source, options);
            }
        }
    }
}
