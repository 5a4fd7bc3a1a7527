//! The passes of this crate by name.

use crate::Registry;
use crate::fuse::Fuse;
use crate::optimize::{CANONICAL, Cse, Dce, Fold, MergeMatmuls};
use crate::plan::{ALIGN, PlanOptions};
use crate::rewrite::RulePass;
use crate::split::SplitOptions;
use crate::stages::{DestinationPass, PlanPass, SplitPass};

impl Registry {
    /// A registry of every pass of this crate.
    pub fn standard() -> Self {
        let mut registry = Self::default();
        registry
            .add("canonicalize", &[], |_| Ok(Box::new(RulePass::new("canonicalize", &CANONICAL))));
        registry.add("fold", &[], |_| Ok(Box::new(Fold)));
        registry.add("merge_matmuls", &[], |_| Ok(Box::new(MergeMatmuls)));
        registry.add("cse", &[], |_| Ok(Box::new(Cse)));
        registry.add("dce", &[], |_| Ok(Box::new(Dce)));
        registry.add("fuse", &[], |_| Ok(Box::new(Fuse)));
        registry.add("split", &["at"], |options| {
            let options = SplitOptions { split_ops: options.list("at")? };
            Ok(Box::new(SplitPass { options }))
        });
        registry.add("destination", &[], |_| Ok(Box::new(DestinationPass)));
        registry.add("plan", &["align"], |options| {
            let align = options.number("align")?.unwrap_or(ALIGN);
            Ok(Box::new(PlanPass { options: PlanOptions { align } }))
        });
        registry
    }
}
