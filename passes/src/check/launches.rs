//! The launch checker: the launch list of a whole step, on the bytes of the arena.

use super::lifetime::ids_exist;
use piecewise_ir::diagnostic::{Anchor, Diagnostics};
use piecewise_ir::entity::{Entity, PieceId, Slot, Value};
use piecewise_ir::graph::{Graph, ValueDef};
use piecewise_ir::module::{Module, SlotKind, SlotTable, Stitch};
use piecewise_ir::op::Op;
use piecewise_ir::text::Names;

/// Bytes of a member's scratch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ScratchRange {
    /// From the start of the scratch.
    pub offset: u64,
    /// From there on.
    pub bytes: u64,
}

/// What one launch reads and writes, in values of the module's graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LaunchAccess {
    /// What messages call it.
    pub name: String,
    /// Values read: inputs and results; weights and states are allowed and not checked.
    pub reads: Vec<Value>,
    /// Of what is read, what is read before the launches ahead are done.
    pub ahead: Vec<Value>,
    /// Values written; states are allowed and not checked.
    pub writes: Vec<Value>,
    /// Ranges of scratch that hold what an earlier launch left.
    pub scratch_reads: Vec<ScratchRange>,
    /// Ranges of scratch that hold something else afterwards.
    pub scratch_writes: Vec<ScratchRange>,
}

/// The launches of one member of the step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberLaunches {
    /// The use or split op whose programs they are.
    pub member: PieceId,
    /// Bytes of scratch that its launches share.
    pub scratch: u64,
    /// Its launches in the order in which they run.
    pub launches: Vec<LaunchAccess>,
}

/// Runs the launches of a step, one list for each member in the order of the step, on the bytes
/// of the arena: no launch may read bytes that it or an earlier launch has overwritten, nor bytes
/// that were never written; every value that leaves its member must be written there and be
/// whole when it is read, and every output at the end of the step.
///
/// # Errors
/// All findings, with the codes of [`super`].
pub fn check_launches(module: &Module, launches: &[MemberLaunches]) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::default();
    let Some(mut step) = Simulation::of(module, &mut found) else { return Err(found) };
    let expected: Vec<PieceId> = step.stitch.steps.iter().map(|s| s.id()).collect();
    let given: Vec<PieceId> = launches.iter().map(|m| m.member).collect();
    if expected != given {
        let list = |members: &[PieceId]| {
            let members: Vec<String> = members.iter().map(PieceId::to_string).collect();
            members.join(", ")
        };
        let message = format!(
            "the step runs {}, but there are launches of {}",
            list(&expected),
            list(&given)
        );
        found.push("B0507", Anchor::Graph, message);
        return Err(found);
    }
    for member in launches {
        step.run_member(member, &mut found);
    }
    step.check_outputs(&mut found);
    step.names.locate(&mut found);
    found.into_result()
}

/// What the bytes of a slot hold.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    Nothing,
    Whole,
    Overwritten { by: Value, launch: String },
}

struct Simulation<'a> {
    graph: &'a Graph,
    names: Names<'a>,
    stitch: &'a Stitch,
    slots: &'a SlotTable,
    slot_of: Vec<Option<Slot>>,
    bytes: Vec<(u64, u64)>,
    content: Vec<Content>,
}

impl<'a> Simulation<'a> {
    fn of(module: &'a Module, found: &mut Diagnostics) -> Option<Self> {
        let graph = module.graph();
        let (Some(stitch), Some(slots), Some(layout)) =
            (module.stitch(), module.slots(), module.layout())
        else {
            found.push("B0101", Anchor::Graph, "the module has no whole plan to run launches on");
            return None;
        };
        let n = slots.slots.len();
        let fits = layout.offsets.len() == n && layout.sizes.len() == n;
        let known = slots.slots.values().all(|slot| graph.has_value(slot.value));
        if !fits || !known || !ids_exist(module, stitch) {
            let message = "the plan names what the module does not have; check the plan first";
            found.push("B0102", Anchor::Graph, message);
            return None;
        }
        let mut slot_of = vec![None; graph.value_count()];
        slots.slots.iter().for_each(|(slot, data)| slot_of[data.value.index()] = Some(slot));
        let ends = layout.offsets.iter().zip(&layout.sizes);
        let staged = |data: &piecewise_ir::module::SlotData| match data.kind {
            SlotKind::Input => Content::Whole,
            _ => Content::Nothing,
        };
        Some(Self {
            graph,
            names: Names::of(graph),
            stitch,
            slots,
            slot_of,
            bytes: ends.map(|(&at, &size)| (at, at.saturating_add(size))).collect(),
            content: slots.slots.values().map(staged).collect(),
        })
    }

