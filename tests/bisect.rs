//! Planted faults, each found by name.

use crate::turned::Turned;
use piecewise::bisect::{Bisection, Culprit, Finding, PassFault, Verdict, reduce};
use piecewise::prelude::*;
use piecewise::trial::{Given, GivenInput, Trial, TrialLevel};
use piecewise_ir::eval::Array;
use piecewise_ir::op::{BinaryOp, Op};
use piecewise_passes::fuse::Fuse;
use std::sync::Arc;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");

/// What a bisection finds of an assembly that is held against a level.
fn found_against(level: TrialLevel, assembly: Assembly, given: &Given) -> Finding {
    let trial = Trial::new(assembly.sequences(1)).unwrap();
    let feed = trial.feed(given).unwrap();
    let expected = trial.run(level, &feed).unwrap();
    let tolerance = piecewise::trial::tolerance_of(trial.graph());
    let bisection = Bisection { trial: &trial, feed, expected, tolerance };
    bisection.run(&mut |_| {}).unwrap()
}

fn found(assembly: Assembly) -> Finding {
    found_against(TrialLevel::Compiled(Some(CompileLevel::Eager)), assembly, &Given::default())
}

fn tiny() -> Assembly {
    let assembly = Assembly::folder(TINY).unwrap().activations(DType::F32).threads(2);
    assembly.max_num_tokens(8).max_num_seqs(2).max_seq_len(64).capture_sizes([8])
}

fn fault(finding: &Finding) -> &PassFault {
    match &finding.culprit {
        Culprit::Pass(fault) => fault,
        other => panic!("a pass is at fault, not {other:?}"),
    }
}

fn turned(counts: bool) -> Assembly {
    tiny().pass_after("canonicalize", "turned", &[], move |_| {
        Ok(Box::new(Turned { counts, scope: "layers.1" }))
    })
}

#[test]
fn a_wrong_rewrite_of_an_own_pass_is_found_with_its_first_wrong_value() {
    let finding = found(turned(true));
    let fault = fault(&finding);
    assert_eq!((fault.number, fault.name.as_str()), (2, "turned"));
    let rewrite = fault.rewrite.as_ref().unwrap();
    assert_eq!(rewrite.rule, "turned difference");
    assert!(rewrite.place.contains("sub at") && rewrite.place.contains("layers.1"), "{rewrite:?}");
    assert_eq!(fault.verdict, Verdict::WrongRewrite);
    let wrong = fault.first_wrong.as_ref().unwrap();
    assert!(wrong.line.contains("= sub ") && wrong.scope.contains("layers.1"), "{wrong:?}");
    assert!(wrong.source.contains(".rs:"), "{wrong:?}");
    assert_eq!(
        fault.diff.lines().filter(|line| line.starts_with("+  ")).count(),
        1,
        "{}",
        fault.diff
    );
    assert!(finding.runs < 25, "{} runs", finding.runs);
}

#[test]
fn of_a_pass_that_counts_no_rewrites_the_pass_is_found() {
    let finding = found(turned(false));
    let fault = fault(&finding);
    assert_eq!((fault.number, fault.rewrite.is_none()), (2, true));
    assert!(fault.first_wrong.as_ref().is_some_and(|wrong| wrong.line.contains("= sub ")));
}

/// Fusion, after which a region of one layer is another.
#[derive(Debug)]
struct WrongFuse;

impl Pass for WrongFuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let report = Fuse.run(module, cx)?;
        let graph = module.graph_mut();
        let mut is_done = false;
        for node in graph.order().to_vec() {
            let is_there = graph.node(node).loc.scope.contains("layers.2");
            let Op::Region(region) = &mut graph.node_mut(node).op else { continue };
            let body = &mut region.body;
            for inner in body.order().to_vec() {
                if is_there && !is_done && body.node(inner).op == Op::Binary(BinaryOp::Sub) {
                    body.node_mut(inner).operands.reverse();
                    is_done = true;
                }
            }
        }
        Ok(report)
    }
}

#[test]
fn a_wrong_rewrite_of_fusion_is_found() {
    let finding = found(tiny().pass("fuse", &[], |_| Ok(Box::new(WrongFuse))));
    let fault = fault(&finding);
    assert_eq!((fault.number, fault.name.as_str()), (6, "fuse"));
    let rewrite = fault.rewrite.as_ref().unwrap();
    assert!(rewrite.rule == "region" && rewrite.place.contains("layers.2"), "{rewrite:?}");
    assert_eq!(fault.verdict, Verdict::WrongRewrite);
    let wrong = fault.first_wrong.as_ref().unwrap();
    assert!(wrong.line.contains("layers.2"), "{wrong:?}");
    assert!(fault.diff.contains("region"), "{}", fault.diff);
}

/// Fails, or panics where it is told to.
#[derive(Debug)]
struct Failing(bool);

impl Pass for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn run(&self, _: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        assert!(!self.0, "it went too far");
        Err(PassError::failed("failing", "it can't do this"))
    }
}

