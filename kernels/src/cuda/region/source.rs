//! A row program by places: who writes what, and what an element is made of.

use super::super::index::{Index, Variables};
use crate::lower::{Access, LowerError, MapOp, PlaceKind, RowProgram, RowStep};
use piecewise_ir::op::{BinaryOp, UnaryOp};

/// A view of a program by places.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) program: &'a RowProgram,
    /// For each place, the steps that write it.
    pub(super) writers: Vec<Vec<usize>>,
    /// For each place, about what recomputing an element of it costs.
    pub(super) costs: Vec<u64>,
}

/// The part of a place that one of its writers writes: elements whose index modulo `period` is in
/// `start..start + len`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) period: u64,
    pub(super) start: u64,
    pub(super) len: u64,
}

fn op_cost(op: MapOp) -> u64 {
    match op {
        MapOp::Unary(UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::Floor) => 1,
        MapOp::Unary(_) => 12,
        MapOp::Binary(BinaryOp::Div) => 8,
        _ => 1,
    }
}

impl<'a> Source<'a> {
    pub(super) fn new(program: &'a RowProgram) -> Result<Self, LowerError> {
        let mut writers = vec![Vec::new(); program.places.len()];
        for (i, step) in program.steps.iter().enumerate() {
            match step {
                RowStep::Map { out, .. } | RowStep::Reduce { out, .. } => {
                    writers[out.place as usize].push(i);
                }
                RowStep::TopK { values, indices, .. } => {
                    for access in [values, indices].into_iter().flatten() {
                        writers[access.place as usize].push(i);
                    }
                }
                RowStep::Gather { out, .. } => writers[*out as usize].push(i),
                RowStep::Scatter { .. } => {}
            }
        }
        for place in &program.places {
            if place.elements > 1 << 31 {
                return Err(LowerError(
                    "a row of more than 2^31 elements; split the axis".to_owned(),
                ));
            }
        }
        let mut costs = vec![2u64; program.places.len()];
        for step in &program.steps {
            match step {
                RowStep::Map { op, inputs, out, .. } => {
                    let from: u64 = inputs.iter().map(|a| costs[a.place as usize]).sum();
                    costs[out.place as usize] = (op_cost(*op) + from).min(1 << 20);
                }
                RowStep::Gather { out, .. } => costs[*out as usize] = 4,
                RowStep::Reduce { out, .. } => costs[out.place as usize] = 0,
                _ => {}
            }
        }
        for (cost, place) in costs.iter_mut().zip(&program.places) {
            if matches!(place.kind, PlaceKind::Constant(_)) {
                *cost = 0;
            }
        }
        Ok(Self { program, writers, costs })
    }

    /// Whether a place is only read.
    pub(super) fn is_leaf(&self, place: u32) -> bool {
        self.writers[place as usize].is_empty()
    }

    pub(super) fn elements(&self, place: u32) -> u64 {
        self.program.places[place as usize].elements
    }

    /// Whether a gather reads rows of a place.
    pub(super) fn is_table(&self, place: u32) -> bool {
        let gathers = |s: &RowStep| matches!(s, RowStep::Gather { table, .. } if *table == place);
        self.program.steps.iter().any(gathers)
    }

    /// Whether a place is made by a stage of its own whatever reads it.
    pub(super) fn is_staged(&self, place: u32) -> bool {
        self.writers[place as usize].iter().any(|&w| {
            matches!(self.program.steps[w], RowStep::Reduce { .. } | RowStep::TopK { .. })
        })
    }

    /// The part of its place that a map writes.
    pub(super) fn part(&self, extents: &[u64], out: &Access) -> Part {
        let loops: Vec<(u64, u64)> = extents
            .iter()
            .copied()
            .zip(out.strides.iter().copied())
            .filter(|(extent, _)| *extent != 1)
            .collect();
        let mut len = 1;
        let mut outer = loops.len();
        while outer > 0 && loops[outer - 1].1 == len {
            len *= loops[outer - 1].0;
            outer -= 1;
        }
        let period = match outer {
            0 => self.elements(out.place),
            outer => loops[outer - 1].1,
        };
        Part { period: period.max(1), start: out.offset, len }
    }

    /// The inputs of a map for the element at `at` of its place, which lies in its part.
    pub(super) fn map_inputs(
        &self,
        step: usize,
        at: &Index,
        variables: &mut Variables,
    ) -> Vec<(u32, Index)> {
        let RowStep::Map { nest, inputs, out, .. } = &self.program.steps[step] else {
            return Vec::new();
        };
        let counters = self.counters(&nest.extents, out, at, variables);
        inputs.iter().map(|access| (access.place, indexed(access, &counters))).collect()
    }

    /// The counters of a map's loops for the element at `at` of its place.
    pub(super) fn counters(
        &self,
        extents: &[u64],
        out: &Access,
        at: &Index,
        variables: &mut Variables,
    ) -> Vec<Index> {
        let part = self.part(extents, out);
        let flat = match part.len == self.elements(out.place) {
            true => at.clone(),
            false => {
                let (outer, inner) = variables.div_rem(at, part.period);
                let inner = variables.minus(&inner, part.start, part.len);
                outer.times(part.len).plus(&inner)
            }
        };
        variables.coordinates(&flat, extents)
    }

    /// The index operand of a gather for the element at `at` of its result, and the element
    /// inside the table's row.
    pub(super) fn gather_inputs(
        &self,
        step: usize,
        at: &Index,
        variables: &mut Variables,
    ) -> Option<((u32, Index), Index)> {
        let RowStep::Gather { row, nest, indices, .. } = &self.program.steps[step] else {
            return None;
        };
        let (which, inside) = variables.div_rem(at, *row);
        let counters = variables.coordinates(&which, &nest.extents);
        Some(((indices.place, indexed(indices, &counters)), inside))
    }
}

/// The element that an access reads where the loops have these counters.
pub(super) fn indexed(access: &Access, counters: &[Index]) -> Index {
    counters
        .iter()
        .zip(&access.strides)
        .fold(Index::constant(access.offset), |sum, (c, &stride)| sum.plus(&c.times(stride)))
}