    fn run_member(&mut self, member: &MemberLaunches, found: &mut Diagnostics) {
        let at = Anchor::Piece(member.member);
        let mut written = vec![false; self.graph.value_count()];
        let mut scratch: Vec<ScratchRange> = Vec::new();
        for launch in &member.launches {
            let values = launch.reads.iter().chain(&launch.writes);
            if let Some(value) = values.copied().find(|&v| !self.graph.has_value(v)) {
                let value = self.names.value(value);
                let message =
                    format!("launch `{}` names {value}, which does not exist", launch.name);
                found.push("B0102", at, message);
                continue;
            }
            self.check_reads(at, launch, found);
            self.check_ahead(at, launch, found);
            self.check_own_overlap(at, launch, found);
            check_scratch(at, member.scratch, &scratch, launch, found);
            scratch.extend(&launch.scratch_writes);
            self.write(at, launch, &mut written, found);
        }
        let usage = &self.stitch.uses[member.member];
        for &value in usage.nodes.iter().flat_map(|&n| &self.graph.node(n).results) {
            let leaves = self.slot_of[value.index()].is_some_and(|slot| {
                matches!(self.slots.slots[slot].kind, SlotKind::Boundary | SlotKind::Output)
            });
            if leaves && !written[value.index()] {
                let value = self.names.value(value);
                let message = format!("no launch writes {value}, which is read after this member");
                found.push("B0505", at, message);
            }
        }
    }

    fn is_resident(&self, value: Value) -> bool {
        matches!(self.graph.def(value), ValueDef::Weight(_) | ValueDef::State(_))
    }

    fn check_reads(&self, at: Anchor, launch: &LaunchAccess, found: &mut Diagnostics) {
        for &value in launch.reads.iter().filter(|&&v| !self.is_resident(v)) {
            let content = self.slot_of[value.index()].map(|slot| &self.content[slot.index()]);
            let name = || self.names.value(value);
            match content {
                Some(Content::Whole) => {}
                Some(Content::Overwritten { by, launch: earlier }) => {
                    let message = format!(
                        "launch `{}` reads {}, whose bytes launch `{earlier}` has overwritten \
                         with {}",
                        launch.name,
                        name(),
                        self.names.value(*by)
                    );
                    found.push("B0502", at, message);
                }
                Some(Content::Nothing) | None => {
                    let message = format!(
                        "launch `{}` reads {}, which nothing has written",
                        launch.name,
                        name()
                    );
                    found.push("B0501", at, message);
                }
            }
        }
    }

    fn check_ahead(&self, at: Anchor, launch: &LaunchAccess, found: &mut Diagnostics) {
        for &value in &launch.ahead {
            let fails = match self.graph.def(value) {
                // Of a launch that writes an input there is a finding already.
                ValueDef::Weight(_) | ValueDef::Input(_) => continue,
                ValueDef::State(_) if written_where_inputs_say(self.graph, value) => continue,
                ValueDef::State(_) => "the step writes at slots that are none of its inputs",
                ValueDef::Result { .. } => "a launch of the step writes",
            };
            let (launch, value) = (&launch.name, self.names.value(value));
            let message = format!(
                "launch `{launch}` reads {value}, which {fails}, before the launches ahead are done"
            );
            found.push("B0509", at, message);
        }
    }

    fn overlap(&self, a: Value, b: Value) -> bool {
        let bytes = |v: Value| self.slot_of[v.index()].map(|slot| self.bytes[slot.index()]);
        let (Some((a_start, a_end)), Some((b_start, b_end))) = (bytes(a), bytes(b)) else {
            return false;
        };
        a_start < b_end && b_start < a_end
    }

    fn check_own_overlap(&self, at: Anchor, launch: &LaunchAccess, found: &mut Diagnostics) {
        for (i, &written) in launch.writes.iter().enumerate() {
            let read = launch.reads.iter().filter(|&&r| !self.is_resident(r));
            for &read in read.filter(|&&r| self.overlap(written, r)) {
                let message = format!(
                    "launch `{}` writes {} over {}, which it also reads; their lifetimes must \
                     meet in one moment",
                    launch.name,
                    self.names.value(written),
                    self.names.value(read)
                );
                found.push("B0503", at, message);
            }
            let others = launch.writes[i + 1..].iter().filter(|&&o| o != written);
            for &other in others.filter(|&&o| self.overlap(written, o)) {
                let message = format!(
                    "launch `{}` writes {} and {} to one place",
                    launch.name,
                    self.names.value(written),
                    self.names.value(other)
                );
                found.push("B0503", at, message);
            }
        }
    }

