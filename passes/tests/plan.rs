//! The planner: how low it packs, and what its arena depends on.

use crate::support::{Widths, decoder};
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, SlotKind};
use piecewise_passes::PassError;
use piecewise_passes::destination::assign_slots;
use piecewise_passes::plan::{
    Item, Packing, PlanError, PlanOptions, PlanReport, largest_live_sum, pack, plan_arena,
};
use piecewise_passes::split::{SplitOptions, split};
use piecewise_testing::soak;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn planned(graph: Graph) -> (Module, PlanReport) {
    let mut module = Module::new(graph);
    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module).expect("has an order");
    let report = plan_arena(&mut module, &PlanOptions::default()).expect("fits");
    (module, report)
}

fn assert_disjoint(items: &[Item], packing: &Packing) {
    for (i, a) in items.iter().enumerate() {
        assert!(packing.offsets[i] + a.size <= packing.height);
        for (j, b) in items.iter().enumerate().skip(i + 1) {
            let in_time = a.start <= b.end && b.start <= a.end;
            let (x, y) = (packing.offsets[i], packing.offsets[j]);
            let in_space = x < y + b.size && y < x + a.size;
            assert!(!(in_time && in_space), "items {i} and {j} overlap");
        }
    }
}

/// The least height, by trying every offset.
fn brute_force(items: &[Item]) -> u64 {
    fn fits(items: &[Item], offsets: &mut Vec<u64>, height: u64) -> bool {
        let at = offsets.len();
        let Some(item) = items.get(at) else { return true };
        for offset in 0..=height.saturating_sub(item.size) {
            let free = offset + item.size <= height
                && (0..at).all(|j| {
                    let other = &items[j];
                    let in_time = item.start <= other.end && other.start <= item.end;
                    !in_time
                        || offset >= offsets[j] + other.size
                        || offsets[j] >= offset + item.size
                });
            if free {
                offsets.push(offset);
                if fits(items, offsets, height) {
                    return true;
                }
                offsets.pop();
            }
        }
        false
    }
    let mut height = largest_live_sum(items);
    while !fits(items, &mut Vec::new(), height) {
        height += 1;
    }
    height
}

