//! All values of a graph, and the first that is another than it should be.

use super::bisection::Bisection;
use super::finding::WrongValue;
use crate::trial::{Difference, TrialError, difference, run_on_device};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use piecewise_ir::text::{print_graph, value_names};
use piecewise_passes::manager::paired_values;
use piecewise_runtime::words::{CompileLevel, SymbolClass, SymbolTable};
use std::collections::BTreeMap;

/// The values of a step.
pub(super) type Values = BTreeMap<Value, Array>;

/// A graph that returns the result of each of its nodes.
pub(super) struct Exposed {
    pub(super) graph: Graph,
    /// What it returned before.
    pub(super) returned: Vec<Value>,
}

impl Exposed {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut exposed = graph.clone();
        let symbols = SymbolTable::new(graph.symbols()).ok();
        // What is as large as a pool is no value of a step.
        let is_of_step = |value: Value| {
            let mut symbols_of = graph.ty(value).shape.iter().flat_map(|dim| dim.terms());
            symbols_of.all(|(symbol, _)| {
                symbols.as_ref().is_some_and(|table| table.class(*symbol) != SymbolClass::Fixed)
            })
        };
        let results = graph.nodes().flat_map(|node| graph.node(node).results.clone());
        exposed.set_outputs(results.filter(|&value| is_of_step(value)).collect());
        Self { graph: exposed, returned: graph.outputs().to_vec() }
    }

    fn named(&self, steps: Vec<Vec<Array>>) -> Vec<Values> {
        let named = |arrays: Vec<Array>| self.graph.outputs().iter().copied().zip(arrays).collect();
        steps.into_iter().map(named).collect()
    }

    /// The values of each step by the reference evaluator.
    pub(super) fn by_reference(&self, of: &Bisection<'_>) -> Result<Vec<Values>, TrialError> {
        Ok(self.named(of.trial.reference(&self.graph, &of.feed)?))
    }

    /// The values of each step on the device, launched, as the passes have left the graph.
    pub(super) fn on_device(&self, of: &Bisection<'_>) -> Result<Vec<Values>, TrialError> {
        let assembly = of.trial.subject.assembly(self.graph.clone())?;
        let assembly = assembly.level(CompileLevel::Compile).only_first(0);
        Ok(self.named(run_on_device(assembly, &self.graph, &of.feed)?))
    }
}

/// The first value after a rewrite that is another than before, with the values by either.
pub(super) fn first_wrong(
    forms: &[Exposed; 2],
    [expected, found]: [&[Values]; 2],
    tolerance: f64,
) -> Option<WrongValue> {
    let [before, after] = forms;
    let mut pairs = paired_values(&before.graph, &after.graph);
    pairs.extend(before.returned.iter().copied().zip(after.returned.iter().copied()));
    let after = &after.graph;
    expected.iter().zip(found).find_map(|(expected, found)| {
        pairs.iter().find_map(|(old, new)| {
            let (expected, found) = (expected.get(old)?, found.get(new)?);
            // Of other shapes they were never one.
            let is_like = expected.dtype == found.dtype && expected.shape == found.shape;
            let wrong = is_like.then(|| difference("", expected, found, tolerance))??;
            Some(wrong_value(after, *new, wrong))
        })
    })
}

/// A value as people find it.
pub(super) fn wrong_value(graph: &Graph, value: Value, difference: Difference) -> WrongValue {
    let names = value_names(graph);
    let name = names.get(value.index()).cloned().flatten();
    let name = name.unwrap_or_else(|| value.to_string());
    let text = print_graph(graph);
    let is_its = |line: &&str| {
        let defined = line.trim_start().split(" = ").next().unwrap_or_default();
        defined.split(", ").any(|part| part.split(':').next() == Some(name.as_str()))
    };
    let mut lines = text.lines();
    let line = lines.find(is_its).map_or_else(|| name.clone(), |line| line.trim().to_owned());
    let loc = graph.defining_node(value).map(|node| graph.node(node).loc.clone());
    let loc = loc.unwrap_or_default();
    let difference = Difference { name, ..difference };
    WrongValue { line, scope: loc.scope, source: loc.source, difference }
}
