//! What the steps of a trial read.

use super::error::TrialError;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::{Graph, InputDecl};
use piecewise_ir::random::random_arrays;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::batch::{ChunkRows, RoleMap, step_of_ids};
use piecewise_runtime::words::{ModelError, StepData, SymbolClass, SymbolTable};
use std::collections::BTreeMap;

/// Rows of a step of which nothing says how many it has.
const ROWS: u64 = 5;

/// What somebody gave for a trial.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Given {
    /// Ids of one sequence. A graph of a decoder gets a few where none are given.
    pub ids: Option<Vec<u32>>,
    /// What inputs read, by their names; random values where nothing is said.
    pub inputs: BTreeMap<String, GivenInput>,
    /// Rows of a step of which nothing else says how many it has, as far as the bounds let them; of a graph
    /// that an engine could run the ids of a sequence. 5 where it is not said.
    pub rows: Option<u64>,
    /// Decides random values, with the name of each input.
    pub seed: u64,
}

/// What an input reads.
#[derive(Clone, PartialEq, Debug)]
pub enum GivenInput {
    /// These elements, of the input's own dtype or of another that can be rounded to it. Without a shape
    /// they are as many rows as they make.
    Elements {
        /// Extents, outermost first.
        shape: Option<Vec<usize>>,
        /// Row-major.
        elements: Vec<f64>,
    },
    /// Random values of this shape, which are safe to use where they are indices.
    Random(Vec<usize>),
}

/// The inputs of a few steps of one graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Feed {
    /// In their order: what one keeps in states, the next finds.
    pub steps: Vec<FeedStep>,
}

/// The inputs of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedStep {
    /// The size of each symbol, by its index.
    pub sizes: Vec<u64>,
    /// In the order of the graph's inputs.
    pub inputs: Vec<Array>,
}

impl Feed {
    /// What `graph` reads where this is given.
    ///
    /// # Errors
    /// When the graph has no such input, an array does not fit its input or the others, or ids are given
    /// to a graph that no engine could run.
    pub fn of(graph: &Graph, ops: &OpRegistry, given: &Given) -> Result<Self, TrialError> {
        let symbols = SymbolTable::new(graph.symbols()).map_err(ModelError::from)?;
        let names = graph.inputs().iter().map(|input| input.name.as_str());
        if let Some(input) = given.inputs.keys().find(|name| !names.clone().any(|n| n == *name)) {
            let known = Vec::from_iter(names.map(|name| format!("%{name}"))).join(", ");
            return Err(TrialError::UnknownInput { input: input.clone(), known });
        }
        // Inputs without a role are whoever's; the others make a graph that an engine could feed.
        let roles = RoleMap::resolve(&of_roles(graph), &symbols, ops);
        let steps = match (roles, &given.ids) {
            (Ok(roles), ids) => {
                let few = Vec::from_iter(1..=given.rows.unwrap_or(ROWS) as u32);
                by_ids(&roles, &symbols, ids.as_ref().unwrap_or(&few))?
            }
            (Err(error), Some(_)) => return Err(TrialError::Ids(error)),
            (Err(_), None) => vec![(sizes_of(graph, &symbols, given)?, BTreeMap::new())],
        };
        let steps = steps.into_iter().map(|(sizes, mut filled)| {
            let random = random_arrays(graph, &sizes, given.seed)?;
            let inputs =
                graph.inputs().iter().zip(random.inputs).map(|(input, random)| {
                    match given.inputs.get(&input.name) {
                        Some(given) => shaped(graph, input, given, random),
                        None => Ok(filled.remove(&input.name).unwrap_or(random)),
                    }
                });
            Ok(FeedStep { inputs: inputs.collect::<Result<_, TrialError>>()?, sizes })
        });
        Ok(Self { steps: steps.collect::<Result<_, TrialError>>()? })
    }
}

impl FeedStep {
    /// Calls `run` with the step as a model takes it.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&StepData<'_>) -> R) -> R {
        let bytes = Vec::from_iter(self.inputs.iter().map(Array::to_bytes));
        let inputs = Vec::from_iter(bytes.iter().map(Vec::as_slice));
        run(&StepData { counts: &self.sizes, inputs: &inputs, ..StepData::default() })
    }
}

