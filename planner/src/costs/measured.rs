//! Costs as measured by `bench --costs`: one JSON object per line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CostPath, MonotoneCurve, PathCosts, StepCosts};
use crate::error::PlannerError;
use crate::traffic::MAX_STEP_TOKENS;

/// How long a step of one size took in one of the ways to run it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostPoint {
    /// Which of the ways it was.
    pub path: CostPath,
    /// Its tokens: the capture size of a replay (sequences times query length of a decode), the
    /// exact count of a launched step.
    pub tokens: u32,
    /// Microseconds that the step took.
    pub us: f64,
    /// Bytes that the captured graph keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Microseconds to capture and instantiate it, warm-up included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture_us: Option<f64>,
}

/// The longest step or capture that is believed, in microseconds (about 4 minutes); it also keeps
/// every sum of costs within 128 bits.
pub(crate) const MAX_US: f64 = 2.5e8;

/// More memory than any device has.
const MAX_BYTES: u64 = 1 << 46;

/// Reads a costs file.
///
/// # Errors
/// [`PlannerError::File`], and those of [`read_costs`].
pub fn read_costs_file(path: &Path) -> Result<StepCosts, PlannerError> {
    let file = File::open(path).map_err(PlannerError::file("read", path))?;
    read_costs(BufReader::new(file))
}

/// Reads cost points, one JSON object per line. Gaps are judged when a plan says which range it
/// needs.
///
/// # Errors
/// [`PlannerError::CostLine`] for the first bad line, [`PlannerError::Stream`], and
/// [`PlannerError::CostsMissing`] when no graph was measured at all.
pub fn read_costs(input: impl BufRead) -> Result<StepCosts, PlannerError> {
    let mut points = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let number = index as u64 + 1;
        let line = line.map_err(|source| PlannerError::Stream { line: number, source })?;
        if line.trim().is_empty() {
            continue;
        }
        let bad = |reason: String| PlannerError::CostLine { line: number, reason };
        let point: CostPoint =
            serde_json::from_str(&line).map_err(|error| bad(error.to_string()))?;
        validate(&point).map_err(bad)?;
        points.push(point);
    }
    let costs = StepCosts {
        piecewise: path_costs(&points, CostPath::Piecewise),
        full: path_costs(&points, CostPath::Full),
        launched: path_costs(&points, CostPath::Launched),
        origin: format!("measured, {} points", points.len()),
    };
    if costs.piecewise.is_none() && costs.full.is_none() {
        return Err(PlannerError::CostsMissing { path: CostPath::Piecewise });
    }
    Ok(costs)
}

fn validate(point: &CostPoint) -> Result<(), String> {
    if point.tokens == 0 || point.tokens > MAX_STEP_TOKENS {
        return Err(format!("`tokens` is {}, not in 1..={MAX_STEP_TOKENS}", point.tokens));
    }
    if !(point.us > 0.0 && point.us <= MAX_US) {
        return Err(format!("`us` is {}, not above 0 and at most {MAX_US}", point.us));
    }
    if point.memory_bytes.is_some_and(|bytes| bytes > MAX_BYTES) {
        return Err("`memory_bytes` is above 64 TiB".into());
    }
    if let Some(us) = point.capture_us.filter(|us| !(0.0..=MAX_US).contains(us)) {
        return Err(format!("`capture_us` is {us}, not in 0..={MAX_US}"));
    }
    Ok(())
}

fn path_costs(points: &[CostPoint], path: CostPath) -> Option<PathCosts> {
    let of_path = || points.iter().filter(move |point| point.path == path);
    let nanoseconds = |us: f64| (us * 1e3).round() as u64;
    let step_ns =
        MonotoneCurve::fit(of_path().map(|point| (point.tokens, nanoseconds(point.us))).collect())?;
    let memory = of_path().filter_map(|point| Some((point.tokens, point.memory_bytes?))).collect();
    let capture = of_path()
        .filter_map(|point| Some((point.tokens, nanoseconds(point.capture_us?))))
        .collect();
    Some(PathCosts {
        step_ns,
        memory_bytes: MonotoneCurve::fit(memory),
        capture_ns: MonotoneCurve::fit(capture),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_each_path_become_curves() {
        let text = "{\"path\":\"piecewise\",\"tokens\":8,\"us\":500,\"memory_bytes\":1000}\n\n\
                    {\"path\":\"piecewise\",\"tokens\":16,\"us\":600,\"memory_bytes\":1000,\"capture_us\":2.5}\n\
                    {\"path\":\"launched\",\"tokens\":1,\"us\":900}\n";
        let costs = read_costs(text.as_bytes()).unwrap();
        let piecewise = costs.path(CostPath::Piecewise).unwrap();
        assert_eq!(piecewise.step_ns.at(12), 550_000);
        assert_eq!(piecewise.memory_bytes.as_ref().unwrap().at(8), 1000);
        assert_eq!(piecewise.capture_ns.as_ref().unwrap().at(8), 2500);
        assert_eq!(costs.path(CostPath::Launched).unwrap().step_ns.at(4096), 900_000);
        assert!(matches!(
            costs.path(CostPath::Full),
            Err(PlannerError::CostsMissing { path: CostPath::Full })
        ));
    }

    #[test]
    fn bad_lines_are_named() {
        for (line, reason) in [
            ("{\"path\":\"piecewise\",\"tokens\":8,\"us\":-1}", "`us` is -1"),
            ("{\"path\":\"piecewise\",\"tokens\":8,\"us\":1e30}", "`us` is 1e30"),
            ("{\"path\":\"piecewise\",\"tokens\":0,\"us\":1}", "`tokens` is 0"),
            ("{\"path\":\"piecewise\",\"tokens\":-3,\"us\":1}", "invalid value"),
            ("{\"path\":\"warp\",\"tokens\":8,\"us\":1}", "unknown variant"),
            ("{\"path\":\"full\",\"tokens\":8,\"us\":1,\"ms\":3}", "unknown field"),
            ("tokens,us", "expected"),
        ] {
            let text = format!("{{\"path\":\"full\",\"tokens\":1,\"us\":1}}\n{line}\n");
            let error = read_costs(text.as_bytes()).unwrap_err();
            assert!(matches!(error, PlannerError::CostLine { line: 2, .. }), "{error}");
            let error = error.to_string().replace("1000000000000000000000000000000", "1e30");
            assert!(error.contains(reason), "{error}");
        }
        assert!(matches!(read_costs(&b""[..]), Err(PlannerError::CostsMissing { .. })));
    }
}
