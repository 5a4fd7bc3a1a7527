//! What an author of a model hears of a mistake that is found after the builder.

use super::own_ops::Captured;
use super::*;
use piecewise_kernels::step::CaptureSupport;

/// The line below the caller's, as the graph's text has it.
#[track_caller]
fn next_line() -> String {
    let here = std::panic::Location::caller();
    format!("{}:{}", here.file(), here.line() + 1)
}

#[test]
fn rows_that_mix_are_told_with_the_line_of_the_op() {
    let b = Builder::new("mixes");
    let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 2));
    let line = next_line();
    let sum = x.reduce_sum([0]);
    let graph = b.finish([x + sum]).unwrap();
    let error = Assembly::graph(graph).set("cache.enabled", false).plan().unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.contains("P0302") && shown.contains(&line), "{shown}");
    assert_eq!(shown, error.to_string(), "a `main` that returns it prints the same");
}

#[test]
fn an_op_without_kernels_is_told_with_its_scope_and_line() {
    let b = Builder::new("lacks");
    let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 2));
    let (scope, op) = (b.scope("layers.0"), Captured(CaptureSupport::Always));
    let line = next_line();
    let y = b.custom_one(&op, &[x], Attrs::new());
    drop(scope);
    let graph = b.finish([y]).unwrap();
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(op));
    let planned = Assembly::graph(graph).ops(ops).set("cache.enabled", false).plan().unwrap();
    let error = planned.artifacts().unwrap_err().to_string();
    assert!(error.contains("has no implementation on cpu"), "{error}");
    assert!(error.contains(&format!("(layers.0, {line})")), "{error}");
}

#[test]
fn ops_of_composites_have_the_line_of_whoever_calls_them() {
    let b = Builder::new("turns");
    let rows = b.symbol("T", 1, 8);
    let (x, at) = (b.input("x", DType::F32, (rows, 2, 4)), b.input("at", DType::I32, [rows]));
    let table = b.rope_table(&[1.0, 0.5], 16);
    let line = next_line();
    let graph = b.finish([x.rope(at, table)]).unwrap();
    let sources = Vec::from_iter(graph.nodes().map(|node| graph.node(node).loc.source.clone()));
    assert!(sources.len() > 8 && sources.iter().all(|source| *source == line), "{sources:?}");
}

/// Its `infer` knows no names of symbols, so that the builder tells the types.
#[test]
fn what_infer_refuses_is_told_with_types_as_the_text_has_them() {
    let b = Builder::new("refuses");
    let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 2));
    b.custom_one(&Refuses, &[x, x.reshape([x.shape()[0].times(2)])], Attrs::new());
    let errors = b.finish([x]).unwrap_err();
    let said = "custom op `own.refuses`: takes no f32[s0,2] (operands: f32[T,2], f32[2*T])";
    assert!(errors.to_string().contains(said), "{errors}");
    assert_eq!(format!("{errors:?}"), errors.to_string());
}

#[derive(Debug)]
struct Refuses;

impl CustomOpDef for Refuses {
    fn name(&self) -> &str {
        "own.refuses"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Err(format!("takes no {}", operands[0]))
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }
}
