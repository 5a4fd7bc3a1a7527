//! The iteration log: one JSON object per line, one line per step behind one that says what they are of.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::PlannerError;
use crate::head::LogHead;
use crate::mode::StepMode;

/// One step, as written to the iteration log.
///
/// A step is a *uniform decode* when it has no context tokens and each of its requests has
/// `query_length` tokens; every other step is *mixed*.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationRecord {
    /// Prompt tokens in the step.
    pub context_tokens: u32,
    /// Requests that had their prompt behind them.
    pub generation_requests: u32,
    /// Sequences in the step, context and generation together.
    pub sequences: u32,
    /// Rows that wanted logits.
    pub rows: u32,
    /// Tokens of each request of a uniform decode, `None` for any other step.
    pub query_length: Option<u32>,
    /// All tokens of the step. `None` means `context_tokens` plus one token for each
    /// generation request (`query_length` tokens in a uniform decode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Whether graphs were replayed, and of what.
    pub mode: StepMode,
    /// The capture size: tokens for a mixed step, sequences for a uniform decode; `None` when
    /// the step ran at its exact count.
    pub size: Option<u32>,
    /// Why no graph was replayed, where one could have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Cow<'static, str>>,
    /// GPU time of the step in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_us: Option<f64>,
    /// Wall time of the step in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_us: Option<f64>,
}

/// Writes iteration records, buffered, one JSON object per line.
#[derive(Debug)]
pub struct IterationLogWriter<W: Write> {
    out: BufWriter<W>,
}

impl IterationLogWriter<File> {
    /// Creates the file, or truncates it.
    ///
    /// # Errors
    /// [`PlannerError::File`] when the file cannot be created.
    pub fn create(path: &Path) -> Result<Self, PlannerError> {
        File::create(path).map(Self::new).map_err(PlannerError::file("write", path))
    }
}

impl<W: Write> IterationLogWriter<W> {
    /// Writes to `out` through a buffer of its own.
    pub fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(1 << 16, out) }
    }

    /// Appends one line.
    ///
    /// # Errors
    /// The error of the underlying writer; a line may then be cut short.
    pub fn write(&mut self, record: &IterationRecord) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, record)?;
        self.out.write_all(b"\n")
    }

    /// Writes the line that says what the steps are of; the first one.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn write_head(&mut self, head: &LogHead) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            log: &'a LogHead,
        }
        serde_json::to_writer(&mut self.out, &Line { log: head })?;
        self.out.write_all(b"\n")
    }

    /// Hands every buffered line to the underlying writer.
    ///
    /// # Errors
    /// The error of the underlying writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_and_reads_back() {
        let record = IterationRecord {
            context_tokens: 0,
            generation_requests: 12,
            sequences: 12,
            rows: 12,
            query_length: Some(1),
            tokens: None,
            mode: StepMode::Full,
            size: Some(16),
            fallback: None,
            gpu_us: Some(512.5),
            wall_us: None,
        };
        let mut bytes = Vec::new();
        let mut log = IterationLogWriter::new(&mut bytes);
        log.write(&record).unwrap();
        log.flush().unwrap();
        drop(log);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "{\"context_tokens\":0,\"generation_requests\":12,\"sequences\":12,\"rows\":12,\
             \"query_length\":1,\"mode\":\"full\",\"size\":16,\"gpu_us\":512.5}\n"
        );
        assert_eq!(serde_json::from_str::<IterationRecord>(&text).unwrap(), record);
    }
}
