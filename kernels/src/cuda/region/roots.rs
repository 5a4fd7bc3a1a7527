//! What a kernel must do, in parts that share no work.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::super::index::{Index, Variables};
use super::component::StageKind;
use super::source::{Id, Source};
use piecewise_ir::op::{Op, OpClass};
use std::collections::BTreeSet;

/// A result or a scatter: what, after which statement, and the elements of its loop.
pub(super) type Root = (StageKind, usize, u64);

/// The computed and other values that some values are made of, these included.
fn reach(source: &Source<'_>, mut next: Vec<Id>, variables: &mut Variables) -> BTreeSet<Id> {
    let mut seen = BTreeSet::new();
    while let Some(value) = next.pop() {
        let (value, _) = source.resolve(value, Index::default(), variables);
        if seen.insert(value)
            && let Some((_, statement)) = source.statement(value)
        {
            next.extend(&statement.operands);
        }
    }
    seen
}

/// The stages that must be, grouped by the work that they share.
pub(super) fn roots(source: &Source<'_>, variables: &mut Variables) -> Vec<Vec<Root>> {
    let mut roots: Vec<(StageKind, usize, u64, BTreeSet<Id>)> = Vec::new();
    for (i, &value) in source.results.iter().enumerate() {
        let elements = source.value(value).elements;
        if elements > 0 {
            // What copies another value goes last.
            let made = source.exact[i].and_then(|value| source.statement(value));
            let anchor = made.map_or(source.statements.len() + i, |(statement, _)| statement);
            let reached = reach(source, vec![value], variables);
            roots.push((StageKind::Store { result: i }, anchor, elements, reached));
        }
    }
    for (i, statement) in source.statements.iter().enumerate() {
        if let (Op::Scatter, [_, slots, rows]) = (statement.op, &statement.operands[..]) {
            let elements = source.value(*rows).elements;
            if elements > 0 {
                let reached = reach(source, vec![*slots, *rows], variables);
                roots.push((StageKind::Scatter { statement: i }, i, elements, reached));
            }
        }
    }
    roots.sort_by_key(|(kind, anchor, ..)| (*anchor, *kind));
    let worth_sharing = |value: Id| {
        let made = source.value(value);
        let long = |op: &Op| {
            // Of an iota one axis varies.
            let iota = if let Op::Iota { axis } = op { Some(made.shape[*axis]) } else { None };
            match op.class() {
                OpClass::Gather => false,
                OpClass::Elementwise
                | OpClass::Remap
                | OpClass::Reduction
                | OpClass::Search
                | OpClass::Scatter
                | OpClass::Product { .. }
                | OpClass::Constant
                | OpClass::Region(_)
                | OpClass::Custom(_) => iota.unwrap_or(made.elements) >= 32,
            }
        };
        source.is_staged(value) || source.statement(value).is_some_and(|(_, s)| long(s.op))
    };
    let mut groups: Vec<(Vec<Root>, BTreeSet<Id>)> = Vec::new();
    for (kind, anchor, elements, reached) in roots {
        let mut shared: BTreeSet<Id> =
            reached.into_iter().filter(|&value| worth_sharing(value)).collect();
        let mut members = vec![(kind, anchor, elements)];
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, values)| !values.is_disjoint(&shared));
        groups = apart;
        for (others, values) in joined {
            members.extend(others);
            shared.extend(values);
        }
        members.sort_by_key(|(kind, anchor, _)| (*anchor, *kind));
        groups.push((members, shared));
    }
    let mut groups: Vec<_> = groups.into_iter().map(|(members, _)| members).collect();
    groups.sort_by_key(|members| (members[0].1, members[0].0));
    groups
}
