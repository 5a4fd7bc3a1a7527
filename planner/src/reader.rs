//! Reads an iteration log into [`Traffic`].

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::error::PlannerError;
use crate::head::LogHead;
use crate::json_line::read_json_line;
use crate::log_line::{Line, MalformedLine};
use crate::traffic::Traffic;

/// How much of a log may be unusable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadOptions {
    /// The share of malformed lines, in percent, above which reading fails.
    pub max_malformed_percent: f64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { max_malformed_percent: 5.0 }
    }
}

/// A log as a histogram, and what of it was left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadLog {
    /// How many steps there were of each count.
    pub traffic: Traffic,
    /// What its first line says of them; of several logs behind each other, of all.
    pub head: LogHead,
    /// Lines that are not blank, heads not counted.
    pub lines: u64,
    /// Lines of steps without tokens, which no graph could serve; they are left out.
    pub idle: u64,
    /// Lines that could not be used.
    pub malformed: u64,
    /// The first malformed lines, for messages.
    pub first_malformed: Vec<MalformedLine>,
}

/// The malformed lines that are kept for messages; all are counted.
const NAMED_LINES: usize = 10;

/// A longer line is malformed, and is not kept in memory.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Reads a file.
///
/// # Errors
/// [`PlannerError::File`], and those of [`read_log`].
pub fn read_log_file(path: &Path, options: ReadOptions) -> Result<ReadLog, PlannerError> {
    let file = File::open(path).map_err(PlannerError::file("read", path))?;
    read_log(BufReader::with_capacity(1 << 18, file), options)
}

/// Reads lines.
///
/// # Errors
/// [`PlannerError::EmptyLog`] without a single step, [`PlannerError::TooManyMalformed`] above the
/// threshold, [`PlannerError::Stream`], and
/// [`PlannerError::Setting`] for a threshold that is no percentage.
pub fn read_log(mut input: impl BufRead, options: ReadOptions) -> Result<ReadLog, PlannerError> {
    let threshold_percent = options.max_malformed_percent;
    if !(0.0..=100.0).contains(&threshold_percent) {
        let problem = format!("{threshold_percent}: a percentage from 0 to 100");
        return Err(PlannerError::Setting { what: "--max-malformed", problem });
    }
    let mut log = ReadLog::default();
    let mut buffer = Vec::new();
    let mut number = 0_u64;
    loop {
        let more = read_line(&mut input, &mut buffer)
            .map_err(|source| PlannerError::Stream { line: number + 1, source })?;
        let Some(complete) = more else { break };
        number += 1;
        let line = trim(&buffer);
        if complete && line.is_empty() {
            continue;
        }
        log.lines += 1;
        let outcome = match complete {
            true => read_json_line(line, &mut log.traffic),
            false => Err("longer than 1 MiB".into()),
        };
        match outcome {
            Ok(Line::Step) => {}
            Ok(Line::Idle) => log.idle += 1,
            Ok(Line::Head(head)) => {
                log.lines -= 1;
                log.head = std::mem::take(&mut log.head).merge(*head);
            }
            Err(reason) => {
                log.malformed += 1;
                if log.first_malformed.len() < NAMED_LINES {
                    log.first_malformed.push(MalformedLine { line: number, reason });
                }
            }
        }
    }
    if log.malformed as f64 * 100.0 > threshold_percent * log.lines as f64 {
        return Err(PlannerError::TooManyMalformed {
            malformed: log.malformed,
            lines: log.lines,
            threshold_percent,
            first: log.first_malformed,
        });
    }
    if log.traffic.steps() == 0 {
        return Err(PlannerError::EmptyLog {
            lines: log.lines,
            idle: log.idle,
            malformed: log.malformed,
            first: log.first_malformed,
        });
    }
    Ok(log)
}

/// `None` at the end, `Some(false)` for a line that was cut at the limit.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    line.clear();
    if input.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    let complete = line.ends_with(b"\n") || line.len() as u64 <= MAX_LINE_BYTES;
    if !complete {
        input.skip_until(b'\n')?;
    }
    Ok(Some(complete))
}

