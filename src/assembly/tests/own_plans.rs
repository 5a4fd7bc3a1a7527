//! A plan that a pipeline of one's own made is proven like any other.

use super::*;
use piecewise_ir::entity::Entity;
use piecewise_passes::pipeline::DEFAULT_PIPELINE;

/// Moves what is no input to where the lowest of it lies.
#[derive(Debug)]
struct Moves;

impl Pass for Moves {
    fn name(&self) -> &'static str {
        "own.moves"
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let (Some(table), Some(mut layout)) = (module.slots(), module.layout().cloned()) else {
            return Ok(PassReport::default());
        };
        let inner = table.slots.iter().filter(|(_, data)| data.kind != SlotKind::Input);
        let inner: Vec<usize> = inner.map(|(slot, _)| slot.index()).collect();
        let lowest = inner.iter().map(|&at| layout.offsets[at]).min().unwrap();
        inner.into_iter().for_each(|at| layout.offsets[at] = lowest);
        module.set_layout(layout);
        Ok(PassReport::default())
    }
}

fn planned(text: &str) -> Result<Planned, AssemblyError> {
    tiny().pass("own.moves", &[], |_| Ok(Box::new(Moves))).pipeline(text).plan()
}

#[test]
fn a_plan_is_proven_after_the_last_pass() {
    let replanned = "canonicalize,fuse,split,destination,plan,own.moves,plan";
    let refused = |text: &str| {
        let error = planned(text).unwrap_err().to_string();
        assert!(error.contains("after `own.moves`, the last pass"), "{error}");
        assert!(error.contains("B0301") && error.contains("run `plan` after it"), "{error}");
    };
    refused(&format!("{DEFAULT_PIPELINE},own.moves"));
    for sound in [DEFAULT_PIPELINE, replanned] {
        assert!(planned(sound).unwrap().is_whole(), "{sound}");
    }
}
