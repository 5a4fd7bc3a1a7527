//! The checkers: each code with the planted fault that it finds.

use crate::support::launches::{absorbing, plain};
use crate::support::plans::{codes, node_granular_lifetimes_are_refused, planned};
use crate::support::{Widths, custom, decoder, loc, matmul, region, symbol, unary, weight};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::{Arena, Entity, PieceId, Value};
use piecewise_ir::graph::{Graph, Loc, ValueDef};
use piecewise_ir::literal::Scalar;
use piecewise_ir::module::{ArenaLayout, Module, SlotData, SlotKind, SlotTable, Step};
use piecewise_ir::op::{Op, RowTreatment, UnaryOp};
use piecewise_ir::region::ParamMode;
use piecewise_ir::types::TensorType;
use piecewise_passes::check::{
    LaunchAccess, MemberLaunches, ScratchRange, check_launches, check_plan,
};
use piecewise_passes::split::{SplitOptions, split};

/// The codes after `fault` changed the slots and the layout of a planned decoder.
fn planted(fault: impl FnOnce(&mut Vec<SlotData>, &mut ArenaLayout)) -> Vec<&'static str> {
    let mut module = planned(decoder(Widths::tiny(2)));
    let mut slots: Vec<SlotData> =
        module.slots().expect("planned").slots.values().cloned().collect();
    let mut layout = module.layout().expect("planned").clone();
    fault(&mut slots, &mut layout);
    module.set_slots(SlotTable { slots: slots.into_iter().collect::<Arena<_, _>>() });
    module.set_layout(layout);
    codes(check_plan(&module))
}

fn first_of(slots: &[SlotData], kind: SlotKind) -> usize {
    slots.iter().position(|s| s.kind == kind).expect("a slot of the kind")
}

#[test]
fn a_plan_without_a_fault_passes() {
    for layers in [0, 1, 2, 6] {
        assert_eq!(check_plan(&planned(decoder(Widths::tiny(layers)))), Ok(()));
    }
    assert_eq!(planted(|_, _| {}), [] as [&str; 0]);
}

#[test]
fn a_part_of_the_plan_that_is_missing_is_b0101() {
    let mut module = Module::new(decoder(Widths::tiny(1)));
    assert_eq!(codes(check_plan(&module)), ["B0101"]);
    assert_eq!(codes(check_launches(&module, &[])), ["B0101"]);
    split(&mut module, &SplitOptions::default()).expect("splits");
    assert_eq!(codes(check_plan(&module)), ["B0101"]);
}

#[test]
fn names_of_nothing_are_found() {
    assert_eq!(planted(|slots, _| slots[3].value = Value(99_999)), ["P0402", "P0404"]);
    let mut module = planned(decoder(Widths::tiny(1)));
    let (slots, layout) = (module.slots().cloned(), module.layout().cloned());
    let mut stitch = module.stitch().expect("split").clone();
    stitch.uses[PieceId::new(0)].nodes.push(piecewise_ir::entity::Node(99_999));
    module.set_stitch(stitch);
    module.set_slots(slots.expect("planned"));
    module.set_layout(layout.expect("planned"));
    assert_eq!(codes(check_plan(&module)), ["P0103"]);
}

#[test]
fn a_value_without_a_slot_is_p0404() {
    let found = planted(|slots, layout| {
        slots.pop();
        layout.offsets.pop();
        layout.sizes.pop();
    });
    assert_eq!(found, ["P0404"]);
}

#[test]
fn a_value_with_two_slots_is_p0403() {
    let found = planted(|slots, layout| {
        slots.push(slots[slots.len() - 1].clone());
        layout.offsets.push(layout.bytes);
        layout.sizes.push(layout.sizes[layout.sizes.len() - 1]);
        layout.bytes += 1 << 20;
    });
    assert_eq!(found, ["P0403"]);
}

#[test]
fn a_slot_for_a_weight_is_p0402() {
    let graph = decoder(Widths::tiny(2));
    let weight = graph.weights()[0].value;
    assert!(matches!(graph.def(weight), ValueDef::Weight(0)));
    let found = planted(|slots, layout| {
        let live = slots[0].live;
        slots.push(SlotData { value: weight, kind: SlotKind::Local, live });
        layout.offsets.push(layout.bytes);
        layout.sizes.push(1 << 20);
        layout.bytes += 1 << 20;
    });
    assert_eq!(found, ["P0402"]);
}

