//! The launches of artifacts in values of the plan, for the launch checker.

use crate::words::ModelError;
use piecewise_backend::artifact::{Access, Arg, ArgRef, Artifact, Launch, Way};
use piecewise_ir::entity::{Entity, PieceId, Value};
use piecewise_ir::module::Module;
use piecewise_passes::check::{LaunchAccess, MemberLaunches, ScratchRange, check_launches};

/// Holds every way of every unique piece (each size, each alternative) against the plan. `artifacts`
/// are indexed by unique piece.
///
/// A step runs one lowering of each piece. Every boundary value is written whole by each of
/// them, so what one lowering does to another piece's values does not depend on how that piece is
/// lowered: it is enough that each distinct lowering is part of some step that is checked.
///
/// # Errors
/// What [`check_launches`] finds in the first step that breaks the plan.
pub(crate) fn check_artifacts(
    module: &Module,
    artifacts: &[Vec<Artifact>],
) -> Result<(), ModelError> {
    let stitch = module.stitch().ok_or(ModelError::Unplanned { part: "pieces" })?;
    let distinct: Vec<Vec<Lowering<'_>>> = artifacts.iter().map(|list| distinct(list)).collect();
    let steps = distinct.iter().map(Vec::len).max().unwrap_or(0);
    for step in 0..steps {
        let mut members = Vec::with_capacity(stitch.steps.len());
        for member in stitch.steps.iter().map(|s| s.id()) {
            let usage = &stitch.uses[member];
            let lowerings = &distinct[usage.unique.index()];
            let Some(last) = lowerings.len().checked_sub(1) else { continue };
            members.push(member_launches(member, &lowerings[step.min(last)], &usage.operands));
        }
        check_launches(module, &members).map_err(ModelError::Launches)?;
    }
    Ok(())
}

/// One way of each part of an alternative.
type Lowering<'a> = Vec<&'a Way>;

/// Lowerings of which each way of each part is in one, as far as they differ in what their launches
/// read and write.
fn distinct(artifacts: &[Artifact]) -> Vec<Lowering<'_>> {
    let mut found: Vec<Lowering<'_>> = Vec::new();
    for alternative in artifacts.iter().flat_map(|artifact| &artifact.alternatives) {
        let most = alternative.parts.iter().map(|part| part.ways.len()).max().unwrap_or(1);
        for place in 0..most {
            let parts = alternative.parts.iter();
            let ways = parts.filter_map(|part| part.ways.get(place).or(part.ways.last()));
            let lowering: Lowering<'_> = ways.collect();
            if !found.iter().any(|known| touch_the_same(known, &lowering)) {
                found.push(lowering);
            }
        }
    }
    found
}

fn touch_the_same(one: &Lowering<'_>, other: &Lowering<'_>) -> bool {
    fn args(way: &Way) -> impl Iterator<Item = &Vec<Arg>> {
        way.launches.iter().map(|launch| &launch.args)
    }
    let same = |(a, b): (&&Way, &&Way)| a.scratch == b.scratch && args(a).eq(args(b));
    one.len() == other.len() && one.iter().zip(other).all(same)
}

fn member_launches(member: PieceId, lowering: &Lowering<'_>, operands: &[Value]) -> MemberLaunches {
    let launches = lowering.iter().flat_map(|way| &way.launches);
    let launches = launches.map(|launch| access(launch, operands)).collect();
    let scratch = lowering.iter().map(|way| way.scratch).max().unwrap_or(0);
    MemberLaunches { member, scratch, launches }
}

/// What a launch touches. An operand that the piece does not have is no value of any module, so
/// that the checker reports it. What a launch both reads and writes it has written itself before,
/// in an earlier part of its kernel, unless it is a state, which the checker leaves aside: only
/// states are written in place.
fn access(launch: &Launch, operands: &[Value]) -> LaunchAccess {
    let mut found = LaunchAccess { name: launch.name.clone(), ..LaunchAccess::default() };
    for arg in &launch.args {
        match arg.at {
            ArgRef::Operand(position) => {
                let nowhere = Value::new(u32::MAX as usize);
                let value = operands.get(position as usize).copied().unwrap_or(nowhere);
                match arg.access {
                    Access::Read => found.reads.push(value),
                    Access::ReadAhead => {
                        found.reads.push(value);
                        found.ahead.push(value);
                    }
                    Access::Write | Access::ReadWrite => found.writes.push(value),
                }
            }
            ArgRef::Scratch { offset, bytes } => {
                let list = match arg.access {
                    Access::Read | Access::ReadAhead => &mut found.scratch_reads,
                    Access::Write | Access::ReadWrite => &mut found.scratch_writes,
                };
                list.push(ScratchRange { offset, bytes });
            }
        }
    }
    found
}
