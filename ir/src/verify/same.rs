//! Equality up to names and places: of ops and programs.

use crate::custom::{Attr, CustomCall};
use crate::entity::Value;
use crate::graph::Graph;
use crate::op::Op;
use std::collections::BTreeMap;

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
    let CustomCall { name, attrs: _, mutates, rows, splits, absorbs, scatters } = a;
    (name, mutates, rows, splits) == (&b.name, &b.mutates, &b.rows, &b.splits)
        && (absorbs, scatters) == (&b.absorbs, &b.scatters)
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
    let declared = a.inputs().iter().zip(b.inputs()).all(|(x, y)| pair(&mut map, x.value, y.value))
        && a.states().iter().zip(b.states()).all(|(x, y)| pair(&mut map, x.value, y.value))
        && a.weights().iter().zip(b.weights()).all(|(x, y)| pair(&mut map, x.value, y.value));
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