#[test]
fn a_wrong_kind_is_p0405() {
    let found = planted(|slots, _| {
        let at = first_of(slots, SlotKind::Boundary);
        slots[at].kind = SlotKind::Local;
    });
    assert_eq!(found, ["P0405"]);
}

#[test]
fn a_short_lifetime_is_b0107() {
    let module = planned(decoder(Widths::tiny(2)));
    let slots = module.slots().expect("planned").slots.len();
    let mut of_the_rule = 0;
    for at in 0..slots {
        let found = planted(|slots, _| slots[at].live.end = slots[at].live.end.saturating_sub(1));
        // What no launch reads at all later is a finding of the module's own rules.
        assert!(matches!(found[..], ["B0107"] | ["P0406"]), "{at}: {found:?}");
        of_the_rule += usize::from(found == ["B0107"]);
    }
    assert!(of_the_rule > 0, "a matmul and the regions beside it are one moment");
}

/// The first value of other rows that a piece over `R` reads from the rest of the step, and the
/// position of its reader.
fn read_by_the_head(module: &Module) -> (Value, usize) {
    let (graph, stitch) = (module.graph(), module.stitch().expect("split"));
    let order = stitch.node_order();
    let over_rows = stitch.steps.iter().filter(|step| matches!(step, Step::Piece(_))).filter(|s| {
        let over = stitch.unique[stitch.uses[s.id()].unique].over;
        over.is_some_and(|symbol| graph.symbols()[symbol].name == "R")
    });
    let nodes = over_rows.flat_map(|step| stitch.uses[step.id()].nodes.iter());
    nodes
        .flat_map(|&node| graph.node(node).operands.iter().map(move |&value| (node, value)))
        .find(|&(_, value)| {
            let rows = graph.ty(value).outer_symbol();
            let is_result = matches!(graph.def(value), ValueDef::Result { .. });
            is_result && rows.is_some_and(|symbol| graph.symbols()[symbol].name == "T")
        })
        .map(|(node, value)| (value, order.iter().position(|&n| n == node).expect("in the step")))
        .expect("the head reads the rest of the step")
}

#[test]
fn what_a_repeated_piece_reads_and_does_not_live_to_the_end_is_b0107() {
    let module = planned(decoder(Widths::tiny(2)));
    let (value, reader) = read_by_the_head(&module);
    let last = module.stitch().expect("split").node_order().len() - 1;
    assert!(reader < last, "what follows the reader is what would overwrite the value");
    for end in reader..last {
        let found = planted(|slots, _| {
            let slot = slots.iter_mut().find(|slot| slot.value == value).expect("has a slot");
            assert_eq!(slot.live.end, last);
            slot.live.end = end;
        });
        assert_eq!(found, ["B0107"], "live to {end} of {last}");
    }
}

#[test]
fn bytes_of_what_a_repeated_piece_reads_given_to_what_it_writes_are_b0301() {
    let module = planned(decoder(Widths::tiny(2)));
    let (value, _) = read_by_the_head(&module);
    let written = module.graph().outputs()[0];
    let found = planted(|slots, layout| {
        let slot = |value| slots.iter().position(|s| s.value == value).expect("has a slot");
        layout.offsets[slot(written)] = layout.offsets[slot(value)];
    });
    assert_eq!(found, ["B0301"]);
}

#[test]
fn misalignment_is_p0501() {
    assert_eq!(planted(|_, layout| layout.align = 192), ["P0501"]);
    assert_eq!(planted(|_, layout| layout.bytes += 1), ["P0501"]);
    let found = planted(|slots, layout| {
        let at = first_of(slots, SlotKind::Output);
        layout.offsets[at] += 16;
        layout.bytes += 256;
    });
    assert!(found.contains(&"P0501"), "{found:?}");
}

