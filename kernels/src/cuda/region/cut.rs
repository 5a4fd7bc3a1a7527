//! Regions cut at values that have a slot: the part that computes some of the results.

use crate::lower::{LowerError, fail};
use piecewise_ir::entity::{Entity, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_ir::region::{ParamMode, Region};

/// What a parameter of a part is to the whole region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PartParam {
    /// The operand at this position.
    Operand(usize),
    /// The result at this position, row by row.
    Result(usize),
}

/// Some results of a region, computed from its operands and from other results.
#[derive(Clone, PartialEq, Debug)]
pub struct RegionPart {
    /// The statements that the results need; each typed value is rounded as in the whole.
    pub region: Region,
    /// What each of its parameters is.
    pub params: Vec<PartParam>,
}

impl RegionPart {
    /// The part of `region` that computes the results at positions `wanted`, in this order, where
    /// the results at positions `given` are in memory.
    ///
    /// # Errors
    /// When the region scatters into a state, or a position is none of a result.
    pub fn of(region: &Region, wanted: &[usize], given: &[usize]) -> Result<Self, LowerError> {
        if region.body.nodes().any(|n| matches!(region.body.node(n).op, Op::Scatter)) {
            return fail("a part of a region that scatters into a state");
        }
        let outputs = region.body.outputs();
        let at = |&position: &usize| {
            outputs.get(position).copied().ok_or_else(|| {
                LowerError(format!("result {position} of a region of {} results", outputs.len()))
            })
        };
        let wanted: Vec<Value> = wanted.iter().map(at).collect::<Result<_, _>>()?;
        let given: Vec<(usize, Value)> =
            given.iter().map(|i| Ok((*i, at(i)?))).collect::<Result<_, LowerError>>()?;
        Ok(Cutting::of(region, &wanted, &given).part())
    }
}

struct Cutting<'a> {
    whole: &'a Region,
    wanted: &'a [Value],
    given: &'a [(usize, Value)],
    needed: Vec<bool>,
}

impl<'a> Cutting<'a> {
    fn of(whole: &'a Region, wanted: &'a [Value], given: &'a [(usize, Value)]) -> Self {
        let mut needed = vec![false; whole.body.value_count()];
        wanted.iter().for_each(|v| needed[v.index()] = true);
        for node in whole.body.nodes().rev() {
            let data = whole.body.node(node);
            let made = |v: &Value| needed[v.index()] && !given.iter().any(|(_, g)| g == v);
            if data.results.iter().any(made) {
                data.operands.iter().for_each(|v| needed[v.index()] = true);
            }
        }
        Self { whole, wanted, given, needed }
    }

    fn part(&self) -> RegionPart {
        let from = &self.whole.body;
        let mut body = Graph::with_symbols_of(from.name.clone(), from);
        let mut renamed: Vec<Option<Value>> = vec![None; from.value_count()];
        let (mut modes, mut params) = (Vec::new(), Vec::new());
        let operands = from.inputs().iter().zip(&self.whole.params).enumerate();
        let operands =
            operands.map(|(i, (input, &mode))| (PartParam::Operand(i), input.value, mode));
        let given = self.given.iter();
        let given = given.map(|&(i, value)| (PartParam::Result(i), value, ParamMode::Row));
        for (param, value, mode) in given.chain(operands) {
            if !self.needed[value.index()] || renamed[value.index()].is_some() {
                continue;
            }
            let ty = from.ty(value).clone();
            let name = format!("p{}", params.len());
            renamed[value.index()] = Some(body.add_input(name, ty, None, None));
            modes.push(mode);
            params.push(param);
        }
        for node in from.nodes() {
            let data = from.node(node);
            let made = |v: &Value| self.needed[v.index()] && renamed[v.index()].is_none();
            if !data.results.iter().any(made) {
                continue;
            }
            let operands = data.operands.iter().filter_map(|v| renamed[v.index()]).collect();
            let types = from.result_types(node);
            let new = body.push_node(data.op.clone(), operands, types, data.loc.clone());
            for (old, &new) in data.results.iter().zip(&body.node(new).results) {
                renamed[old.index()].get_or_insert(new);
            }
        }
        body.set_outputs(self.wanted.iter().filter_map(|v| renamed[v.index()]).collect());
        let region = Region { over: self.whole.over, params: modes, body };
        RegionPart { region, params }
    }
}
