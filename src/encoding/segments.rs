//! Whether the segments of a step are what its ops take them for.

use crate::models::encoder::Values;
use piecewise_ir::entity::{Symbol, Value};
use piecewise_ir::graph::Graph;
use piecewise_ir::op::Op;
use piecewise_kernels::segments::{SegmentAttention, SegmentMean};

/// Two inputs that together say where segments lie among rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SegmentRule {
    starts: String,
    lengths: String,
    /// An input that says how many rows there are, and its elements for each.
    rows: (String, usize),
    /// Whether segments follow one another and leave out no row: what queries do.
    is_whole: bool,
}

impl SegmentRule {
    /// Those of a graph, as far as starts and lengths are its inputs.
    pub(super) fn of(graph: &Graph) -> Vec<Self> {
        let mut rules: Vec<Self> = Vec::new();
        for node in graph.nodes() {
            let node = graph.node(node);
            let Op::Custom(call) = &node.op else { continue };
            let found = match (call.name.as_str(), node.operands.as_slice()) {
                (SegmentAttention::NAME, &[q, k, _, q_starts, q_lengths, k_starts, k_lengths]) => {
                    vec![(q, q_starts, q_lengths, true), (k, k_starts, k_lengths, false)]
                }
                (SegmentMean::NAME, &[x, starts, lengths]) => vec![(x, starts, lengths, false)],
                _ => Vec::new(),
            };
            for (of, starts, lengths, is_whole) in found {
                let Some(rule) = Self::between(graph, of, [starts, lengths], is_whole) else {
                    continue;
                };
                let same = |other: &&mut Self| other.inputs() == rule.inputs();
                match rules.iter_mut().find(same) {
                    Some(known) => known.is_whole |= is_whole,
                    None => rules.push(rule),
                }
            }
        }
        rules
    }

    fn between(graph: &Graph, of: Value, segments: [Value; 2], is_whole: bool) -> Option<Self> {
        let name = |value: Value| {
            let input = graph.inputs().iter().find(|input| input.value == value);
            input.map(|input| input.name.clone())
        };
        let [starts, lengths] = segments.map(name);
        let symbol: Symbol = graph.ty(of).outer_symbol()?;
        let rows = graph.inputs().iter().find_map(|input| {
            let ty = graph.ty(input.value);
            let elements = ty.row().static_elements().filter(|&elements| elements > 0)?;
            let counts = ty.outer_symbol() == Some(symbol);
            counts.then(|| (input.name.clone(), elements as usize))
        });
        Some(Self { starts: starts?, lengths: lengths?, rows: rows?, is_whole })
    }

    fn inputs(&self) -> [&str; 3] {
        [&self.starts, &self.lengths, &self.rows.0]
    }

    /// Holds it against the inputs of a step. Inputs that are missing or of another type are for
    /// the session to name.
    pub(super) fn check(&self, inputs: &[(&'static str, Values<'_>)]) -> Result<(), String> {
        let of = |wanted: &str| inputs.iter().find(|(name, _)| *name == wanted).map(|(_, v)| v);
        let (Some(Values::I32(starts)), Some(Values::I32(lengths)), Some(by)) =
            (of(&self.starts), of(&self.lengths), of(&self.rows.0))
        else {
            return Ok(());
        };
        let rows = by.len() / self.rows.1;
        let mut end = 0;
        for (i, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
            let what =
                format!("segment {i} of `{}` has {length} rows from row {start} on", self.starts);
            let bounds = usize::try_from(start).ok().zip(usize::try_from(length).ok());
            let Some((start, length)) = bounds.filter(|(start, length)| start + length <= rows)
            else {
                return Err(format!("{what}, but there are {rows}"));
            };
            if length == 0 {
                continue;
            }
            if self.is_whole && start != end {
                return Err(format!(
                    "{what}, but those before it end at row {end}: segments follow one another"
                ));
            }
            end = start + length;
        }
        match self.is_whole && end != rows {
            true => Err(format!(
                "the segments of `{}` end at row {end}, but there are {rows} rows",
                self.starts
            )),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_do_not_fit_are_named() {
        let rule = |is_whole| SegmentRule {
            starts: "starts".to_owned(),
            lengths: "lengths".to_owned(),
            rows: ("x".to_owned(), 2),
            is_whole,
        };
        let said = |is_whole, starts: &[i32], lengths: &[i32]| {
            let inputs = [
                ("x", Values::F32(vec![0.0; 2 * 9])),
                ("starts", Values::I32(starts.to_vec())),
                ("lengths", Values::I32(lengths.to_vec())),
            ];
            rule(is_whole).check(&inputs)
        };
        assert_eq!(said(true, &[0, 4, 4], &[4, 0, 5]), Ok(()));
        assert_eq!(said(false, &[3, 0], &[2, 9]), Ok(()));
        let follow = said(true, &[0, 5], &[4, 4]).unwrap_err();
        assert_eq!(
            follow,
            "segment 1 of `starts` has 4 rows from row 5 on, but those before it end at row 4: \
             segments follow one another"
        );
        let end = said(true, &[0, 4], &[4, 4]).unwrap_err();
        assert_eq!(end, "the segments of `starts` end at row 8, but there are 9 rows");
        for wrong in [(-1, 3), (3, -1), (8, 2), (i32::MAX, i32::MAX)] {
            let error = said(false, &[wrong.0], &[wrong.1]).unwrap_err();
            assert!(error.ends_with("but there are 9"), "{error}");
        }
    }
}
