//! Equality up to names and places: of ops, programs and recipes.

use crate::custom::{Attr, CustomCall};
use crate::entity::Value;
use crate::graph::Graph;
use crate::op::Op;
use crate::weight::Recipe;
use std::collections::BTreeMap;

/// Checkpoint names of one graph against those of another: a bijection so far.
#[derive(Default)]
pub(super) struct NamePairs {
    forward: BTreeMap<String, String>,
    backward: BTreeMap<String, String>,
}

impl NamePairs {
    fn pair(&mut self, a: &str, b: &str) -> bool {
        let b_of_a = self.forward.entry(a.to_owned()).or_insert_with(|| b.to_owned());
        let a_of_b = self.backward.entry(b.to_owned()).or_insert_with(|| a.to_owned());
        b_of_a == b && a_of_b == a
    }
}

pub(super) fn same_recipe(a: &Recipe, b: &Recipe, names: &mut NamePairs) -> bool {
    match (a, b) {
        (Recipe::Checkpoint { name: a, ty: at }, Recipe::Checkpoint { name: b, ty: bt }) => {
            at == bt && names.pair(a, b)
        }
        (Recipe::Concat { axis: a, parts: ap }, Recipe::Concat { axis: b, parts: bp }) => {
            a == b
                && ap.len() == bp.len()
                && ap.iter().zip(bp).all(|(a, b)| same_recipe(a, b, names))
        }
        (
            Recipe::Slice { axis: aa, start: a0, len: an, of: a },
            Recipe::Slice { axis: ba, start: b0, len: bn, of: b },
        ) => (aa, a0, an) == (ba, b0, bn) && same_recipe(a, b, names),
        (Recipe::Transpose { perm: ap, of: a }, Recipe::Transpose { perm: bp, of: b }) => {
            ap == bp && same_recipe(a, b, names)
        }
        (Recipe::Cast { to: at, of: a }, Recipe::Cast { to: bt, of: b }) => {
            at == bt && same_recipe(a, b, names)
        }
        (Recipe::Reshape { shape: ashape, of: a }, Recipe::Reshape { shape: bshape, of: b }) => {
            ashape == bshape && same_recipe(a, b, names)
        }
        (
            Recipe::Broadcast { shape: ashape, of: a },
            Recipe::Broadcast { shape: bshape, of: b },
        ) => ashape == bshape && same_recipe(a, b, names),
        (
            Recipe::Unpack { axis: aa, order: ao, less: am, len: an, of: a },
            Recipe::Unpack { axis: ba, order: bo, less: bm, len: bn, of: b },
        ) => (aa, ao, am, an) == (ba, bo, bm, bn) && same_recipe(a, b, names),
        (Recipe::Graph(a), Recipe::Graph(b)) => same_program(a, b),
        _ => false,
    }
}

pub(super) fn same_op(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Region(a), Op::Region(b)) => {
            a.over == b.over && a.params == b.params && same_program(&a.body, &b.body)
        }
        (Op::Custom(a), Op::Custom(b)) => same_call(a, b),
        _ => a == b,
    }
}

/// Floats by bits, for a NaN is itself.
fn same_call(a: &CustomCall, b: &CustomCall) -> bool {
    let same_attr = |a: &Attr, b: &Attr| match (a, b) {
        (Attr::Float(a), Attr::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    };
    let signature =
        |c: &CustomCall| (c.name.clone(), c.mutates.clone(), c.rows, c.splits, c.absorbs.clone());
    signature(a) == signature(b)
        && a.attrs.len() == b.attrs.len()
        && a.attrs.iter().zip(&b.attrs).all(|(a, b)| a.0 == b.0 && same_attr(a.1, b.1))
}

/// Whether two graphs compute the same from their declarations by position.
fn same_program(a: &Graph, b: &Graph) -> bool {
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    let pair = |map: &mut BTreeMap<Value, Value>, x: Value, y: Value| {
        map.insert(x, y);
        a.has_value(x) && b.has_value(y) && a.ty(x) == b.ty(y)
    };
    let counts = |g: &Graph| {
        [g.inputs().len(), g.weights().len(), g.states().len(), g.order().len(), g.outputs().len()]
    };
    if counts(a) != counts(b) {
        return false;
    }
    let mut names = NamePairs::default();
    let declared = a.inputs().iter().zip(b.inputs()).all(|(x, y)| pair(&mut map, x.value, y.value))
        && a.states().iter().zip(b.states()).all(|(x, y)| pair(&mut map, x.value, y.value))
        && a.weights().iter().zip(b.weights()).all(|(x, y)| {
            pair(&mut map, x.value, y.value) && same_recipe(&x.recipe, &y.recipe, &mut names)
        });
    let maps_to = |map: &BTreeMap<Value, Value>, xs: &[Value], ys: &[Value]| {
        xs.len() == ys.len() && xs.iter().zip(ys).all(|(x, y)| map.get(x) == Some(y))
    };
    declared
        && a.nodes().zip(b.nodes()).all(|(x, y)| {
            let (x, y) = (a.node(x), b.node(y));
            same_op(&x.op, &y.op)
                && maps_to(&map, &x.operands, &y.operands)
                && x.results.len() == y.results.len()
                && x.results.iter().zip(&y.results).all(|(&x, &y)| pair(&mut map, x, y))
        })
        && maps_to(&map, a.outputs(), b.outputs())
}