fn trim(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::IterationLogWriter;
    use crate::traffic::StepKind;

    fn read(text: &str) -> Result<ReadLog, PlannerError> {
        read_log(text.as_bytes(), ReadOptions::default())
    }

    fn steps(log: &ReadLog) -> Vec<(StepKind, u32, u64)> {
        log.traffic.iter().collect()
    }

    #[test]
    fn reads_our_own_lines() {
        let log = read(concat!(
            r#"{"context_tokens":100,"generation_requests":3,"sequences":4,"rows":4,"query_length":null,"mode":"piecewise","size":128}"#,
            "\n\n",
            r#"{"context_tokens":0,"generation_requests":3,"sequences":3,"rows":12,"query_length":4,"mode":"full","size":4}"#,
            "\n",
            r#"{"context_tokens":0,"generation_requests":3,"sequences":3,"rows":3,"query_length":null,"tokens":7,"mode":"none","size":null,"fallback":"above the largest size"}"#,
        ))
        .unwrap();
        assert_eq!(
            steps(&log),
            [
                (StepKind::Mixed, 7, 1),
                (StepKind::Mixed, 103, 1),
                (StepKind::Decode { query_length: 4 }, 3, 1)
            ]
        );
        assert_eq!(log.traffic.observed.known_steps, 3);
        assert_eq!(log.traffic.observed.replayed_steps, 2);
        assert_eq!(log.traffic.most_sequences, 4);
    }

    #[test]
    fn a_head_says_what_the_steps_are_of() {
        let head = LogHead {
            max_num_tokens: Some(512),
            max_num_seqs: Some(8),
            device: Some("A device".to_owned()),
            parameters: Some(5_000_000),
            layers: Some(4),
            ..LogHead::default()
        };
        let mut bytes = Vec::new();
        let mut log = IterationLogWriter::new(&mut bytes);
        log.write_head(&head).unwrap();
        log.flush().unwrap();
        drop(log);
        let line = String::from_utf8(bytes).unwrap();
        let step = "{\"context_tokens\":5}\n";
        let log = read(&format!("{line}{step}")).unwrap();
        assert_eq!((&log.head, log.lines, log.traffic.steps()), (&head, 1, 1));
        // Of two servers, one log behind the other.
        let other =
            "{\"log\":{\"max_num_tokens\":2048,\"max_num_seqs\":4,\"layers\":9,\"new\":1}}\n";
        let log = read(&format!("{line}{step}{other}{step}")).unwrap();
        let merged = LogHead { max_num_tokens: Some(2048), ..head };
        assert_eq!((log.head, log.lines, log.malformed), (merged, 2, 0));
        let error = read("{\"log\":{\"max_num_tokens\":0}}\n").unwrap_err();
        assert!(error.to_string().contains("`max_num_tokens` is 0: no bound"), "{error}");
    }

    #[test]
    fn malformed_lines_are_counted_and_named_below_the_threshold() {
        let mut text = String::new();
        for tokens in 1..=60 {
            text.push_str(&format!("{{\"context_tokens\":{tokens}}}\n"));
        }
        text.push_str("{\"context_tokens\":-4,\"generation_requests\":1}\n");
        text.push_str("{\"context_tokens\":5,\n");
        text.push_str("{\"context_tokens\":99000000}\n");
        let log = read(&text).unwrap();
        assert_eq!((log.lines, log.malformed, log.traffic.steps()), (63, 3, 60));
        let named: Vec<String> = log.first_malformed.iter().map(ToString::to_string).collect();
        assert_eq!(named[0], "line 61: `context_tokens` is -4: negative");
        assert!(named[1].starts_with("line 62: no JSON of a step: "), "{}", named[1]);
        assert_eq!(named[2], "line 63: absurd: more than 16777216 tokens in a step");
    }

    #[test]
    fn too_many_malformed_lines_fail_and_name_the_first() {
        let error = read("{\"context_tokens\":5}\n{\"context_tokens\":-5}\n").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("1 of 2 lines are malformed"), "{text}");
        assert!(text.contains("line 2: `context_tokens` is -5: negative"), "{text}");
        let strict = ReadOptions { max_malformed_percent: f64::NAN };
        assert!(matches!(read_log(&b"{}"[..], strict), Err(PlannerError::Setting { .. })));
    }

    #[test]
    fn a_log_without_steps_is_an_error() {
        assert!(matches!(read(""), Err(PlannerError::EmptyLog { lines: 0, .. })));
        assert!(matches!(read("\n \n"), Err(PlannerError::EmptyLog { lines: 0, .. })));
        let idle = "{\"context_tokens\":0,\"generation_requests\":0}\n";
        assert!(matches!(read(idle), Err(PlannerError::EmptyLog { idle: 1, .. })));
        assert!(matches!(read("{}\n"), Err(PlannerError::TooManyMalformed { .. })));
        assert!(matches!(read("tokens,steps\n"), Err(PlannerError::TooManyMalformed { .. })));
    }

    #[test]
    fn an_endless_line_is_malformed_and_not_kept() {
        let mut text = "{\"context_tokens\":5}\n".repeat(30).into_bytes();
        text.extend(std::iter::repeat_n(b'x', 3 << 20));
        text.extend_from_slice(b"\n{\"context_tokens\":6}\n");
        let log = read_log(&text[..], ReadOptions::default()).unwrap();
        assert_eq!((log.traffic.steps(), log.malformed), (31, 1));
        assert_eq!(log.first_malformed[0].reason, "longer than 1 MiB");
    }

    #[test]
    fn contradictions_in_a_line_are_named() {
        for (line, reason) in [
            (r#"{"context_tokens":4,"query_length":2}"#, "a uniform decode has no context tokens"),
            (r#"{"generation_requests":4,"query_length":0}"#, "`query_length` is 0"),
            (r#"{"context_tokens":4,"generation_requests":4,"tokens":7}"#, "`tokens` is 7, below"),
            (
                r#"{"generation_requests":4,"query_length":2,"tokens":7}"#,
                "`tokens` is 7, not 4 requests",
            ),
            (r#"{"context_tokens":4,"mode":"fulll"}"#, "no JSON"),
            (r#"{"context_tokens":4,"gpu_us":-1.5}"#, "`gpu_us` is -1.5"),
            (r#"{"context_tokens":4.5}"#, "no JSON"),
            (r#"{"rows":4}"#, "none of `context_tokens`"),
        ] {
            let text = format!("{}{line}\n", "{\"context_tokens\":5}\n".repeat(30));
            let log = read(&text).unwrap();
            assert_eq!(log.malformed, 1, "{line}");
            assert!(log.first_malformed[0].reason.contains(reason), "{}", log.first_malformed[0]);
        }
    }
}
