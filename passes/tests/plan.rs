//! The planner: how low it packs, and what its arena depends on.

mod support;

use piecewise_ir::entity::Value;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::{Module, SlotKind};
use piecewise_passes::destination::{DestinationError, LifetimeRule, assign_slots};
use piecewise_passes::plan::{
    Item, Packing, PlanError, PlanOptions, PlanReport, largest_live_sum, pack, plan_arena,
};
use piecewise_passes::split::{SplitOptions, split};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use support::{Widths, decoder};

fn planned(graph: Graph) -> (Module, PlanReport) {
    let mut module = Module::new(graph);
    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module, LifetimeRule::Moments).expect("has an order");
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
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn up_to_seven_values_take_the_least_height(items in items(0..=7, 8, 5)) {
        let packing = pack(&items);
        assert_disjoint(&items, &packing);
        prop_assert_eq!(packing.height, brute_force(&items));
    }

    #[test]
    fn nothing_overlaps_and_packing_is_deterministic(items in items(0..60, 40, 1000)) {
        let packing = pack(&items);
        assert_disjoint(&items, &packing);
        prop_assert_eq!(&packing, &pack(&items));
    }
}

#[test]
fn a_thousand_random_sets_pack_close_to_the_largest_live_sum() {
    let mut runner = TestRunner::deterministic();
    let strategy = items(8..50, 40, 64);
    let mut ratios: Vec<f64> = (0..1000)
        .map(|_| {
            let items = strategy.new_tree(&mut runner).expect("a value").current();
            pack(&items).height as f64 / largest_live_sum(&items) as f64
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (median, worst) = (ratios[500], ratios[999]);
    println!("median {median} worst {worst} 99% {} 90% {}", ratios[990], ratios[900]);
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
    let mut end = 256;
    for (i, slot) in slots.slots.values().enumerate() {
        if slot.kind == SlotKind::Input {
            assert_eq!(layout.offsets[i], end);
            end += layout.sizes[i].next_multiple_of(256);
        } else {
            assert!(layout.offsets[i] >= layout.staged);
        }
    }
    assert_eq!(layout.staged, end);
}

#[test]
fn the_layout_is_that_of_the_bounds() {
    let bytes = |max_tokens| planned(decoder(Widths { max_tokens, ..Widths::tiny(2) })).1.bytes;
    assert_eq!(bytes(512), bytes(512));
    assert!(bytes(256) < bytes(512));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_arena_does_not_depend_on_the_number_of_layers(
        hidden in 1u64..40,
        heads in 1u64..5,
        kv_heads in 1u64..5,
        head_dim in 1u64..24,
        intermediate in 1u64..120,
        vocab in 1u64..400,
        max_rows in 1u64..80,
    ) {
        let bytes = |layers| {
            let widths = Widths {
                layers, hidden: hidden * 8, heads, kv_heads, head_dim: head_dim * 4,
                intermediate: intermediate * 4, vocab, max_tokens: 128, max_rows,
            };
            planned(decoder(widths)).1
        };
        let two = bytes(2);
        prop_assert_eq!(two.bytes, bytes(6).bytes);
        prop_assert_eq!(two.bytes, bytes(60).bytes);
    }
}

#[test]
fn what_is_missing_or_absurd_is_an_error() {
    let mut module = Module::new(decoder(Widths::tiny(1)));
    let slots = assign_slots(&mut module, LifetimeRule::Moments);
    assert!(matches!(slots, Err(DestinationError::NotSplit)));
    let plan = plan_arena(&mut module, &PlanOptions::default());
    assert!(matches!(plan, Err(PlanError::NoSlots)));

    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module, LifetimeRule::Moments).expect("has an order");
    let plan = plan_arena(&mut module, &PlanOptions { align: 24 });
    assert!(matches!(plan, Err(PlanError::Alignment { align: 24 })));

    let mut module = Module::new(decoder(Widths { max_tokens: 1 << 60, ..Widths::tiny(1) }));
    split(&mut module, &SplitOptions::default()).expect("splits");
    assign_slots(&mut module, LifetimeRule::Moments).expect("has an order");
    let plan = plan_arena(&mut module, &PlanOptions::default());
    assert!(matches!(plan, Err(PlanError::TooLarge { value: Value(_), .. })));
}
