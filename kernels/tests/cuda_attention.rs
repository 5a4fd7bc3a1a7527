//! Attention kernels on the host against the f64 reference, with NaN past every length.

use crate::attention::{Checked, PADDING, Step};
use crate::emulate::{available, try_emulate_hiding};
use piecewise_ir::dtype::DType::{self, BF16, F16, F32};

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
    // Where they may be many, how a sequence is cut follows from its own length.
    let many =
        Step { heads: [4, 4], padding_rows: 40, absent: 60, capability: (9, 0), ..Step::default() };
    for length in [700, 1500] {
        let alone = Step { lengths: &[length, 0, 0], queries: &[1, 0, 0], ..many };
        let lengths = [length, 2100, 40];
        let beside = Step { lengths: &lengths, queries: &[1, 1, 30], padding_rows: 9, ..many };
        let alone = alone.check("one_of_many_alone", &DECODE_ONE);
        assert_eq!(beside.check("one_of_many", &DECODE_ONE)[..alone.len()], alone);
    }
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
fn decodes_beside_prompts_in_more_ranges_than_usual() {
    let step = Step { lengths: &LENGTHS, queries: &QUERIES, more_ranges: true, ..Step::default() };
    if available() {
        step.check("more_ranges_mixed", &BOTH);
    }
}

/// Where so many sequences may be beside a prompt that blocks stay, and take several of those in turn
/// that are there, if any are.
#[test]
fn blocks_that_stay_take_the_decodes_that_are_there() {
    let prompt_alone: ([i32; 1], [i32; 1]) = ([150], [140]);
    let beside: ([i32; 8], [i32; 8]) =
        ([33, 200, 1, 150, 500, 64, 17, 0], [1, 2, 1, 140, 1, 1, 3, 0]);
    // Some of them long enough to be shared by the blocks of a cluster.
    let long: ([i32; 7], [i32; 7]) =
        ([33, 1200, 1, 150, 1023, 1024, 2000], [1, 2, 1, 140, 1, 1, 1]);
    let given: [(&[i32], &[i32]); 3] =
        [(&prompt_alone.0, &prompt_alone.1), (&beside.0, &beside.1), (&long.0, &long.1)];
    for (lengths, queries) in given {
        for (dtype, dims) in [(BF16, [64, 64]), (F16, [192, 128])] {
            let step = Step {
                dtypes: [dtype; 2],
                dims,
                lengths,
                queries,
                // As in `by_warpgroups`.
                padding_rows: 8400,
                absent: 150,
                capability: (9, 0),
                ..Step::default()
            };
            if available() {
                step.check(&format!("stays_{}_{}", queries.len(), dims[0]), &BOTH_ONE);
            }
        }
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