    fn write(
        &mut self,
        at: Anchor,
        launch: &LaunchAccess,
        written: &mut [bool],
        found: &mut Diagnostics,
    ) {
        for &value in &launch.writes {
            if matches!(self.graph.def(value), ValueDef::State(_)) {
                continue;
            }
            let slot = self.slot_of[value.index()];
            let target = slot.filter(|&s| self.slots.slots[s].kind != SlotKind::Input);
            let Some(target) = target else {
                let message = format!(
                    "launch `{}` writes {}, which is an input, a weight or without a slot",
                    launch.name,
                    self.names.value(value)
                );
                found.push("B0504", at, message);
                continue;
            };
            let (start, end) = self.bytes[target.index()];
            for (other, content) in self.content.iter_mut().enumerate() {
                let (other_start, other_end) = self.bytes[other];
                let overlaps = start < other_end && other_start < end;
                if overlaps && other != target.index() && *content == Content::Whole {
                    *content = Content::Overwritten { by: value, launch: launch.name.clone() };
                }
            }
            self.content[target.index()] = Content::Whole;
            written[value.index()] = true;
        }
    }

    fn check_outputs(&self, found: &mut Diagnostics) {
        for &value in self.graph.outputs() {
            let content = self.slot_of[value.index()].map(|slot| &self.content[slot.index()]);
            if let Some(Content::Overwritten { by, launch }) = content {
                let message = format!(
                    "output {} is overwritten with {} by launch `{launch}` before the step ends",
                    self.names.value(value),
                    self.names.value(*by)
                );
                found.push("B0506", Anchor::Outputs, message);
            }
        }
    }
}

/// Whether a step writes a state by scatters alone, to rows that its inputs name: then the inputs
/// also say which rows it leaves as they are.
fn written_where_inputs_say(graph: &Graph, state: Value) -> bool {
    let is_input = |value: Value| matches!(graph.def(value), ValueDef::Input(_));
    let mut writers = graph.nodes().filter(|&node| {
        let data = graph.node(node);
        data.op.mutated_operands().iter().any(|&i| data.operands.get(i) == Some(&state))
    });
    writers.all(|node| {
        let mut scatters = graph.scatters(node).into_iter().filter(|(into, _)| *into == state);
        !matches!(graph.node(node).op, Op::Custom(_))
            && scatters.all(|(_, slots)| slots.is_some_and(is_input))
    })
}

fn check_scratch(
    at: Anchor,
    size: u64,
    written: &[ScratchRange],
    launch: &LaunchAccess,
    found: &mut Diagnostics,
) {
    for range in launch.scratch_reads.iter().chain(&launch.scratch_writes) {
        if range.offset.checked_add(range.bytes).is_none_or(|end| end > size) {
            let message = format!(
                "launch `{}` uses {} bytes at {} of a scratch of {size}",
                launch.name, range.bytes, range.offset
            );
            found.push("B0508", at, message);
        }
    }
    for read in &launch.scratch_reads {
        if !is_covered(*read, written) {
            let message = format!(
                "launch `{}` reads {} bytes of scratch at {} that nothing has written",
                launch.name, read.bytes, read.offset
            );
            found.push("B0508", at, message);
        }
        let touches = |w: &&ScratchRange| {
            w.offset < read.offset.saturating_add(read.bytes)
                && read.offset < w.offset.saturating_add(w.bytes)
        };
        if let Some(write) = launch.scratch_writes.iter().find(touches) {
            let message = format!(
                "launch `{}` writes scratch at {} over what it reads at {}",
                launch.name, write.offset, read.offset
            );
            found.push("B0503", at, message);
        }
    }
}

/// Whether every byte of `range` is in one of `written`.
fn is_covered(range: ScratchRange, written: &[ScratchRange]) -> bool {
    let end = range.offset.saturating_add(range.bytes);
    let mut sorted: Vec<(u64, u64)> =
        written.iter().map(|w| (w.offset, w.offset.saturating_add(w.bytes))).collect();
    sorted.sort_unstable();
    let mut covered = range.offset;
    for (from, to) in sorted {
        if from <= covered {
            covered = covered.max(to);
        }
    }
    covered >= end
}
