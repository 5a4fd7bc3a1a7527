//! From a graph to a planned module: the pipeline of each level.

use crate::mode::Level;
use piecewise_ir::diagnostic::Diagnostics;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_ir::verify::verify_module;
use piecewise_passes::{
    Observer, PassContext, PassError, PassManager, Pipeline, PipelineError, Registry, RunReport,
};

/// Why a graph could not be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The pipeline's text can't be used.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// Verifies a module as the pass manager does between passes.
///
/// # Errors
/// Every finding.
pub fn verify(module: &Module) -> Result<(), Diagnostics> {
    verify_module(module)
}

/// The pipeline of a level, with the split ops as configured: `None` cuts at every op whose
/// definition says so, an empty list never.
pub fn pipeline_text(level: Level, split_ops: Option<&[String]>) -> String {
    let split = match split_ops {
        None => "split".to_owned(),
        Some(ops) => {
            let quoted: Vec<_> = ops.iter().map(|op| format!("\"{op}\"")).collect();
            format!("split{{at=[{}]}}", quoted.join(", "))
        }
    };
    let optimize = match level {
        Level::Eager => "",
        _ => "canonicalize,fold,merge_matmuls,cse,dce,fuse,",
    };
    format!("{optimize}{split},destination,plan,check")
}

/// Runs the pipeline of `level` over `graph`. At level `trace` the whole pipeline runs with all
/// its checks, and what comes back is unfused.
///
/// # Errors
/// When a pass fails or the module is not valid after one.
pub fn plan(
    graph: Graph,
    level: Level,
    split_ops: Option<&[String]>,
    observers: Vec<Box<dyn Observer>>,
) -> Result<(Module, RunReport), PlanError> {
    if level == Level::Trace {
        run(graph.clone(), &pipeline_text(Level::Piecewise, split_ops), observers)?;
        return run(graph, &pipeline_text(Level::Eager, split_ops), Vec::new());
    }
    run(graph, &pipeline_text(level, split_ops), observers)
}

fn run(
    graph: Graph,
    pipeline: &str,
    observers: Vec<Box<dyn Observer>>,
) -> Result<(Module, RunReport), PlanError> {
    let pipeline = Pipeline::parse(pipeline)?;
    let mut manager = PassManager::new(&pipeline, &Registry::standard())?;
    for observer in observers {
        manager = manager.observe(observer);
    }
    let mut module = Module::new(graph);
    let report = manager.run(&mut module, &mut PassContext::default())?;
    Ok((module, report))
}
