//! A timeline as a trace in Chrome's JSON, which Perfetto opens: a process for each
//! multiprocessor, and in it as many tracks as it had blocks at a time.

use super::timeline::{LaunchTimes, Timeline};
use crate::model::StepLaunch;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The process of whole launches; multiprocessor `n` is the process after it by `n` and one.
const LAUNCHES: u32 = 0;

impl Timeline {
    /// Writes the trace. A block is a slice with the launch's name, the part of it that waited for
    /// the launches before a slice in it. A launch is a slice from its first block's release to
    /// its last one's end; where nothing is known of it, between its neighbours.
    ///
    /// # Errors
    /// When `to` takes no more.
    pub fn write_trace(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut trace = Trace { to, separator: "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" };
        trace.name_process(LAUNCHES, "launches")?;
        let mut slices: Vec<Vec<Slice<'_>>> = vec![Vec::new(); self.multiprocessors as usize];
        for launch in &self.launches {
            for (i, block) in launch.blocks.iter().enumerate() {
                let of = block.multiprocessor as usize;
                if slices.len() <= of {
                    slices.resize(of + 1, Vec::new());
                }
                let (start, end) = (block.start, block.end.max(block.start));
                slices[of].push(Slice {
                    launch: &launch.launch,
                    block: i,
                    start,
                    end,
                    released: block.released,
                });
            }
        }
        self.write_launches(&mut trace)?;
        for (n, slices) in slices.iter_mut().enumerate() {
            let process = n as u32 + LAUNCHES + 1;
            trace.name_process(process, &format!("multiprocessor {n}"))?;
            slices.sort_by_key(|slice| (slice.start, slice.end));
            // When each track is free again.
            let mut tracks: Vec<u64> = Vec::new();
            for slice in slices {
                let track = tracks.iter().position(|&free| free <= slice.start);
                let track = track.unwrap_or_else(|| {
                    tracks.push(0);
                    tracks.len() - 1
                });
                tracks[track] = slice.end;
                trace.block(process, track, slice)?;
            }
        }
        trace.end()
    }

    fn write_launches(&self, trace: &mut Trace<'_>) -> io::Result<()> {
        let span = |launch: &LaunchTimes| {
            let released = launch.blocks.iter().map(|b| b.released.unwrap_or(b.start)).min();
            Some((released?, launch.blocks.iter().map(|b| b.end).max()?))
        };
        let summaries = self.summaries();
        let mut before = 0;
        for (i, times) in self.launches.iter().enumerate() {
            let (start, end, args) = match span(times) {
                Some((start, end)) => (start, end, json!(summaries[i])),
                None => {
                    let next = self.launches[i + 1..].iter().find_map(span);
                    let args = json!({ "note": "not seen: between its neighbours" });
                    (before, next.map_or(before, |(start, _)| start), args)
                }
            };
            before = before.max(end);
            trace.slice(LAUNCHES, 0, &times.launch, (start, end), args)?;
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Slice<'a> {
    launch: &'a StepLaunch,
    block: usize,
    start: u64,
    end: u64,
    released: Option<u64>,
}

struct Trace<'a> {
    to: &'a mut dyn Write,
    separator: &'static str,
}

impl Trace<'_> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        self.to.write_all(self.separator.as_bytes())?;
        self.separator = ",\n";
        serde_json::to_writer(&mut *self.to, event).map_err(io::Error::from)
    }

    fn name_process(&mut self, pid: u32, name: &str) -> io::Result<()> {
        self.event(
            &json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}),
        )?;
        let args = json!({ "sort_index": pid });
        self.event(&json!({"ph": "M", "name": "process_sort_index", "pid": pid, "args": args}))
    }

    fn slice(
        &mut self,
        pid: u32,
        tid: usize,
        launch: &StepLaunch,
        (start, end): (u64, u64),
        args: Value,
    ) -> io::Result<()> {
        let name = if launch.path.is_empty() { &launch.kernel } else { &launch.path };
        let (ts, dur) = (start as f64 / 1e3, end.saturating_sub(start) as f64 / 1e3);
        self.event(&json!({
            "ph": "X", "name": name, "cat": launch.kernel, "pid": pid, "tid": tid,
            "ts": ts, "dur": dur, "args": args,
        }))
    }

    fn block(&mut self, pid: u32, tid: usize, slice: &Slice<'_>) -> io::Result<()> {
        let args = json!({ "block": slice.block });
        self.slice(pid, tid, slice.launch, (slice.start, slice.end), args)?;
        let Some(released) = slice.released else { return Ok(()) };
        let (ts, dur) =
            (slice.start as f64 / 1e3, released.saturating_sub(slice.start) as f64 / 1e3);
        self.event(
            &json!({"ph": "X", "name": "wait", "pid": pid, "tid": tid, "ts": ts, "dur": dur}),
        )
    }

    fn end(self) -> io::Result<()> {
        self.to.write_all(b"\n]}\n")?;
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_backend::measure::{BlockTime, GraphTimes};

    #[test]
    fn slices_of_a_track_nest_and_follow_each_other() {
        let launch = |path: &str| StepLaunch {
            kernel: "matmul".to_owned(),
            name: "matmul v3".to_owned(),
            path: path.to_owned(),
        };
        let block = |multiprocessor, start, released, end| BlockTime {
            multiprocessor,
            start,
            released: Some(released),
            end,
        };
        let times = GraphTimes {
            multiprocessors: 2,
            launches: vec![
                vec![block(1, 1000, 1200, 2000), block(1, 1000, 1300, 2500)],
                Vec::new(),
                vec![block(1, 1500, 2600, 3000), block(0, 2000, 2600, 2900)],
            ],
        };
        let timeline = Timeline::new(vec![launch("a"), launch("b"), launch("c")], times);
        let mut text = Vec::new();
        timeline.write_trace(&mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
        let row = |event: &Value| {
            let [pid, tid, ts, dur] = ["pid", "tid", "ts", "dur"].map(|key| number(event, key));
            format!("{} {pid}.{tid} {ts}+{dur}", event["name"].as_str().unwrap())
        };
        let events = trace["traceEvents"].as_array().unwrap();
        let rows: Vec<_> = events.iter().filter(|event| event["ph"] == "X").map(row).collect();
        let expected = [
            "a 0.0 0.2+1.3",
            "b 0.0 1.5+0.1",
            "c 0.0 1.6+0.4",
            "c 1.0 1+0.9",
            "wait 1.0 1+0.6",
            "a 2.0 0+1",
            "wait 2.0 0+0.2",
            "a 2.1 0+1.5",
            "wait 2.1 0+0.3",
            "c 2.2 0.5+1.5",
            "wait 2.2 0.5+1.1",
        ];
        assert_eq!(rows, expected);
    }
}