/// The inputs that have a role, with the states, and nothing else.
fn of_roles(graph: &Graph) -> Graph {
    let mut only = Graph::with_symbols_of(graph.name.clone(), graph);
    for input in graph.inputs().iter().filter(|input| input.role.is_some()) {
        let ty = graph.ty(input.value).clone();
        only.add_input(input.name.clone(), ty, input.padding, input.role.clone());
    }
    for state in graph.states() {
        only.add_state(state.name.clone(), graph.ty(state.value).clone(), state.role.clone());
    }
    only
}

type Filled = (Vec<u64>, BTreeMap<String, Array>);

/// A sequence in steps that each have room for, every token with a row of logits.
fn by_ids(roles: &RoleMap, symbols: &SymbolTable, ids: &[u32]) -> Result<Vec<Filled>, TrialError> {
    let most = |class| match symbols.count(class, symbols.bounds()) {
        0 => usize::MAX,
        bound => bound as usize,
    };
    let most = most(SymbolClass::Tokens).min(most(SymbolClass::Rows));
    if ids.is_empty() {
        return Err(TrialError::NoIds);
    }
    let chunks = ids.chunks(most).enumerate();
    let steps = chunks.map(|(number, chunk)| {
        of_chunks(roles, &[((number * most) as u64, chunk)], ChunkRows::All)?
            .ok_or(TrialError::TooManyIds { ids: ids.len() })
    });
    steps.collect()
}

/// Steps of several sequences, which begin anew with each feed and never fill more than a page: of each
/// step the position of the first token of each sequence and its ids. What no role fills is random.
///
/// # Errors
/// As for [`Feed::of`].
pub(crate) fn batches_of(
    graph: &Graph,
    ops: &OpRegistry,
    batches: &[Vec<(u64, Vec<u32>)>],
    seed: u64,
) -> Result<Feed, TrialError> {
    let symbols = SymbolTable::new(graph.symbols()).map_err(ModelError::from)?;
    let roles = RoleMap::resolve(&of_roles(graph), &symbols, ops).map_err(TrialError::Ids)?;
    let steps = (seed..).step_by(1 << 10).zip(batches).map(|(seed, chunks)| {
        let chunks = Vec::from_iter(chunks.iter().map(|(start, ids)| (*start, ids.as_slice())));
        let tokens = chunks.iter().map(|(_, ids)| ids.len()).sum();
        let filled = of_chunks(&roles, &chunks, ChunkRows::Last)?;
        let (sizes, mut filled) = filled.ok_or(TrialError::TooManyIds { ids: tokens })?;
        let random = random_arrays(graph, &sizes, seed)?;
        let inputs = graph.inputs().iter().zip(random.inputs);
        let inputs = inputs.map(|(input, random)| filled.remove(&input.name).unwrap_or(random));
        Ok(FeedStep { inputs: inputs.collect(), sizes })
    });
    Ok(Feed { steps: steps.collect::<Result<_, TrialError>>()? })
}

/// A step of these sequences; `None` where there is no room for them.
fn of_chunks(
    roles: &RoleMap,
    chunks: &[(u64, &[u32])],
    rows: ChunkRows,
) -> Result<Option<Filled>, TrialError> {
    let step = step_of_ids(roles, chunks, rows)?;
    Ok(step.map(|step| {
        step.with(|data| {
            let filled =
                roles.inputs.iter().zip(data.inputs).enumerate().map(|(i, (input, bytes))| {
                    let short = data.short_rows.iter().find(|(at, _)| *at == i);
                    let dims =
                        Vec::from_iter(input.ty.dims(data.counts).iter().map(|&n| n as usize));
                    let padding = input.input.padding().to_f64();
                    let array = whole(input.ty.dtype, dims, bytes, short.map(|(_, n)| *n), padding);
                    (input.name.clone(), array)
                });
            (data.counts.to_vec(), filled.collect())
        })
    }))
}

/// An input of which the first columns of each row are given, or all of it.
fn whole(
    dtype: DType,
    dims: Vec<usize>,
    bytes: &[u8],
    columns: Option<u64>,
    padding: f64,
) -> Array {
    let Some(columns) = columns.map(|n| n as usize) else {
        return Array::from_bytes(dtype, dims, bytes);
    };
    let rows = dims[0];
    let given = Array::from_bytes(dtype, vec![rows, columns], bytes);
    let width = dims[1..].iter().product::<usize>();
    let element = |i: usize| match i % width {
        column if column < columns => given.data[i / width * columns + column],
        _ => padding,
    };
    Array::from_fn(dtype, dims, element)
}

