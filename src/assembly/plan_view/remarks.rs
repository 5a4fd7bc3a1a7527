//! What the passes remarked, with one layer for all that are equal to it.

use piecewise_passes::RunReport;
use serde::Serialize;
use std::collections::BTreeMap;

/// A remark, and where else the same was remarked.
#[derive(Clone, Debug, Serialize)]
pub struct RemarkRow {
    /// The pass by its name in the pipeline.
    pub pass: String,
    /// What was or was not done.
    pub what: String,
    /// To what, in the first of the equal layers; values have the names of the text before the pass.
    #[serde(rename = "where")]
    pub place: String,
    /// The reason, with the ops that it depends on.
    pub why: String,
    /// Where the same was remarked of other layers.
    pub equals: Vec<String>,
}

/// The remarks of all passes in their order.
pub(super) fn remark_rows(passes: &RunReport) -> Vec<RemarkRow> {
    let mut rows: Vec<RemarkRow> = Vec::new();
    let mut known: BTreeMap<[String; 4], usize> = BTreeMap::new();
    for run in &passes.passes {
        for remark in &run.report.remarks {
            let key = [
                run.name.clone(),
                remark.what.clone(),
                starred(&remark.place),
                starred(&remark.why),
            ];
            if let Some(&row) = known.get(&key) {
                rows[row].equals.push(remark.place.clone());
                continue;
            }
            known.insert(key, rows.len());
            rows.push(RemarkRow {
                pass: run.name.clone(),
                what: remark.what.clone(),
                place: remark.place.clone(),
                why: remark.why.clone(),
                equals: Vec::new(),
            });
        }
    }
    rows
}

/// A text with `*` for the numbers of layers and values: those behind a dot, and those behind the one
/// letter of a value's name. What equal layers have is equal then.
pub fn starred(text: &str) -> String {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let letters = ['v', 'w', 's', 'a', 'b', 'p', 'u'];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // The two characters before, and whether they begin a number to leave out.
    let (mut before, mut last) = (' ', ' ');
    while let Some(c) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let follows = rest[digits..].chars().next().unwrap_or(' ');
        let of_value = letters.contains(&last) && !is_name(before);
        if digits > 0 && (last == '.' || of_value) && !is_name(follows) {
            out.push('*');
            rest = &rest[digits..];
            (before, last) = (last, '0');
            continue;
        }
        let run = digits.max(c.len_utf8());
        out.push_str(&rest[..run]);
        let end = rest[..run].chars().next_back().unwrap_or(c);
        (before, last) = if digits > 1 { (end, end) } else { (last, end) };
        rest = &rest[run..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_passes::PassReport;
    use piecewise_passes::manager::PassRun;
    use std::time::Duration;

    #[test]
    fn numbers_of_layers_and_values_are_left_out_and_no_others() {
        let same = |text: &str| assert_eq!(starred(text), text);
        assert_eq!(starred("v12 = mul at layers.3.mlp"), "v* = mul at layers.*.mlp");
        assert_eq!(starred("layers.10 reads w7, s0"), "layers.* reads w*, s*");
        for text in ["fused 4 nodes", "2 slice, tanh", "silu2", "rows of T", "conv.3d", "kv12 x"] {
            same(text);
        }
    }

    #[test]
    fn one_layer_stands_for_its_equals() {
        let mut report = PassReport::default();
        for layer in 0..3 {
            report.remark("kept", format!("v{layer} = add at layers.{layer}.mlp"), "two read it");
        }
        report.remark("kept", "v9 = add at head", "two read it");
        let run = PassRun { name: "fuse".to_owned(), report, elapsed: Duration::ZERO };
        let rows = remark_rows(&RunReport { passes: vec![run], ..RunReport::default() });
        let [layers, head] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(layers.place, "v0 = add at layers.0.mlp");
        assert_eq!(layers.equals, ["v1 = add at layers.1.mlp", "v2 = add at layers.2.mlp"]);
        assert!(head.equals.is_empty() && head.pass == "fuse");
    }
}
