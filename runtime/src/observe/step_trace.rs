//! Steps as a trace: what the device did in each, and the host beside it.

use super::perfetto::{Note, TraceWriter, Track};
use crate::words::{SpanKind, StepPart, StepTrace};
use piecewise_ir::module::Module;
use std::io::{self, Write};
use std::time::Duration;

/// Writes steps as they are traced to a file that <https://ui.perfetto.dev> opens: a track of the
/// device with a slice for each step and in it one for each piece, split op and copy, and a track of
/// the host with submits and waits.
#[derive(Debug)]
pub struct StepTraceWriter<W: Write> {
    trace: TraceWriter<W>,
    device: Track,
    /// Of submits and of waits: a step ahead is submitted before the one before is waited for.
    host: [Track; 2],
    members: Vec<StepPart>,
    steps: u64,
}

impl<W: Write> StepTraceWriter<W> {
    /// A trace of the steps of a module.
    ///
    /// # Errors
    /// When `to` takes no more.
    pub fn new(module: &Module, device: &str, to: W) -> io::Result<Self> {
        let mut trace = TraceWriter::new(to);
        let process = trace.process(device)?;
        let on_device = trace.track(process, "steps")?;
        let process = trace.process("host")?;
        let host = [trace.track(process, "submits")?, trace.track(process, "waits")?];
        Ok(Self { trace, device: on_device, host, members: StepPart::of(module), steps: 0 })
    }

    /// Writes a step.
    ///
    /// # Errors
    /// When nothing more can be written.
    pub fn write(&mut self, step: &StepTrace) -> io::Result<()> {
        let Self { trace, device, host, members, steps } = self;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let StepTrace { report, submit, read, spans } = step;
        let name = format!("{} {}", report.mode.name(), report.sizes.whole());
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            let mut notes = vec![("step", Note::Count(*steps))];
            let fallback = report.fallback.map(|reason| reason.name().to_owned());
            notes.extend(fallback.map(|reason| ("launched because", Note::Text(reason))));
            trace.begin(*device, ns(first.start), &name, "step", notes)?;
            for span in spans {
                let of_several;
                let (name, category, notes) = match span.kind {
                    SpanKind::Stage => ("stage", "copy", Vec::new()),
                    SpanKind::ReadBack => ("read back", "copy", Vec::new()),
                    SpanKind::Whole => ("replay", "replayed", Vec::new()),
                    SpanKind::Stretch { first, last } => {
                        let Some(parts) = members.get(first..=last) else { continue };
                        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
                            continue;
                        };
                        of_several = format!("{} to {}", first.name, last.name);
                        let count = ("members", Note::Count(parts.len() as u64));
                        let kind = ("kind", Note::Text("stretch".to_owned()));
                        (of_several.as_str(), "replayed", vec![count, kind])
                    }
                    SpanKind::Member { member, replayed } => {
                        let Some(member) = members.get(member) else { continue };
                        let how = if replayed { "replayed" } else { "launched" };
                        let path = ("path", Note::Text(member.path.clone()));
                        let kind = ("kind", Note::Text(member.kind.to_owned()));
                        (member.name.as_str(), how, vec![path, kind])
                    }
                };
                trace.begin(*device, ns(span.start), name, category, notes)?;
                trace.end(*device, ns(span.end))?;
            }
            trace.end(*device, ns(last.end))?;
        }
        for (track, what, (start, end)) in [(host[0], "submit", submit), (host[1], "wait", read)] {
            let notes = vec![("step", Note::Count(*steps))];
            trace.begin(track, ns(*start), &format!("{what} {name}"), what, notes)?;
            trace.end(track, ns(*end))?;
        }
        *steps += 1;
        Ok(())
    }

    /// Writes what is left; what is there then is whole.
    ///
    /// # Errors
    /// When nothing more can be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.trace.flush()
    }
}
