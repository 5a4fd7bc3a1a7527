//! A timeline as a trace: a process for each multiprocessor, and in it as many tracks as it had
//! blocks at a time.

use super::timeline::{LaunchTimes, Timeline};
use crate::observe::{Note, TraceWriter, Track};
use crate::steps::StepLaunch;
use piecewise_backend::device::measure::BlockTime;
use std::io::{self, Write};

impl Timeline {
    /// Writes the trace. A block is a slice with the launch's name, the part of it that waited for
    /// the launches before a slice in it. A launch is a slice from its first block's release to
    /// its last one's end; where nothing is known of it, between its neighbours.
    ///
    /// # Errors
    /// When `to` takes no more.
    pub fn write_trace(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut trace = TraceWriter::new(to);
        let launches = trace.process("launches")?;
        let launches = trace.track(launches, "launches")?;
        let mut slices: Vec<Vec<Slice<'_>>> = vec![Vec::new(); self.multiprocessors as usize];
        for launch in &self.launches {
            for (number, block) in launch.blocks.iter().enumerate() {
                let of = block.multiprocessor as usize;
                if slices.len() <= of {
                    slices.resize(of + 1, Vec::new());
                }
                let block = BlockTime { end: block.end.max(block.start), ..*block };
                slices[of].push(Slice { launch: &launch.launch, number, block });
            }
        }
        self.write_launches(&mut trace, launches)?;
        for (n, slices) in slices.iter_mut().enumerate() {
            let process = trace.process(&format!("multiprocessor {n}"))?;
            slices.sort_by_key(|slice| (slice.block.start, slice.block.end));
            // Each with when it is free again.
            let mut tracks: Vec<(Track, u64)> = Vec::new();
            for slice in slices {
                let free = tracks.iter().position(|&(_, free)| free <= slice.block.start);
                let at = match free {
                    Some(at) => at,
                    None => {
                        let track = trace.track(process, &format!("blocks {}", tracks.len()))?;
                        tracks.push((track, 0));
                        tracks.len() - 1
                    }
                };
                tracks[at].1 = slice.block.end;
                slice.write(&mut trace, tracks[at].0)?;
            }
        }
        trace.flush()
    }

    fn write_launches<W: Write>(&self, trace: &mut TraceWriter<W>, track: Track) -> io::Result<()> {
        let span = |launch: &LaunchTimes| {
            let released = launch.blocks.iter().map(|b| b.released.unwrap_or(b.start)).min();
            Some((released?, launch.blocks.iter().map(|b| b.end).max()?))
        };
        let summaries = self.summaries();
        let mut before = 0;
        for (i, times) in self.launches.iter().enumerate() {
            let (start, end, notes) = match (span(times), &summaries[i]) {
                (Some((start, end)), Some(of)) => {
                    let mut notes = vec![
                        ("blocks", Note::Count(of.blocks as u64)),
                        ("multiprocessors", Note::Count(of.multiprocessors as u64)),
                        ("doubled", Note::Count(of.doubled as u64)),
                    ];
                    notes.extend(of.gap_us.map(|gap| ("gap_us", Note::Number(gap))));
                    (start, end, notes)
                }
                _ => {
                    let next = self.launches[i + 1..].iter().find_map(span);
                    let note = Note::Text("not seen: between its neighbours".to_owned());
                    (before, next.map_or(before, |(start, _)| start), vec![("note", note)])
                }
            };
            // Launches overlap by what a later one does before it waits for those ahead.
            let (start, end) = (start.max(before), end.max(start).max(before));
            before = end;
            trace.begin(track, start, name_of(&times.launch), &times.launch.kernel, notes)?;
            trace.end(track, end)?;
        }
        Ok(())
    }
}

fn name_of(launch: &StepLaunch) -> &str {
    if launch.path.is_empty() { &launch.kernel } else { &launch.path }
}

#[derive(Clone)]
struct Slice<'a> {
    launch: &'a StepLaunch,
    number: usize,
    block: BlockTime,
}

impl Slice<'_> {
    fn write<W: Write>(&self, trace: &mut TraceWriter<W>, track: Track) -> io::Result<()> {
        let BlockTime { start, end, released, .. } = self.block;
        let notes = vec![("block", Note::Count(self.number as u64))];
        trace.begin(track, start, name_of(self.launch), &self.launch.kernel, notes)?;
        if let Some(released) = released {
            trace.begin(track, start, "wait", "wait", Vec::new())?;
            trace.end(track, released.clamp(start, end))?;
        }
        trace.end(track, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::slices;
    use piecewise_backend::device::measure::GraphTimes;

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
        let mut bytes = Vec::new();
        timeline.write_trace(&mut bytes).unwrap();
        let expected = [
            "launches/launches a 200+1300",
            "launches/launches b 1500+100",
            "launches/launches c 1600+400",
            "multiprocessor 0/blocks 0 c 1000+900",
            "multiprocessor 0/blocks 0 wait 1000+600",
            "multiprocessor 1/blocks 0 a 0+1000",
            "multiprocessor 1/blocks 0 wait 0+200",
            "multiprocessor 1/blocks 1 a 0+1500",
            "multiprocessor 1/blocks 1 wait 0+300",
            "multiprocessor 1/blocks 2 c 500+1500",
            "multiprocessor 1/blocks 2 wait 500+1100",
        ];
        assert_eq!(slices(&bytes), expected);
    }
}
