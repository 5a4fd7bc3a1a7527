//! A histogram as CSV: `tokens,steps[,kind[,query_length]]`.
//!
//! `tokens` is the count that dispatch looks at: tokens of a mixed step, sequences of a decode.

use crate::error::PlannerError;
use crate::log_line::Line;
use crate::traffic::{StepKind, Traffic};

/// Which column holds what.
pub(crate) struct HistogramColumns {
    size: usize,
    steps: usize,
    kind: Option<usize>,
    query_length: Option<usize>,
}

const SIZE_NAMES: [&str; 5] = ["tokens", "num_tokens", "size", "batch", "batch_size"];
const STEP_NAMES: [&str; 4] = ["steps", "count", "num_steps", "frequency"];

impl HistogramColumns {
    /// The columns, and whether the line is a header; without one they are in the usual order.
    pub(crate) fn of_first_line(line: &[u8]) -> Result<(Self, bool), PlannerError> {
        if line.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-') {
            let usual = Self { size: 0, steps: 1, kind: Some(2), query_length: Some(3) };
            return Ok((usual, false));
        }
        let header: String = String::from_utf8_lossy(line).chars().take(200).collect();
        let names: Vec<String> =
            header.split(',').map(|name| name.trim().trim_matches('"').to_lowercase()).collect();
        let find = |wanted: &[&str]| names.iter().position(|name| wanted.contains(&name.as_str()));
        let missing = |missing| PlannerError::HistogramHeader { header: header.clone(), missing };
        let columns = Self {
            size: find(&SIZE_NAMES).ok_or_else(|| missing("tokens"))?,
            steps: find(&STEP_NAMES).ok_or_else(|| missing("steps"))?,
            kind: find(&["kind"]),
            query_length: find(&["query_length"]),
        };
        Ok((columns, true))
    }

    pub(crate) fn read_line(&self, line: &[u8], traffic: &mut Traffic) -> Result<Line, String> {
        let line = std::str::from_utf8(line).map_err(|_| "no UTF-8")?;
        let fields: Vec<&str> =
            line.split(',').map(|field| field.trim().trim_matches('"')).collect();
        let number = |index: usize, name: &str| -> Result<u64, String> {
            let field = fields.get(index).ok_or_else(|| format!("no column `{name}`"))?;
            match field.parse::<i64>() {
                Ok(value) if value < 0 => Err(format!("`{name}` is {value}: negative")),
                Ok(value) => Ok(value.unsigned_abs()),
                Err(_) => Err(format!("`{name}` is {field:?}: no integer")),
            }
        };
        let size = u32::try_from(number(self.size, "tokens")?)
            .map_err(|_| "absurd: more than 16777216 tokens in a step")?;
        let steps = number(self.steps, "steps")?;
        let given = |column: Option<usize>| {
            column.and_then(|index| fields.get(index)).filter(|field| !field.is_empty())
        };
        let query_length = match given(self.query_length) {
            None => 1,
            Some(_) => u32::try_from(number(self.query_length.unwrap_or(0), "query_length")?)
                .map_err(|_| "`query_length` is absurd")?,
        };
        let kind = match given(self.kind).copied() {
            None | Some("mixed") => StepKind::Mixed,
            Some("decode") => StepKind::Decode { query_length },
            Some(other) => return Err(format!("`kind` is {other:?}: neither mixed nor decode")),
        };
        if size == 0 || steps == 0 {
            return Ok(Line::Idle);
        }
        traffic.add(kind, size, steps)?;
        if matches!(kind, StepKind::Decode { .. }) {
            traffic.most_sequences = traffic.most_sequences.max(size);
        }
        Ok(Line::Step)
    }
}