/// The size of each symbol: what the shapes of given arrays say of their class, and a few rows where
/// nothing does.
fn sizes_of(graph: &Graph, symbols: &SymbolTable, given: &Given) -> Result<Vec<u64>, TrialError> {
    let mut said: Vec<(SymbolClass, u64, &str)> = Vec::new();
    for input in graph.inputs() {
        let Some(given) = given.inputs.get(&input.name) else { continue };
        let ty = graph.ty(input.value);
        let refuse = |reason: String| Err(refused(graph, input, given, reason));
        for (dim, extent) in ty.shape.iter().zip(extents(graph, input, given)?) {
            let Some((symbol, times)) = one_symbol(dim) else { continue };
            let over = symbols.over(symbol);
            let (decl, of_symbol) = (&graph.symbols()[symbol], extent / times);
            if extent % times != 0 || of_symbol % over.times != 0 {
                return refuse(format!("{} is counted in multiples", decl.name));
            }
            if !(decl.min..=decl.max).contains(&of_symbol) {
                let (name, min, max) = (&decl.name, decl.min, decl.max);
                return refuse(format!(
                    "that makes {name} = {of_symbol}, declared from {min} to {max}"
                ));
            }
            let count = of_symbol / over.times;
            match said.iter().find(|(class, ..)| *class == over.class) {
                Some((_, other, by)) if *other != count => {
                    let name = &decl.name;
                    return refuse(format!("that makes {name} = {count}, but %{by} makes {other}"));
                }
                Some(_) => {}
                None => said.push((over.class, count, &input.name)),
            }
        }
    }
    // As many as every symbol of the class may have.
    let few = |class| {
        let of_class = graph.symbols().iter().filter(|(symbol, _)| symbols.class(*symbol) == class);
        let bounds = of_class.map(|(symbol, decl)| {
            let times = symbols.over(symbol).times;
            (decl.min.div_ceil(times), decl.max / times)
        });
        let rows = given.rows.unwrap_or(ROWS);
        bounds.fold(rows, |n, (min, max)| n.clamp(min.min(max), max))
    };
    let mut sizes = vec![0; symbols.bounds().len()];
    symbols.fill(&mut sizes, |class| {
        let given = said.iter().find(|(of, ..)| *of == class);
        given.map_or_else(|| few(class), |(_, count, _)| *count)
    });
    Ok(sizes)
}

/// The symbol of a dimension that is so many times it.
fn one_symbol(dim: &Dim) -> Option<(Symbol, u64)> {
    match *dim.terms() {
        [(symbol, times)] if dim.constant_part() == 0 && times > 0 => {
            Some((symbol, times.unsigned_abs()))
        }
        _ => None,
    }
}

/// The extents that an input has by what is given for it.
fn extents(graph: &Graph, input: &InputDecl, given: &GivenInput) -> Result<Vec<u64>, TrialError> {
    let ty = graph.ty(input.value);
    let refuse = |reason: String| Err(refused(graph, input, given, reason));
    let shape = match given {
        GivenInput::Elements { shape, .. } => shape.as_ref(),
        GivenInput::Random(shape) => Some(shape),
    };
    match (shape, given) {
        (Some(shape), _) if shape.len() != ty.rank() => {
            refuse(format!("it has {} dimensions", ty.rank()))
        }
        (Some(shape), GivenInput::Elements { elements, .. })
            if shape.iter().product::<usize>() != elements.len() =>
        {
            refuse(format!("there are {} elements", elements.len()))
        }
        (Some(shape), _) => Ok(shape.iter().map(|&n| n as u64).collect()),
        (None, GivenInput::Elements { elements, .. }) => {
            if ty.rank() == 0 && elements.len() == 1 {
                return Ok(Vec::new());
            }
            // Only the outermost dimension is open.
            let Some(row) = ty.row().static_elements().filter(|&n| n > 0 && ty.rank() > 0) else {
                return refuse("say its shape".to_owned());
            };
            let elements = elements.len() as u64;
            if !elements.is_multiple_of(row) {
                return refuse(format!("a row of it has {row}, so give a multiple of that"));
            }
            let inner = ty.shape[1..].iter().map(|dim| dim.eval(&[]));
            Ok(std::iter::once(elements / row).chain(inner).collect())
        }
        (None, GivenInput::Random(_)) => Ok(Vec::new()),
    }
}

