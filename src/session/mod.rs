//! Sessions: a graph, compiled for a device and run step by step.
//!
//! A step takes inputs by name as typed slices and returns outputs by position as typed vectors.
//! How large the graph's symbols are follows from the lengths of the inputs. A session is made by
//! [`Assembly::session`](crate::assembly::Assembly::session). What serves requests over a paged
//! cache is the [`Engine`](piecewise_runtime::engine::Engine).

mod error;
mod outputs;
mod shapes;
mod weights;

pub use error::SessionError;
pub use outputs::{Outputs, OutputsView};
pub use piecewise_kernels::inputs::Element;
pub(crate) use shapes::StepSymbol;
pub use weights::InMemoryWeights;

use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_passes::RunReport;
use piecewise_runtime::observe::Snapshot;
use piecewise_runtime::steps::{CompiledModel, StepOutputs, Ticket};
use piecewise_runtime::words::{Dispatch, ModelError, StepData, StepTimes};
use std::collections::BTreeMap;

/// A graph that runs. Its states live as long as it does.
///
/// ```
/// use piecewise::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let b = Builder::new("total").weight_dtype(DType::F32);
/// let rows = b.symbol("T", 1, 8);
/// let x = b.input("x", DType::F32, (rows, 2));
/// // What is written to a state in one step is there in the next.
/// let seen = b.state("seen", DType::F32, (16, 2));
/// let at = b.input("at", DType::I32, [rows]).padding(-1);
/// seen.scatter(at, x * b.weight("scale", [2]));
/// let mut session = Assembly::graph(b.finish([seen.reduce_sum([0])])?)
///     .weights(InMemoryWeights::new().with("scale", [2], [10.0f32, 100.0]))
///     .capture_sizes([4, 8])
///     .session()?;
///
/// session.step().input("x", &[1.0f32, 2.0]).input("at", &[0i32]).run()?;
/// let step = session.step().input("x", &[3.0f32, 4.0, 5.0, 6.0]).input("at", &[1i32, 2]);
/// let outputs = step.run()?;
/// assert_eq!(outputs.shape(0)?, [1, 2]);
/// assert_eq!(outputs.get::<f32>(0)?, [90.0, 1200.0]);
/// // Two rows ran at the smallest size that holds them.
/// let step = session.model().last_step().ok_or("no step ran")?;
/// assert_eq!((step.mode, step.sizes.tokens.rows()), (StepMode::Piecewise, 4));
///
/// // What does not fit is refused, and the states stay as they are.
/// assert!(session.step().input("x", &[1.0f32]).input("at", &[0i32]).run().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    model: CompiledModel,
    symbols: Vec<StepSymbol>,
    passes: RunReport,
    last_times: Option<StepTimes>,
}

impl Session {
    pub(crate) fn new(model: CompiledModel, symbols: Vec<StepSymbol>, passes: RunReport) -> Self {
        Self { model, symbols, passes, last_times: None }
    }

    /// A step, to be given its inputs and run.
    pub fn step(&mut self) -> Step<'_> {
        Step { session: self, given: BTreeMap::new(), query_length: None, is_launched: false }
    }

    /// The model: the graph as the passes left it, what was counted, and how the last step ran.
    pub fn model(&self) -> &CompiledModel {
        &self.model
    }

    /// The model, to give its memory back for a while, to run in another graph mode, or to open a
    /// device that was lost anew; and for an engine that takes rows of its outputs
    /// ([`Engine::add_rows`](piecewise_runtime::engine::Engine::add_rows)).
    pub fn model_mut(&mut self) -> &mut CompiledModel {
        &mut self.model
    }

    /// How often each pass matched, and its remarks.
    pub fn passes(&self) -> &RunReport {
        &self.passes
    }

    /// Everything that is counted, for [`Metrics`](piecewise_runtime::observe::Metrics).
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            statistics: self.model.statistics().clone(),
            memory: self.model.ledger(),
            graphs: self.model.captured_graphs() as u64,
            ..Snapshot::default()
        }
    }

    /// How long the last step took.
    pub fn last_times(&self) -> Option<StepTimes> {
        self.last_times
    }

    /// Waits for a step and reads its outputs from where they arrive. Of the steps that were submitted,
    /// only the last two can be read.
    ///
    /// # Errors
    /// When its outputs were overwritten, or work of the step failed.
    pub fn read<T>(
        &mut self,
        step: &SubmittedStep,
        read: impl FnOnce(OutputsView<'_>) -> T,
    ) -> Result<T, SessionError> {
        self.read_with(step, |outputs| Ok(read(OutputsView { outputs })))
    }

    fn read_with<T>(
        &mut self,
        step: &SubmittedStep,
        read: impl FnOnce(&StepOutputs<'_>) -> Result<T, ModelError>,
    ) -> Result<T, SessionError> {
        let read = read(&self.model.read(&step.ticket)?)?;
        self.last_times = self.model.step_times(&step.ticket);
        Ok(read)
    }

    fn submit(
        &mut self,
        given: BTreeMap<&str, Values<'_>>,
        query_length: Option<u64>,
    ) -> Result<SubmittedStep, SessionError> {
        let graph = self.model.module().graph();
        let mut counts = self.model.symbols().bounds().to_vec();
        let mut inputs = Vec::with_capacity(graph.inputs().len());
        let mut parts = Vec::new();
        let mut counted: Vec<Option<(u64, &str)>> = vec![None; self.symbols.len()];
        for input in graph.inputs() {
            let name = input.name.as_str();
            let ty = graph.ty(input.value);
            let values = given.get(name).ok_or_else(|| SessionError::MissingInput {
                input: name.to_owned(),
                dtype: ty.dtype,
            })?;
            if values.dtype != ty.dtype {
                return Err(SessionError::InputType {
                    input: name.to_owned(),
                    declared: ty.dtype,
                    found: values.dtype,
                });
            }
            for (symbol, counted) in self.symbols.iter().zip(&mut counted) {
                let Some(count) = symbol.count(name, ty, values.elements)? else { continue };
                if let Some((other, by)) = counted.filter(|(other, _)| *other != count) {
                    let symbol = &symbol.name;
                    return Err(SessionError::InputLength {
                        input: name.to_owned(),
                        elements: values.elements,
                        reason: format!("that makes {symbol} = {count}, but %{by} makes {other}"),
                    });
                }
                *counted = Some((count, name));
                symbol.set(&mut counts, count);
            }
            inputs.push(match &values.bytes {
                Bytes::Whole(bytes) => *bytes,
                Bytes::Parts(given) => {
                    parts.push((inputs.len(), given.as_slice()));
                    &[]
                }
            });
        }
        if let Some(input) = given.keys().find(|name| !has_input(graph, name)) {
            let known: Vec<_> = graph.inputs().iter().map(|i| format!("%{}", i.name)).collect();
            return Err(SessionError::UnknownInput {
                input: (*input).to_owned(),
                known: known.join(", "),
            });
        }
        let step = StepData {
            counts: &counts,
            inputs: &inputs,
            parts: &parts,
            query_length,
            ..StepData::default()
        };
        let ticket = self.model.submit(&step)?;
        Ok(SubmittedStep { ticket, counts, report: self.model.last_step() })
    }
}

fn has_input(graph: &Graph, name: &str) -> bool {
    graph.inputs().iter().any(|input| input.name == name)
}

/// A step that is on its way; its outputs are read by [`Session::read`].
#[derive(Debug)]
pub struct SubmittedStep {
    ticket: Ticket,
    counts: Vec<u64>,
    report: Option<Dispatch>,
}

impl SubmittedStep {
    /// How it runs: replayed or launched, and at which size.
    pub fn report(&self) -> Option<Dispatch> {
        self.report
    }
}

/// A step under way: inputs are given by name, in any order.
#[derive(Debug)]
pub struct Step<'a> {
    session: &'a mut Session,
    given: BTreeMap<&'a str, Values<'a>>,
    query_length: Option<u64>,
    is_launched: bool,
}