#[test]
fn an_end_outside_the_arena_is_p0506() {
    assert_eq!(planted(|_, layout| layout.bytes -= layout.align), ["P0506"]);
    let found = planted(|slots, layout| {
        layout.offsets[first_of(slots, SlotKind::Output)] = !255;
    });
    assert_eq!(found, ["P0506"]);
}

#[test]
fn a_slot_too_small_for_its_value_is_p0504() {
    assert_eq!(
        planted(|slots, layout| layout.sizes[first_of(slots, SlotKind::Local)] -= 2),
        ["P0504"]
    );
}

#[test]
fn lists_that_do_not_fit_are_p0502() {
    assert_eq!(planted(|_, layout| layout.offsets.truncate(3)), ["P0502"]);
    assert_eq!(planted(|_, layout| layout.bounds.push(1)), ["P0502"]);
}

#[test]
fn a_layout_for_smaller_bounds_is_b0206() {
    assert_eq!(planted(|_, layout| layout.bounds[0] -= 1), ["B0206"]);
}

#[test]
fn an_edited_offset_that_overlaps_is_b0301() {
    let found = planted(|slots, layout| {
        // Two slots that are live together, the later put where the earlier is.
        let pair = (0..slots.len()).flat_map(|a| (a + 1..slots.len()).map(move |b| (a, b))).find(
            |&(a, b)| {
                slots[a].kind != SlotKind::Input
                    && slots[a].live.overlaps(slots[b].live)
                    && layout.sizes[a] == layout.sizes[b]
            },
        );
        let (a, b) = pair.expect("two live slots of one size");
        layout.offsets[b] = layout.offsets[a];
    });
    assert_eq!(found, ["B0301"]);
}

#[test]
fn a_slot_over_the_counts_is_p0505() {
    assert_eq!(planted(|_, layout| layout.offsets[0] = 0), ["P0505"]);
}

#[test]
fn what_is_staged_and_what_is_not_is_p0505_or_b0403() {
    assert_eq!(planted(|_, layout| layout.counts = layout.bytes), ["P0505"]);
    assert_eq!(planted(|_, layout| layout.counts = 2), ["P0501"]);
    assert_eq!(planted(|_, layout| layout.staged -= 256), ["P0505"]);
    assert_eq!(planted(|_, layout| layout.staged += 256), ["B0403"]);
}

fn launched(fault: impl FnOnce(&Module, &mut Vec<MemberLaunches>)) -> Vec<&'static str> {
    let module = planned(decoder(Widths::tiny(2)));
    let mut launches = plain(&module);
    fault(&module, &mut launches);
    codes(check_launches(&module, &launches))
}

#[test]
fn launches_without_a_fault_pass() {
    assert_eq!(launched(|_, _| {}), [] as [&str; 0]);
    let module = planned(decoder(Widths::tiny(3)));
    assert_eq!(check_launches(&module, &absorbing(&module)), Ok(()));
}

#[test]
fn a_lowering_that_absorbs_launches_less() {
    let module = planned(decoder(Widths::tiny(3)));
    let count =
        |members: &[MemberLaunches]| members.iter().map(|m| m.launches.len()).sum::<usize>();
    assert!(count(&absorbing(&module)) < count(&plain(&module)));
}

#[test]
fn reading_what_nothing_wrote_is_b0501() {
    let found = launched(|_, members| {
        let last = members.last_mut().expect("a member");
        last.launches.swap(0, 1);
    });
    assert_eq!(found, ["B0501"]);
}

#[test]
fn node_granular_lifetimes_under_absorbing_launches_are_refused() {
    node_granular_lifetimes_are_refused(decoder(Widths::tiny(2)), ["B0502", "B0503"], "B0107");
}