fn items(
    count: impl Into<prop::collection::SizeRange>,
    span: usize,
    size: u64,
) -> impl Strategy<Value = Vec<Item>> {
    let item = (0..span, 0..span / 2 + 1, 1..=size);
    let item = item.prop_map(|(start, len, size)| Item { start, end: start + len, size });
    prop::collection::vec(item, count)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak(600), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn up_to_seven_values_take_the_least_height(items in items(0..=7, 8, 5)) {
        let packing = pack(&items);
        assert_disjoint(&items, &packing);
        prop_assert_eq!(packing.height, brute_force(&items));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak(100), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_overlaps_and_packing_is_deterministic(items in items(0..60, 40, 1000)) {
        let packing = pack(&items);
        assert_disjoint(&items, &packing);
        prop_assert_eq!(&packing, &pack(&items));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak(60), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_overlaps_where_items_repeat(
        before in items(0..6, 6, 9), layer in items(1..8, 6, 9), after in items(0..6, 6, 9),
        layers in 3usize..12, period in 4usize..9,
    ) {
        let shifted = |items: &[Item], by: usize| -> Vec<Item> {
            items.iter().map(|i| Item { start: i.start + by, end: i.end + by, ..*i }).collect()
        };
        let mut all = before.clone();
        (0..layers).for_each(|n| all.extend(shifted(&layer, 6 + n * period)));
        all.extend(shifted(&after, 6 + layers * period));
        let end = all.iter().map(|i| i.end).max().unwrap_or(0);
        all.push(Item { start: 0, end, size: 2 });
        let packing = pack(&all);
        assert_disjoint(&all, &packing);
        prop_assert!(packing.height >= largest_live_sum(&all));
    }
}

#[test]
fn random_sets_pack_close_to_the_largest_live_sum() {
    let mut runner = TestRunner::deterministic();
    let strategy = items(8..50, 40, 64);
    let mut ratios: Vec<f64> = (0..200)
        .map(|_| {
            let items = strategy.new_tree(&mut runner).expect("a value").current();
            pack(&items).height as f64 / largest_live_sum(&items) as f64
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (median, worst) = (ratios[100], ratios[199]);
    assert!(median <= 1.1, "median {median}");
    assert!(worst <= 1.5, "worst {worst}");
}

#[test]
fn a_decoders_arena_is_its_largest_live_sum() {
    let (_, report) = planned(decoder(Widths::tiny(6)));
    assert_eq!(report.bytes, report.live_bytes);
    assert!(report.bytes * 2 < report.slot_bytes, "reuse saves most of the slots");
}

#[test]
fn the_counts_and_the_inputs_are_one_prefix() {
    let (module, _) = planned(decoder(Widths::tiny(2)));
    let (layout, slots) = (module.layout().expect("planned"), module.slots().expect("planned"));
    assert_eq!(layout.counts, 0);
    let mut inputs = Vec::new();
    for (i, slot) in slots.slots.values().enumerate() {
        if slot.kind == SlotKind::Input {
            inputs.push((layout.offsets[i], layout.sizes[i]));
        } else {
            assert!(layout.offsets[i] >= layout.staged);
        }
    }
    inputs.sort_unstable();
    assert!(inputs.is_sorted_by_key(|&(_, size)| size), "the smallest first: {inputs:?}");
    let mut end = 256;
    for (offset, size) in inputs {
        assert_eq!(offset, end);
        end += size.next_multiple_of(256);
    }
    assert_eq!(layout.staged, end);
}

#[test]
fn the_layout_is_that_of_the_bounds() {
    let bytes = |max_tokens| planned(decoder(Widths { max_tokens, ..Widths::tiny(2) })).1.bytes;
    assert_eq!(bytes(512), bytes(512));
    assert!(bytes(256) < bytes(512));
}

#[test]
fn the_arena_does_not_depend_on_the_number_of_layers() {
    let small = Widths::tiny(2);
    let shapes = [
        small,
        Widths { head_dim: 32, ..small },
        Widths { hidden: 256, head_dim: 64, intermediate: 768, vocab: 2048, ..small },
        Widths { kv_heads: 4, max_tokens: 128, max_rows: 8, ..small },
        Widths { hidden: 128, heads: 8, head_dim: 32, intermediate: 384, vocab: 2048, ..small },
        Widths {
            hidden: 1024,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            intermediate: 3072,
            vocab: 151_936,
            max_tokens: 8192,
            max_rows: 256,
            ..small
        },
    ];
    for shape in shapes {
        let bytes = |layers| planned(decoder(Widths { layers, ..shape })).1.bytes;
        assert_eq!(bytes(2), bytes(6), "{shape:?}");
        assert_eq!(bytes(2), bytes(60), "{shape:?}");
    }
}

#[test]
fn what_is_missing_or_absurd_is_an_error() {
    let mut module = Module::new(decoder(Widths::tiny(1)));
    let slots = assign_slots(&mut module);
    assert!(matches!(slots, Err(PassError::Missing { run_first: "split", .. })));
    let plan = plan_arena(&mut module, &PlanOptions::default());
    assert!(matches!(plan, Err(PlanError::NoSlots)));

    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module).expect("has an order");
    let plan = plan_arena(&mut module, &PlanOptions { align: 24 });
    assert!(matches!(plan, Err(PlanError::Alignment { align: 24 })));

    let mut module = Module::new(decoder(Widths { max_tokens: 1 << 60, ..Widths::tiny(1) }));
    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module).expect("has an order");
    let plan = plan_arena(&mut module, &PlanOptions::default());
    let error = plan.expect_err("absurd bounds");
    assert!(error.to_string().starts_with("%ids takes "), "{error}");
}
