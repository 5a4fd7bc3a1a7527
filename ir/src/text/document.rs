//! The op table as a table of `docs/ir.md`, generated so that the document can't go out of date.

use super::syntax::{KeyKind, keys};
use crate::op::{Format, OpInfo, op_table};
use std::fmt::Write;

/// Every op with how it is written and what it computes, as a Markdown table in table order.
pub fn op_table_markdown() -> String {
    let mut out = String::from("| Op | Written | Computes |\n| --- | --- | --- |\n");
    for info in op_table() {
        let help = info.help.replace('|', "\\|");
        // Writing to a String never fails.
        let _ = writeln!(out, "| `{}` | `{}` | {help} |", info.mnemonic, written(info));
    }
    out
}

fn written(info: OpInfo) -> String {
    let operands = match info.format {
        Format::Unary(_)
        | Format::Cast
        | Format::Reduce(_)
        | Format::ArgMax
        | Format::TopK
        | Format::Broadcast
        | Format::Reshape
        | Format::Permute
        | Format::Slice => " a",
        Format::Binary(_) | Format::Compare(_) | Format::MatMul => " a, b",
        Format::Select => " c, a, b",
        Format::Concat => " a, b, ..",
        Format::Gather => " table, indices",
        Format::Scatter => " mut state, slots, rows",
        Format::Iota => "",
        Format::Literal => " [1.0, 2.0]",
        Format::Region => " over T (%a: row v0, %w: w0, %s: mut s0) { .. }",
        Format::Custom => " \"ns.name\" a, mut s0 {key=1} rows mixed split",
    };
    let attributes: Vec<_> = keys(info.format)
        .iter()
        .map(|key| match key.kind {
            KeyKind::Number => format!("{}=1", key.name),
            KeyKind::Axes => format!("{}=[0, 1]", key.name),
            KeyKind::Flag => key.name.to_owned(),
        })
        .collect();
    let attributes = match attributes.as_slice() {
        [] => String::new(),
        some => format!(" {{{}}}", some.join(", ")),
    };
    format!("{}{operands}{attributes}", info.mnemonic)
}