#[test]
fn overwritten_bytes_are_b0502_and_own_bytes_b0503() {
    // x -> a -> b -> c in one piece: a and c may share bytes.
    let mut g = Graph::new("chain");
    let t = symbol(&mut g, "T", 64);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let a = unary(&mut g, t, UnaryOp::Neg, x);
    let b = unary(&mut g, t, UnaryOp::Neg, a);
    let c = unary(&mut g, t, UnaryOp::Neg, b);
    let d = unary(&mut g, t, UnaryOp::Neg, c);
    g.set_outputs(vec![d]);
    let module = planned(g);
    let offset = |v| {
        module.layout().expect("planned").offsets
            [module.slots().expect("planned").of(v).expect("a slot").index()]
    };
    assert_eq!(offset(a), offset(c), "the plan reuses the bytes");
    let launch = |name: &str, reads: &[Value], writes: &[Value]| LaunchAccess {
        name: name.into(),
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        ..LaunchAccess::default()
    };
    let run = |launches: Vec<LaunchAccess>| {
        let member = MemberLaunches { member: PieceId::new(0), scratch: 0, launches };
        codes(check_launches(&module, &[member]))
    };
    let (first, second) = (launch("a", &[x], &[a]), launch("b", &[a], &[b]));
    let (third, fourth) = (launch("c", &[b], &[c]), launch("d", &[c], &[d]));
    let all = |last: LaunchAccess| vec![first.clone(), second.clone(), third.clone(), last];
    assert_eq!(run(all(fourth.clone())), [] as [&str; 0]);
    assert_eq!(run(all(launch("late", &[c, a], &[d]))), ["B0502"]);
    let fused = vec![first.clone(), launch("bc", &[a], &[c]), fourth.clone()];
    assert_eq!(run(fused), ["B0503"]);
    let both = vec![launch("ac", &[x], &[a, c]), second.clone(), third.clone(), fourth.clone()];
    assert_eq!(run(both), ["B0502", "B0503"]);
    assert_eq!(run(all(launch("input", &[c], &[d, x]))), ["B0504"]);
}

#[test]
fn a_boundary_that_no_launch_writes_is_b0505() {
    let found = launched(|module, members| {
        let slots = module.slots().expect("planned");
        let last = members.last_mut().expect("a member");
        let sample = last.launches.last_mut().expect("a launch");
        let output =
            |v: &Value| slots.of(*v).is_some_and(|s| slots.slots[s].kind == SlotKind::Output);
        assert!(sample.writes.iter().any(output));
        sample.writes.retain(|v| !output(v));
    });
    assert_eq!(found, ["B0505"]);
}

#[test]
fn an_output_overwritten_before_the_end_is_b0506() {
    let mut module = planned(decoder(Widths::tiny(1)));
    let mut layout = module.layout().expect("planned").clone();
    let slots = module.slots().expect("planned");
    let outputs: Vec<usize> = slots
        .slots
        .iter()
        .filter(|(_, s)| s.kind == SlotKind::Output)
        .map(|(slot, _)| slot.index())
        .collect();
    layout.offsets[outputs[1]] = layout.offsets[outputs[0]];
    module.set_layout(layout);
    let found = codes(check_launches(&module, &plain(&module)));
    assert!(found.contains(&"B0506"), "{found:?}");
}

#[test]
fn lists_of_other_members_are_b0507() {
    assert_eq!(launched(|_, members| members.swap(1, 2)), ["B0507"]);
    assert_eq!(launched(|_, members| members.truncate(2)), ["B0507"]);
}

#[test]
fn a_launch_that_names_nothing_is_b0102() {
    let found = launched(|_, members| members[1].launches[0].reads.push(Value(99_999)));
    assert!(found.contains(&"B0102"), "{found:?}");
}

#[test]
fn scratch_that_is_not_there_or_not_written_is_b0508() {
    let range = |offset, bytes| ScratchRange { offset, bytes };
    let with = |scratch, write: &[ScratchRange], read: &[ScratchRange]| {
        launched(|_, members| {
            members[1].scratch = scratch;
            members[1].launches[0].scratch_writes = write.to_vec();
            members[1].launches[1].scratch_reads = read.to_vec();
        })
    };
    assert_eq!(with(64, &[range(0, 32), range(32, 32)], &[range(16, 48)]), [] as [&str; 0]);
    assert_eq!(with(60, &[range(0, 64)], &[]), ["B0508"]);
    assert_eq!(with(64, &[range(0, 16), range(32, 32)], &[range(8, 40)]), ["B0508"]);
    assert_eq!(with(64, &[range(0, u64::MAX)], &[range(u64::MAX, u64::MAX)]), ["B0508"]);
}

