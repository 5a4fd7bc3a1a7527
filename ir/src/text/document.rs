//! The op table as a table of `docs/ir.md`, generated so that the document can't go out of date.

use crate::op::table::KeyKind;
use crate::op::{OpInfo, op_table};
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
    let attributes: Vec<_> = info
        .keys
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
    format!("{}{}{attributes}", info.mnemonic, info.operands)
}
