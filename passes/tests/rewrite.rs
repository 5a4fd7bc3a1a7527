//! Rules by name: where they end, what they may give, and how they are counted.

use crate::common::semantics::{assert_keeps_bits, evaluate};
use crate::common::{Builder, decoder, ops, text};
use piecewise_ir::dtype::DType::{BF16, F32};
use piecewise_ir::module::Module;
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_passes::rewrite::{New, Rewrites, Rule, RulePass, Site};
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry, RunReport};
use std::collections::BTreeSet;

const BEFORE_FUSION: &str = "canonicalize,fold,merge_matmuls,cse,dce";

/// Runs a pipeline in which `own` is a pass of these rules.
fn run_with(
    rules: &'static [Rule],
    pipeline: &str,
    module: &mut Module,
    rewrites: Rewrites,
) -> Result<(RunReport, Rewrites), String> {
    let mut registry = Registry::standard();
    registry.add("own", &[], move |_| Ok(Box::new(RulePass::new("own", rules))));
    let pipeline = Pipeline::parse(pipeline).unwrap();
    let mut cx = PassContext { rewrites, ..PassContext::default() };
    let run = PassManager::new(&pipeline, &registry).unwrap().run(module, &mut cx);
    run.map(|report| (report, cx.rewrites)).map_err(|error| error.to_string())
}

/// `(x + y) * exp(0)`, twice negated, and a cast there and back.
fn busy() -> Module {
    let mut b = Builder::new();
    let t = b.symbol("T");
    let x = b.input("x", BF16, dims![t, 4u64]);
    let y = b.input("y", BF16, dims![t, 4u64]);
    let zero = b.splat_like(0.0, x);
    let one = b.unary(UnaryOp::Exp, zero);
    let sum = b.binary(BinaryOp::Add, x, y);
    let product = b.binary(BinaryOp::Mul, sum, one);
    let negated = b.unary(UnaryOp::Neg, product);
    let again = b.unary(UnaryOp::Neg, negated);
    let wide = b.cast(again, F32);
    let narrow = b.cast(wide, BF16);
    b.finish(&[narrow])
}

/// What folding finds makes more canonical, and the other way round.
#[test]
fn a_constant_that_is_found_late_still_goes() {
    assert_eq!(ops(&assert_keeps_bits(&busy(), BEFORE_FUSION, &[5], 1)), ["add"]);
}

#[test]
fn a_rule_without_an_end_is_named() {
    const SWAPPED: [Rule; 1] = [Rule::new(
        "swapped for ever",
        |op| *op == Op::Binary(BinaryOp::Add),
        |site| Some(site.node(site.op.clone(), [site.operands[1], site.operands[0]])),
    )];
    let error = run_with(&SWAPPED, "own", &mut busy(), Rewrites::default()).unwrap_err();
    assert!(error.contains("`swapped for ever` has no end"), "{error}");
    assert!(error.contains("= add"), "{error}");
    const GROWING: [Rule; 1] = [Rule::new(
        "growing for ever",
        |op| *op == Op::Unary(UnaryOp::Exp),
        |site| {
            let inner =
                New::Node(site.op.clone(), vec![New::Value(site.operands[0])], site.ty.clone());
            Some(site.nodes(site.op.clone(), [inner]))
        },
    )];
    let error = run_with(&GROWING, "own", &mut busy(), Rewrites::default()).unwrap_err();
    assert!(error.contains("`growing for ever` has no end"), "{error}");
}

#[test]
fn a_rule_that_gives_what_does_not_fit_is_named() {
    const OF_ANOTHER_TYPE: [Rule; 1] = [Rule::new(
        "a cast left out",
        |op| *op == Op::Cast,
        |site| Some(New::Value(site.operands[0])),
    )];
    let error = run_with(&OF_ANOTHER_TYPE, "own", &mut busy(), Rewrites::default()).unwrap_err();
    assert!(error.contains("`a cast left out` gives"), "{error}");
    fn of_one_operand(site: &Site<'_>) -> Option<New> {
        Some(site.node(site.op.clone(), [site.operands[0]]))
    }
    const NO_NODE: [Rule; 1] =
        [Rule::new("half a sum", |op| *op == Op::Binary(BinaryOp::Add), of_one_operand)];
    let error = run_with(&NO_NODE, "own", &mut busy(), Rewrites::default()).unwrap_err();
    assert!(error.contains("`half a sum` makes a node that is none, `add`"), "{error}");
}

/// The first so many rewrites are done, whatever pass they are of, and each number leaves a module that
/// computes the same.
#[test]
fn rewrites_are_counted_over_all_passes() {
    let sizes = [5];
    let expected = evaluate(&busy(), &sizes, 1);
    let mut whole = busy();
    let (report, all) = run_with(&[], BEFORE_FUSION, &mut whole, Rewrites::default()).unwrap();
    assert!(all.done() >= 4, "{report:?}");
    assert_eq!(all.last(), None, "nobody asked");
    let mut seen = vec![text(&busy())];
    for limit in 0..=all.done() {
        let mut module = busy();
        let (_, rewrites) =
            run_with(&[], BEFORE_FUSION, &mut module, Rewrites::only_first(limit)).unwrap();
        assert_eq!(rewrites.done(), limit);
        assert_eq!(rewrites.last().is_some(), limit > 0);
        assert_eq!(evaluate(&module, &sizes, 1), expected, "{limit}:\n{}", text(&module));
        seen.push(text(&module));
    }
    assert_eq!(seen.last(), Some(&text(&whole)));
    let (rule, place) = {
        let (_, rewrites) =
            run_with(&[], BEFORE_FUSION, &mut busy(), Rewrites::only_first(1)).unwrap();
        let (rule, place) = rewrites.last().unwrap();
        (rule, place.to_owned())
    };
    assert_eq!((rule, place.ends_with("= neg")), ("neg of neg", true), "{place}");
}

/// Whatever fusion decides is a rewrite with a name, and a decoder that is fused up to any of them is
/// valid, has a sound plan and keeps its bits.
#[test]
fn what_fusion_decides_is_counted_one_by_one() {
    const WHOLE: &str = "fuse,split,destination,plan";
    let expected = evaluate(&decoder::bf16(1), &[3, 2], 1);
    let (_, all) =
        run_with(&[], "fuse", &mut decoder::bf16(1), Rewrites::only_first(u64::MAX)).unwrap();
    let mut names = BTreeSet::new();
    let mut before = String::new();
    for limit in 0..=all.done() {
        let mut fused = decoder::bf16(1);
        let first = || Rewrites::only_first(limit);
        let (_, rewrites) = run_with(&[], "fuse", &mut fused, first()).unwrap();
        assert_eq!(rewrites.done(), limit);
        if let Some((rule, place)) = rewrites.last() {
            names.insert(rule);
            assert!(place.contains(" = "), "{place}");
        }
        assert_eq!(evaluate(&fused, &[3, 2], 1), expected, "{limit}:\n{}", text(&fused));
        run_with(&[], WHOLE, &mut decoder::bf16(1), first()).unwrap();
        let now = text(&fused);
        assert_eq!(
            now.contains("region"),
            rewrites.last().is_some_and(|(rule, _)| rule == "region")
        );
        before = now;
    }
    let mut whole = decoder::bf16(1);
    run_with(&[], "fuse", &mut whole, Rewrites::default()).unwrap();
    assert_eq!(before, text(&whole));
    let expected = [
        "fused over the same rows",
        "fused with what reads it",
        "region",
        "rows made by their readers",
        "static value made by its readers",
    ];
    assert_eq!(Vec::from_iter(names), expected);
}