#[test]
fn what_the_step_writes_is_not_read_ahead_b0509() {
    let ahead = |of: fn(&Graph) -> Value| {
        launched(|module, members| {
            let value = of(module.graph());
            let reads = |launch: &&mut LaunchAccess| launch.reads.contains(&value);
            let mut launches = members.iter_mut().flat_map(|member| &mut member.launches);
            launches.find(reads).expect("a reader").ahead.push(value);
        })
    };
    let slots = |g: &Graph| g.inputs().iter().find(|i| i.name == "slots").expect("slots").value;
    assert_eq!(ahead(slots), [] as [&str; 0]);
    assert_eq!(ahead(|g| g.weights()[0].value), [] as [&str; 0]);
    // Keys and values are written at slots that the step brings.
    assert_eq!(ahead(|g| g.states()[0].value), [] as [&str; 0]);
    let result = |g: &Graph| g.node(g.nodes().next().expect("a node")).results[0];
    assert_eq!(ahead(result), ["B0509"]);
}

#[test]
fn rows_of_a_state_that_the_graph_computes_are_not_read_ahead_b0509() {
    let mut g = Graph::new("computed_slots");
    let t = symbol(&mut g, "T", 64);
    let index = TensorType::new(DType::I32, [t]);
    let slots = g.add_input("slots", index, Some(Scalar::int(DType::I32, -1)), None);
    let rows = TensorType::new(DType::F32, [t.into(), Dim::constant(8)]);
    let x = g.add_input("x", rows, None, None);
    let state = g.add_state("s", TensorType::new(DType::F32, [64u64, 8]), None);
    let computed = unary(&mut g, t, UnaryOp::Neg, slots);
    let operands = [(x, ParamMode::Row), (computed, ParamMode::Row), (state, ParamMode::Mut)];
    let y = region(&mut g, t, &operands, "write", |b, p| {
        b.push_node(Op::Scatter, vec![p[2], p[1], p[0]], vec![], Loc::default());
        let ty = b.ty(p[0]).clone();
        vec![b.push(Op::Unary(UnaryOp::Neg), vec![p[0]], ty, Loc::default())]
    })[0];
    let read = custom("user.read", vec![], RowTreatment::Masked, true);
    let ty = g.ty(y).clone();
    let read = g.push(read, vec![y, state], ty, loc("read"));
    g.set_outputs(vec![read]);
    let module = planned(g);
    let mut members = plain(&module);
    assert_eq!(codes(check_launches(&module, &members)), [] as [&str; 0]);
    let mut launches = members.iter_mut().flat_map(|member| &mut member.launches);
    let reader = launches.find(|launch| launch.reads.contains(&state)).expect("a reader");
    reader.ahead.push(state);
    assert_eq!(codes(check_launches(&module, &members)), ["B0509"]);
}

#[test]
fn a_users_op_with_a_mutated_state_is_planned_and_launched() {
    let mut g = Graph::new("user");
    let t = symbol(&mut g, "N", 32);
    let x = g.add_input("x", TensorType::new(DType::F32, [t.into(), Dim::constant(8)]), None, None);
    let state = g.add_state("memory", TensorType::new(DType::F32, [16, 8]), None);
    let w = weight(&mut g, "w", DType::F32, [8, 8]);
    let mut v = unary(&mut g, t, UnaryOp::Exp, x);
    for _ in 0..3 {
        let ty = g.ty(v).clone();
        let op = custom("user.recur", vec![1], RowTreatment::Mixed, true);
        v = g.push(op, vec![v, state], ty, loc("recur"));
        v = matmul(&mut g, v, w, "mix");
        v = unary(&mut g, t, UnaryOp::Exp, v);
    }
    g.set_outputs(vec![v]);
    let module = planned(g);
    assert_eq!(check_plan(&module), Ok(()));
    assert_eq!(check_launches(&module, &plain(&module)), Ok(()));
    assert_eq!(check_launches(&module, &absorbing(&module)), Ok(()));
    assert!(module.graph().nodes().any(|n| matches!(module.graph().node(n).op, Op::Custom(_))));
}
