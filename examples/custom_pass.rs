//! A pass of one's own, in one rule: divisions by a power of two become multiplications, bit for bit.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::ir::literal::Scalar;
use piecewise::ir::op::{BinaryOp, Op};
use piecewise::ir::text::{parse_graph, print_graph};
use piecewise::passes::rewrite::{New, Rule, RulePass, Site};
use piecewise::passes::{PassContext, PassManager, Pipeline, Registry};
use piecewise::prelude::*;
use std::error::Error;

const RULES: [Rule; 1] =
    [Rule::new("division by a power of two", |op| *op == Op::Binary(BinaryOp::Div), reciprocal)
        .or_remark("its divisor is no constant power of two whose reciprocal is exact")];

/// `x * (1 / c)` for `x / c`, where both are exact.
fn reciprocal(site: &Site<'_>) -> Option<New> {
    let divisor = site.splat(1).filter(|_| site.ty.dtype.is_float())?.to_f64();
    let factor = Scalar::new(site.ty.dtype, 1.0 / divisor);
    let is_power_of_two = divisor.is_normal() && divisor.to_bits().trailing_zeros() >= 52;
    (is_power_of_two && factor.to_f64() * divisor == 1.0).then(|| {
        let operands = [New::Value(site.operands[0]), New::splat(factor, site.ty)];
        site.nodes(Op::Binary(BinaryOp::Mul), operands)
    })
}

const GRAPH: &str = r#"graph @halves {
  dim T in [1..64]
  input %x: bf16[T,8]
  v0: bf16[] = literal [2.0]
  v1: bf16[T,8] = broadcast v0
  v2: bf16[T,8] = div %x, v1
  v3: bf16[] = literal [3.0]
  v4: bf16[T,8] = broadcast v3
  v5: bf16[T,8] = div v2, v4  #"third"
  ret v5
}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let mut registry = Registry::standard();
    registry.add("reciprocal", &[], |_| Ok(Box::new(RulePass::new("reciprocal", &RULES))));
    let pipeline = Pipeline::parse("canonicalize,reciprocal,dce")?;

    let mut module = Module::new(parse_graph(GRAPH)?);
    let run =
        PassManager::new(&pipeline, &registry)?.run(&mut module, &mut PassContext::default())?;

    print!("{}", print_graph(module.graph()));
    let report = run.of("reciprocal").ok_or("the pass did not run")?;
    println!("{} division replaced", report.matches("division by a power of two"));
    report.remarks.iter().for_each(|remark| println!("{remark}"));
    Ok(())
}