#[derive(Debug)]
struct Values<'a> {
    dtype: DType,
    elements: usize,
    bytes: Bytes<'a>,
}

#[derive(Debug)]
enum Bytes<'a> {
    Whole(&'a [u8]),
    Parts(Vec<&'a [u8]>),
}

impl<'a> Step<'a> {
    /// Gives an input its values, row-major. Given twice, the last one counts.
    #[must_use]
    pub fn input<T: Element>(mut self, name: &'a str, values: &'a [T]) -> Self {
        let bytes = Bytes::Whole(bytemuck::cast_slice(values));
        self.given.insert(name, Values { dtype: T::DTYPE, elements: values.len(), bytes });
        self
    }

    /// Gives an input its values, row-major, in parts that follow one another: they are copied once,
    /// to where the device takes them from.
    #[must_use]
    pub fn input_parts<T: Element>(mut self, name: &'a str, parts: &[&'a [T]]) -> Self {
        let elements = parts.iter().map(|part| part.len()).sum();
        let bytes = parts.iter().map(|part| bytemuck::cast_slice(part));
        let bytes = Bytes::Parts(bytes.collect());
        self.given.insert(name, Values { dtype: T::DTYPE, elements, bytes });
        self
    }

    /// Says that every sequence of the step brings so many tokens: a uniform batch, which may run in
    /// a graph of its own.
    #[must_use]
    pub fn query_length(mut self, tokens: u64) -> Self {
        self.query_length = Some(tokens);
        self
    }

    /// Launches the step, even where there is a graph for it.
    #[must_use]
    pub fn launched(mut self) -> Self {
        self.is_launched = true;
        self
    }

    /// Runs the step and waits for its outputs.
    ///
    /// # Errors
    /// When an input is missing, unknown, of another type or of a length that makes no shape, or
    /// the step fails. States are as before where an input does not fit.
    pub fn run(self) -> Result<Outputs, SessionError> {
        let (session, step) = self.enqueue()?;
        session.read_with(&step, |outputs| Outputs::copied(outputs, &step.counts))
    }

    /// Runs the step and waits for it; its outputs stay on the device, until the next step.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn run_unread(self) -> Result<(), SessionError> {
        let (session, step) = self.enqueue()?;
        session.read_with(&step, |_| Ok(()))
    }

    /// Enqueues the step and does not wait: another one can be made ready meanwhile.
    ///
    /// # Errors
    /// As for [`Self::run`], but for what shows when the step has run.
    pub fn submit(self) -> Result<SubmittedStep, SessionError> {
        Ok(self.enqueue()?.1)
    }

    fn enqueue(self) -> Result<(&'a mut Session, SubmittedStep), SessionError> {
        let Self { session, given, query_length, is_launched } = self;
        session.model.set_launches_only(is_launched);
        let step = session.submit(given, query_length);
        session.model.set_launches_only(false);
        Ok((session, step?))
    }
}

#[cfg(test)]
mod tests;