#[test]
fn a_pass_that_fails_or_panics_is_found() {
    for (panics, said) in [(false, "it can't do this"), (true, "it went too far")] {
        let b = Builder::new("small");
        let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 2));
        let graph = b.finish([x.exp()]).unwrap();
        let assembly = Assembly::graph(graph);
        let finding = found(
            assembly.pass_after("cse", "failing", &[], move |_| Ok(Box::new(Failing(panics)))),
        );
        let fault = fault(&finding);
        assert_eq!((fault.number, fault.verdict), (5, Verdict::Failed));
        assert!(finding.wrong.as_ref().is_some_and(|wrong| wrong.contains(said)), "{finding:?}");
    }
}

/// Doubles; what it computes in a captured graph, or anywhere, may be something else.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Doubled {
    WrongReplayed,
    WrongEverywhere,
}

impl CustomOpDef for Doubled {
    fn name(&self) -> &str {
        "own.doubled"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }

    fn evaluate(&self, x: &[Array], _: &Attrs, _: &[u64]) -> Result<Vec<Array>, String> {
        Ok(vec![Array { data: x[0].data.iter().map(|x| 2.0 * x).collect(), ..x[0].clone() }])
    }
}

impl CpuOp for Doubled {
    fn name(&self) -> &str {
        "own.doubled"
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let is_replayed = matches!(args.context(), LaunchContext::Capture(_));
        let by = match self {
            Self::WrongReplayed if !is_replayed => 2.0,
            Self::WrongReplayed | Self::WrongEverywhere => 3.0,
        };
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = by * x);
        Ok(())
    }
}

fn doubled(op: Doubled) -> Assembly {
    let b = Builder::new("doubled");
    let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 2));
    let graph = b.finish([b.custom_one(&op, &[x.exp()], Attrs::new()) - x]).unwrap();
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(op)).implement_cpu(Arc::new(op));
    Assembly::graph(graph).ops(ops).probe_capture(false)
}

#[test]
fn a_replay_that_is_wrong_is_told_from_a_pass() {
    let finding = found(doubled(Doubled::WrongReplayed));
    assert!(matches!(finding.culprit, Culprit::Replay { .. }), "{finding:?}");
}

#[test]
fn a_kernel_that_does_not_what_its_op_says_is_found() {
    let given = GivenInput::Elements { shape: None, elements: vec![1.0, -1.0, 0.5, 0.25] };
    let given = Given { inputs: [("x".to_owned(), given)].into(), ..Given::default() };
    let finding = found_against(TrialLevel::Reference, doubled(Doubled::WrongEverywhere), &given);
    let Culprit::Kernel(wrong) = &finding.culprit else { panic!("{finding:?}") };
    assert!(wrong.line.contains("custom \"own.doubled\""), "{wrong:?}");
    assert!(wrong.source.contains("tests/bisect.rs"), "{wrong:?}");
    assert_eq!(wrong.difference.first.index, [0, 0]);
    assert_eq!(wrong.difference.elements, 4);
    let none = found(doubled(Doubled::WrongEverywhere));
    assert_eq!((none.culprit, none.wrong), (Culprit::Nothing, None), "eager has the same kernel");
}

#[test]
fn what_is_wrong_shrinks_to_what_shows_it() {
    let b = Builder::new("large").weight_dtype(DType::F32);
    let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
    let h = x.linear(b.weight("in", [4, 4])).silu() + x;
    let y = {
        let _scope = b.scope("layers.1");
        (h.exp() - x).tanh() + h
    };
    let graph = b.finish([y.linear(b.weight("out", [2, 4])), x + x]).unwrap();
    let weights = InMemoryWeights::new().with("in", [4, 4], [0.25f32; 16]);
    let weights = weights.with("out", [2, 4], [0.5f32; 8]);
    let assembly = Assembly::graph(graph).weights(weights);
    let turned = |_: &mut OptionReader<'_>| {
        Ok(Box::new(Turned { counts: true, scope: "layers.1" }) as Box<dyn Pass>)
    };
    let trial = Trial::new(assembly.pass_after("canonicalize", "turned", &[], turned)).unwrap();
    let is_wrong = |graph: &Graph| {
        let trial = trial.of_graph(graph.clone());
        let Ok(feed) = trial.feed(&Given::default()) else { return false };
        let run = |level| trial.run(level, &feed);
        match (run(TrialLevel::Reference), run(TrialLevel::Compiled(Some(CompileLevel::Compile)))) {
            (Ok(expected), Ok(found)) => piecewise::trial::differences(&expected, &found, 1e-3)
                .is_ok_and(|all| !all.is_empty()),
            _ => false,
        }
    };
    let reduction = reduce(trial.graph(), 400, &mut |graph| is_wrong(graph));
    let ops = reduction.graph.nodes().map(|node| reduction.graph.node(node).op.name().to_owned());
    assert!(reduction.is_done, "{} tries", reduction.tests);
    assert_eq!(Vec::from_iter(ops), ["sub"]);
}
