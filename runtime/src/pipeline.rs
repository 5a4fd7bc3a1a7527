//! From a graph to a planned module: the pipeline of each level.

use crate::words::CompileLevel;
use piecewise_ir::custom::OpDefs;
use piecewise_ir::graph::Graph;
use piecewise_ir::module::Module;
use piecewise_passes::pipeline::{DEFAULT_PIPELINE, OptionValue};
use piecewise_passes::rewrite::Rewrites;
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
    /// A pass could not do its work or broke a rule of the IR, or the plan in the end is not sound.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// The passes that run at a level: at `eager` nothing runs before the split. The split ops are as configured: `None`
/// leaves them to the text and to the definitions of the ops, an empty list never cuts.
pub fn pipeline_of_level(
    mut pipeline: Pipeline,
    level: CompileLevel,
    split_ops: Option<&[String]>,
) -> Pipeline {
    let split = pipeline.passes.iter().position(|pass| pass.name == "split");
    if let (Some(split), Some(ops)) = (split, split_ops) {
        let options = &mut pipeline.passes[split].options;
        options.insert("at".to_owned(), OptionValue::List(ops.to_vec()));
    }
    if level == CompileLevel::Eager {
        pipeline.passes.drain(..split.unwrap_or(0));
    }
    pipeline
}

/// How much of the passes is done: what a bisection halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PassLimits {
    /// Passes of the pipeline that run, from the first on, and of those after them what a plan can't do
    /// without; all without it.
    pub passes: Option<usize>,
    /// Rewrites that all passes do together; all without it.
    pub rewrites: Option<u64>,
}

/// How a graph is planned.
#[derive(Debug)]
pub struct Planner<'a> {
    /// The level, which says whether ops are fused.
    pub level: CompileLevel,
    /// The passes; at the level `eager` only those from `split` on run.
    pub pipeline: &'a Pipeline,
    /// What the pipeline may name.
    pub registry: &'a Registry,
    /// The custom ops to split at; `None` leaves it to the text and to their definitions.
    pub split_ops: Option<&'a [String]>,
    /// What calls of custom ops are held against, and passes may ask.
    pub defs: &'a OpDefs,
    /// How much of the passes is done; at the level `eager` all that runs is.
    pub limits: PassLimits,
}

impl Planner<'_> {
    /// Runs the pipeline over `graph`. At level `trace` there are two forms of the graph: the
    /// compiled one, which every pass makes and checks and which is dropped, and the launched one,
    /// which comes back, as at the level `eager`. What makes which is told by `form` in the log.
    ///
    /// # Errors
    /// When the pipeline names what the registry lacks, a pass fails, the module is not
    /// valid after one, or the plan in the end is not sound.
    pub fn plan(
        &self,
        graph: Graph,
        observers: Vec<Box<dyn Observer>>,
    ) -> Result<(Module, RunReport), PlanError> {
        if self.level == CompileLevel::Trace {
            self.run(graph.clone(), CompileLevel::Piecewise, observers)?;
            return self.run(graph, CompileLevel::Eager, Vec::new());
        }
        self.run(graph, self.level, observers)
    }

    fn run(
        &self,
        graph: Graph,
        level: CompileLevel,
        observers: Vec<Box<dyn Observer>>,
    ) -> Result<(Module, RunReport), PlanError> {
        let pipeline = pipeline_of_level(self.pipeline.clone(), level, self.split_ops);
        let mut manager = PassManager::new(&pipeline, self.registry)?;
        for observer in observers {
            manager = manager.observe(observer);
        }
        let limits = match level {
            CompileLevel::Eager => PassLimits::default(),
            _ => self.limits,
        };
        if let Some(first) = limits.passes {
            manager = manager.only_first(first);
        }
        let form = if level == CompileLevel::Eager { "launched" } else { "compiled" };
        let _form = tracing::info_span!("plan", form).entered();
        let mut module = Module::new(graph);
        let mut cx = PassContext::of(self.defs.clone());
        if let Some(first) = limits.rewrites {
            cx.rewrites = Rewrites::only_first(first);
        }
        let report = manager.run(&mut module, &mut cx)?;
        Ok((module, report))
    }
}

/// Plans by the default pipeline, with calls of custom ops taken at their word; see
/// [`Planner::plan`].
///
/// # Errors
/// As there.
pub fn plan(
    graph: Graph,
    level: CompileLevel,
    split_ops: Option<&[String]>,
    observers: Vec<Box<dyn Observer>>,
) -> Result<(Module, RunReport), PlanError> {
    let registry = &Registry::standard();
    let defs = &OpDefs::new();
    let pipeline = &Pipeline::parse(DEFAULT_PIPELINE)?;
    let limits = PassLimits::default();
    let planner = Planner { level, pipeline, registry, split_ops, defs, limits };
    planner.plan(graph, observers)
}
