//! Lifetimes around custom ops that absorb, and the planted plans that do not cover them.

use crate::support::launches::{absorbing, plain};
use crate::support::plans::{
    codes, node_granular_lifetimes_are_refused, planned, planned_by_nodes,
};
use crate::support::{custom, loc, matmul, region, symbol, unary, weight};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::module::{Module, Step};
use piecewise_ir::op::{BinaryOp, Op, RowTreatment, UnaryOp};
use piecewise_ir::region::ParamMode;
use piecewise_ir::types::TensorType;
use piecewise_passes::check::{LaunchAccess, MemberLaunches, check_launches, check_plan};

/// An op of one operand that takes in the region before it, at 0, or after it, at 1.
fn turn(splits: bool, absorbs: &[usize]) -> Op {
    let mut op = custom("user.turn", vec![], RowTreatment::Masked, splits);
    let Op::Custom(call) = &mut op else { unreachable!() };
    call.absorbs = absorbs.to_vec();
    op
}

/// Between regions of its piece or between pieces: what one launch reads and what it writes are at
/// different places.
#[test]
fn lifetimes_cover_a_custom_op_with_the_regions_that_it_absorbs() {
    for (splits, absorbs) in [(false, &[0, 1][..]), (true, &[0]), (true, &[1])] {
        let graph = || {
            let mut g = Graph::new("user");
            let t = symbol(&mut g, "N", 32);
            let ty = TensorType::new(DType::F32, [t.into(), Dim::constant(8)]);
            let x = g.add_input("x", ty.clone(), None, None);
            let w = weight(&mut g, "w", DType::F32, [8, 8]);
            let mut v = matmul(&mut g, x, w, "first");
            for _ in 0..2 {
                let a = unary(&mut g, t, UnaryOp::Exp, v);
                let y = g.push(turn(splits, absorbs), vec![a], ty.clone(), loc("turn"));
                v = unary(&mut g, t, UnaryOp::Tanh, y);
            }
            g.set_outputs(vec![v]);
            g
        };
        let module = planned(graph());
        let steps = &module.stitch().expect("split").steps;
        let nodes = |step: &Step| module.stitch().expect("split").uses[step.id()].nodes.len();
        let of_splits = steps.iter().filter(|s| matches!(s, Step::Split(_))).map(nodes);
        assert_eq!(of_splits.collect::<Vec<_>>(), vec![2; if splits { 2 } else { 0 }]);
        assert_eq!(check_plan(&module), Ok(()));
        assert_eq!(check_launches(&module, &plain(&module)), Ok(()));
        assert_eq!(check_launches(&module, &absorbing(&module)), Ok(()));

        node_granular_lifetimes_are_refused(graph(), ["B0502", "B0503"], "B0107");
    }
}

/// The region after the op reads a product that comes after the op, so that both wait for it.
#[test]
fn lifetimes_cover_an_op_that_is_launched_where_the_region_after_it_is() {
    let mut g = Graph::new("user");
    let t = symbol(&mut g, "N", 32);
    let ty = TensorType::new(DType::F32, [t.into(), Dim::constant(8)]);
    let x = g.add_input("x", ty.clone(), None, None);
    let w = weight(&mut g, "w", DType::F32, [8, 8]);
    let v = matmul(&mut g, x, w, "first");
    let y = g.push(turn(false, &[1]), vec![v], ty, loc("turn"));
    let beside = matmul(&mut g, x, w, "beside");
    let rows = [(y, ParamMode::Row), (beside, ParamMode::Row)];
    let sum = region(&mut g, t, &rows, "sum", |b, p| {
        let ty = b.ty(p[0]).clone();
        vec![b.push(Op::Binary(BinaryOp::Add), p.to_vec(), ty, Loc::default())]
    });
    g.set_outputs(sum.clone());
    let late = |module: &Module| -> Vec<MemberLaunches> {
        let mut members = plain(module);
        let [first, _, beside_it, _] = &members[0].launches[..] else { panic!("four nodes") };
        let both = LaunchAccess {
            name: "turn+sum".into(),
            reads: vec![v, beside],
            writes: sum.clone(),
            ..LaunchAccess::default()
        };
        members[0].launches = vec![first.clone(), beside_it.clone(), both];
        members
    };
    let module = planned(g.clone());
    assert_eq!(check_launches(&module, &late(&module)), Ok(()));
    let module = planned_by_nodes(g);
    assert_eq!(check_launches(&module, &plain(&module)), Ok(()), "op by op the plan holds");
    assert!(codes(check_launches(&module, &late(&module))).contains(&"B0502"));
}
