//! How the attributes of each op format are written: the printer, the parser and the document's
//! op table are driven by this.

use crate::op::table::{AXES, AXIS, BLOCK, Key, PERM, START, TRANSPOSE_LHS, TRANSPOSE_RHS};
use crate::op::{Format, Op};

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AttrValue {
    Number(u64),
    Axes(Vec<usize>),
    Flag,
}

/// The attributes of `op` in the order of its format's keys; flags that are not set are left out.
pub(super) fn attributes(op: &Op) -> Vec<(Key, AttrValue)> {
    let number = |key, n: usize| (key, AttrValue::Number(n as u64));
    match op {
        Op::Reduce { axes, .. } => vec![(AXES, AttrValue::Axes(axes.clone()))],
        Op::ArgMax { axis } | Op::TopK { axis } | Op::Concat { axis } | Op::Iota { axis } => {
            vec![number(AXIS, *axis)]
        }
        Op::Permute { perm } => vec![(PERM, AttrValue::Axes(perm.clone()))],
        Op::Slice { axis, start } => {
            vec![number(AXIS, *axis), (START, AttrValue::Number(*start))]
        }
        Op::MatMul { transpose_lhs, transpose_rhs } => {
            [(*transpose_lhs, TRANSPOSE_LHS), (*transpose_rhs, TRANSPOSE_RHS)]
                .into_iter()
                .filter(|&(set, _)| set)
                .map(|(_, key)| (key, AttrValue::Flag))
                .collect()
        }
        Op::ScaledMatMul { block } => {
            vec![(BLOCK, AttrValue::Axes(block.map(|extent| extent as usize).to_vec()))]
        }
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Cast
        | Op::Broadcast
        | Op::Reshape
        | Op::Gather
        | Op::Scatter
        | Op::Literal(_)
        | Op::Region(_)
        | Op::Custom(_) => Vec::new(),
    }
}

/// The op of `format` with the attributes `given`. `None` if a key that the format needs is
/// missing, or for a format whose op is written in its own way (literal, region, custom).
pub(super) fn build(format: Format, given: &[(Key, AttrValue)]) -> Option<Op> {
    let find = |key: Key| given.iter().find(|(k, _)| *k == key).map(|(_, value)| value);
    let start = |key| match find(key) {
        Some(AttrValue::Number(n)) => Some(*n),
        _ => None,
    };
    let number = |key| start(key).and_then(|n| usize::try_from(n).ok());
    let axes = |key| match find(key) {
        Some(AttrValue::Axes(axes)) => Some(axes.clone()),
        _ => None,
    };
    let op = match format {
        Format::Unary(op) => Op::Unary(op),
        Format::Binary(op) => Op::Binary(op),
        Format::Compare(op) => Op::Compare(op),
        Format::Select => Op::Select,
        Format::Cast => Op::Cast,
        Format::Reduce(op) => Op::Reduce { op, axes: axes(AXES)? },
        Format::ArgMax => Op::ArgMax { axis: number(AXIS)? },
        Format::TopK => Op::TopK { axis: number(AXIS)? },
        Format::Broadcast => Op::Broadcast,
        Format::Reshape => Op::Reshape,
        Format::Permute => Op::Permute { perm: axes(PERM)? },
        Format::Slice => Op::Slice { axis: number(AXIS)?, start: start(START)? },
        Format::Concat => Op::Concat { axis: number(AXIS)? },
        Format::Gather => Op::Gather,
        Format::Scatter => Op::Scatter,
        Format::MatMul => Op::MatMul {
            transpose_lhs: find(TRANSPOSE_LHS).is_some(),
            transpose_rhs: find(TRANSPOSE_RHS).is_some(),
        },
        Format::ScaledMatMul => {
            let block: [usize; 2] = axes(BLOCK)?.try_into().ok()?;
            Op::ScaledMatMul { block: block.map(|extent| extent as u64) }
        }
        Format::Iota => Op::Iota { axis: number(AXIS)? },
        Format::Literal | Format::Region | Format::Custom => return None,
    };
    Some(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::op_table;
    use crate::op::table::KeyKind;

    #[test]
    fn attributes_build_the_op_they_came_from() {
        for info in op_table() {
            let given: Vec<_> = info
                .keys
                .iter()
                .map(|&key| {
                    let value = match key.kind {
                        KeyKind::Number => AttrValue::Number(3),
                        KeyKind::Axes => AttrValue::Axes(vec![1, 0]),
                        KeyKind::Flag => AttrValue::Flag,
                    };
                    (key, value)
                })
                .collect();
            if let Some(op) = build(info.format, &given) {
                assert_eq!(op.format(), info.format);
                assert_eq!(attributes(&op), given, "{}", info.mnemonic);
            }
        }
    }
}