/// What is given as its input has it; `random` is what it would read else.
fn shaped(
    graph: &Graph,
    input: &InputDecl,
    given: &GivenInput,
    random: Array,
) -> Result<Array, TrialError> {
    let shape = extents(graph, input, given)?;
    if !shape.iter().map(|&n| n as usize).eq(random.shape.iter().copied()) {
        let reason = format!("in this step it is {:?}", random.shape);
        return Err(refused(graph, input, given, reason));
    }
    Ok(match given {
        GivenInput::Random(_) => random,
        GivenInput::Elements { elements, .. } => {
            Array { data: elements.clone(), ..random }.rounded()
        }
    })
}

fn refused(graph: &Graph, input: &InputDecl, given: &GivenInput, reason: String) -> TrialError {
    let given = match given {
        GivenInput::Elements { shape: None, elements } => format!("{} elements", elements.len()),
        GivenInput::Elements { shape: Some(shape), .. } => format!("{shape:?}"),
        GivenInput::Random(shape) => format!("random {shape:?}"),
    };
    TrialError::Input {
        input: input.name.clone(),
        declared: graph.ty(input.value).display(graph.symbols()).to_string(),
        given,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::builder::Builder;

    fn graph() -> Graph {
        let b = Builder::new("given");
        let t = b.symbol("T", 1, 8);
        let (x, at) =
            (b.input("x", DType::F32, (t, 2)), b.input("at", DType::I32, [t]).padding(0.0));
        let table = b.input("table", DType::F32, (3, 2));
        b.finish([x + table.gather(at)]).unwrap()
    }

    fn of(inputs: &[(&str, GivenInput)]) -> Result<FeedStep, String> {
        let inputs =
            inputs.iter().map(|(name, given)| ((*name).to_owned(), given.clone())).collect();
        let given = Given { inputs, ..Given::default() };
        let feed = Feed::of(&graph(), &OpRegistry::builtin(), &given);
        feed.map(|mut feed| feed.steps.remove(0)).map_err(|error| error.to_string())
    }

    fn elements(elements: &[f64]) -> GivenInput {
        GivenInput::Elements { shape: None, elements: elements.to_vec() }
    }

    #[test]
    fn sizes_follow_from_what_is_given_and_the_rest_is_random_and_safe() {
        let step = of(&[("at", elements(&[2.0, 0.0, 1.0]))]).unwrap();
        assert_eq!(
            (step.sizes.as_slice(), step.inputs[0].shape.as_slice()),
            (&[3][..], &[3, 2][..])
        );
        assert_eq!(step.inputs[1].data, [2.0, 0.0, 1.0]);
        let random = of(&[("x", GivenInput::Random(vec![7, 2]))]).unwrap();
        assert_eq!(random.sizes, [7]);
        assert!(
            random.inputs[1].data.iter().all(|&at| (0.0..3.0).contains(&at)),
            "rows of the table"
        );
        assert_eq!(of(&[]).unwrap().sizes, [ROWS]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = |inputs: &[(&str, GivenInput)]| of(inputs).unwrap_err();
        assert_eq!(
            error(&[("y", elements(&[]))]),
            "the graph has no input %y; it has: %x, %at, %table"
        );
        let odd = error(&[("x", elements(&[1.0; 3]))]);
        assert!(
            odd.contains("%x is f32[T,2]") && odd.contains("3 elements: a row of it has 2"),
            "{odd}"
        );
        let many = error(&[("x", GivenInput::Random(vec![9, 2]))]);
        assert!(many.contains("T = 9, declared from 1 to 8"), "{many}");
        let two = error(&[("x", elements(&[1.0; 4])), ("at", elements(&[0.0]))]);
        assert!(two.contains("T = 1, but %x makes 2"), "{two}");
        let flat = error(&[("table", GivenInput::Random(vec![3]))]);
        assert!(flat.contains("it has 2 dimensions"), "{flat}");
        let small = error(&[("table", GivenInput::Random(vec![2, 2]))]);
        assert!(small.contains("in this step it is [3, 2]"), "{small}");
        let ids = Given { ids: Some(vec![1]), ..Given::default() };
        let ids = Feed::of(&graph(), &OpRegistry::builtin(), &ids).unwrap_err().to_string();
        assert!(ids.starts_with("ids can't be given to this graph"), "{ids}");
    }
}
