//! What an assembly may name: models, custom ops and passes, those of the framework and one's own.

use crate::models::{ConfigError, DecoderModel, Fields, ModelRegistry};
use piecewise_kernels::op::OpRegistry;
use piecewise_passes::manager::OptionReader;
use piecewise_passes::pipeline::{DEFAULT_PIPELINE, Options, PassSpec};
use piecewise_passes::{Pass, Pipeline, PipelineError, Registry};

/// Models, custom ops and passes by their names, with the order in which passes run. A program makes
/// one and hands it to whatever assembles models: the commands of the command line, or
/// [`Self::folder`].
///
/// ```
/// use piecewise::prelude::*;
/// # #[derive(Debug)]
/// # struct Nothing;
/// # impl Pass for Nothing {
/// #     fn name(&self) -> &'static str { "own.nothing" }
/// #     fn run(&self, _: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
/// #         Ok(PassReport::default())
/// #     }
/// # }
///
/// let registries = Registries::standard()
///     .model("twins", |fields| {
///         let vocab = fields.required_count("vocab_size", 1..=1 << 20)? as u64;
///         Ok(move |bounds: &DecoderBounds| {
///             let b = Builder::new("twins").weight_dtype(DType::F32);
///             let step = StepInputs::declare(&b, &bounds.step());
///             let table = b.weight("table", [vocab, vocab]);
///             let logits = table.gather(step.ids).gather(step.logit_rows);
///             b.finish(step.outputs(&b, logits, bounds.sampling_controls))
///         })
///     })
///     .pass_after("canonicalize", "own.nothing", &[], |_| Ok(Box::new(Nothing)));
/// assert_eq!(registries.models.names().last(), Some("twins"));
/// assert!(registries.pipeline()?.to_string().starts_with("canonicalize,own.nothing,fold,"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Registries {
    /// The models that a folder may hold.
    pub models: ModelRegistry,
    /// Custom ops and their implementations.
    pub ops: OpRegistry,
    /// What a pipeline may name.
    pub passes: Registry,
    pipeline: Result<Pipeline, PipelineError>,
}

impl Default for Registries {
    fn default() -> Self {
        Self::standard()
    }
}

impl Registries {
    /// Those of the framework, and its
    /// [`DEFAULT_PIPELINE`](piecewise_passes::pipeline::DEFAULT_PIPELINE).
    pub fn standard() -> Self {
        Self {
            models: ModelRegistry::standard(),
            ops: OpRegistry::builtin(),
            passes: Registry::standard(),
            pipeline: Pipeline::parse(DEFAULT_PIPELINE),
        }
    }

    /// Has `read` make a model of every folder whose `config.json` has this `model_type`.
    #[must_use]
    pub fn model<M: DecoderModel + 'static>(
        mut self,
        model_type: impl Into<String>,
        read: impl Fn(&Fields<'_>) -> Result<M, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.models.add(model_type, read);
        self
    }

    /// Custom ops and their implementations, in place of those of the framework alone:
    /// [`OpRegistry::builtin`] begins with these.
    #[must_use]
    pub fn ops(mut self, ops: OpRegistry) -> Self {
        self.ops = ops;
        self
    }

    /// Adds a pass that a pipeline may name, with the names of the options that it takes; what else it
    /// needs, `make` may bring.
    #[must_use]
    pub fn pass(
        mut self,
        name: impl Into<String>,
        options: &[&str],
        make: impl Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.passes.add(name, options, make);
        self
    }

    /// The same, and has it run right after the first pass that is called `after`. At the level
    /// `eager` only what stands from `split` on runs.
    #[must_use]
    pub fn pass_after(
        self,
        after: &str,
        name: &str,
        options: &[&str],
        make: impl Fn(&mut OptionReader<'_>) -> Result<Box<dyn Pass>, PipelineError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let mut known = self.pass(name, options, make);
        known.pipeline = known.pipeline.and_then(|mut pipeline| {
            let pass = PassSpec { name: name.to_owned(), options: Options::new() };
            pipeline.insert_after(after, pass).map(|()| pipeline)
        });
        known
    }

    /// The passes in order, with options in braces, in place of what there was.
    #[must_use]
    pub fn with_pipeline(mut self, text: &str) -> Self {
        self.pipeline = Pipeline::parse(text);
        self
    }

    /// Leaves passes out, by name.
    pub(super) fn without_passes(mut self, names: &[String]) -> Self {
        self.pipeline = self.pipeline.and_then(|passes| self.passes.without(passes, names));
        self
    }

    /// The passes in order.
    ///
    /// # Errors
    /// When a pass is left out that is not there or that a plan needs, when a text of them does not parse, or a pass was to run after one that is not among them.
    pub fn pipeline(&self) -> Result<&Pipeline, PipelineError> {
        self.pipeline.as_ref().map_err(Clone::clone)
    }
}
