//! Traces in Perfetto's own format, which <https://ui.perfetto.dev> opens: processes, tracks, and
//! slices that nest.

use prost::Message;
use std::io::{self, Write};

/// Every packet is of one sequence: what a sequence says is read in order.
const SEQUENCE: u32 = 1;

/// Writes a trace, a packet at a time.
#[derive(derive_more::Debug)]
#[debug("TraceWriter({tracks} tracks)")]
pub(crate) struct TraceWriter<W: Write> {
    to: W,
    packet: Vec<u8>,
    tracks: u64,
}

/// A row of slices, or the process that rows are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Track(u64);

/// A value beside a slice.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Note {
    /// A number without a sign.
    Count(u64),
    /// Shown as it is, without unit.
    Number(f64),
    /// A text, shown as it is.
    Text(String),
}

impl<W: Write> TraceWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, packet: Vec::new(), tracks: 0 }
    }

    /// A process: what tracks are sorted under.
    pub(crate) fn process(&mut self, name: &str) -> io::Result<Track> {
        let track = self.new_track();
        let process = ProcessDescriptor {
            // Numbers of real processes mean nothing here.
            pid: Some(track.0 as i32),
            process_name: Some(name.to_owned()),
        };
        let uuid = Some(track.0);
        let described = TrackDescriptor { uuid, process: Some(process), ..Default::default() };
        self.describe(described)?;
        Ok(track)
    }

    /// A track of a process.
    pub(crate) fn track(&mut self, process: Track, name: &str) -> io::Result<Track> {
        let track = self.new_track();
        self.describe(TrackDescriptor {
            uuid: Some(track.0),
            parent_uuid: Some(process.0),
            name: Some(name.to_owned()),
            process: None,
        })?;
        Ok(track)
    }

    /// Begins a slice, `ns` nanoseconds after the trace's start, inside of the one that is open.
    pub(crate) fn begin(
        &mut self,
        track: Track,
        ns: u64,
        name: &str,
        category: &str,
        notes: Vec<(&str, Note)>,
    ) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(SLICE_BEGIN),
            track_uuid: Some(track.0),
            name: Some(name.to_owned()),
            categories: vec![category.to_owned()],
            debug_annotations: notes.into_iter().map(DebugAnnotation::of).collect(),
        };
        self.event(ns, event)
    }

    /// Ends the slice of a track that was begun last.
    pub(crate) fn end(&mut self, track: Track, ns: u64) -> io::Result<()> {
        let (r#type, track_uuid) = (Some(SLICE_END), Some(track.0));
        self.event(ns, TrackEvent { r#type, track_uuid, ..Default::default() })
    }

    /// Hands everything to what is written to.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    fn new_track(&mut self) -> Track {
        self.tracks += 1;
        Track(self.tracks)
    }

    fn describe(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.write(TracePacket { track_descriptor: Some(track), ..Default::default() })
    }

    fn event(&mut self, ns: u64, event: TrackEvent) -> io::Result<()> {
        let (timestamp, track_event) = (Some(ns), Some(event));
        self.write(TracePacket { timestamp, track_event, ..Default::default() })
    }

    /// A packet is a trace of one packet: traces are put together by writing them in turn.
    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        self.packet.clear();
        Trace { packet: vec![packet] }.encode(&mut self.packet).map_err(io::Error::other)?;
        self.to.write_all(&self.packet)
    }
}

impl DebugAnnotation {
    fn of((name, note): (&str, Note)) -> Self {
        let annotation = Self { name: Some(name.to_owned()), ..Self::default() };
        match note {
            Note::Count(n) => Self { uint_value: Some(n), ..annotation },
            Note::Number(n) => Self { double_value: Some(n), ..annotation },
            Note::Text(text) => Self { string_value: Some(text), ..annotation },
        }
    }
}

// What is used of `protos/perfetto/trace/perfetto_trace.proto`, by its numbers.

/// `TrackEvent.Type.TYPE_SLICE_BEGIN`.
const SLICE_BEGIN: i32 = 1;

/// `TrackEvent.Type.TYPE_SLICE_END`.
const SLICE_END: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    process_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(double, optional, tag = "5")]
    double_value: Option<f64>,
    #[prost(string, optional, tag = "6")]
    string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

/// The slices of a trace in the order of their begins: `process/track name start+duration`. Fails
/// where slices of a track do not nest.
#[cfg(test)]
pub(crate) fn slices(bytes: &[u8]) -> Vec<String> {
    use std::collections::BTreeMap;
    let trace = Trace::decode(bytes).unwrap();
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut found: Vec<(String, u64, Option<u64>)> = Vec::new();
    for packet in trace.packet {
        assert_eq!(packet.trusted_packet_sequence_id, Some(SEQUENCE));
        if let Some(TrackDescriptor { uuid, name, process, parent_uuid }) = packet.track_descriptor
        {
            let own = process.and_then(|process| process.process_name).or(name).unwrap();
            let parent = parent_uuid.map(|uuid| format!("{}/", names[&uuid]));
            names.insert(uuid.unwrap(), format!("{}{own}", parent.unwrap_or_default()));
        }
        let (Some(ns), Some(event)) = (packet.timestamp, packet.track_event) else { continue };
        let track = event.track_uuid.unwrap();
        let before = last.insert(track, ns).unwrap_or(0);
        assert!(before <= ns, "{}: {ns} after {before}", names[&track]);
        let stack = open.entry(track).or_default();
        if event.r#type == Some(SLICE_BEGIN) {
            stack.push((found.len(), ns));
            found.push((format!("{} {}", names[&track], event.name.unwrap()), ns, None));
        } else {
            let (at, begun) = stack.pop().expect("a slice ends that has begun");
            found[at].2 = Some(ns - begun);
        }
    }
    assert!(open.values().all(Vec::is_empty), "a slice does not end");
    found.into_iter().map(|(name, ns, took)| format!("{name} {ns}+{}", took.unwrap())).collect()
}
