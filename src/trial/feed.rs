//! What the steps of a trial read.

use super::error::TrialError;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::{Graph, InputDecl};
use piecewise_ir::literal::Scalar;
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
    /// Arrays by the names of inputs. Of an array without a shape ([`Array::shape`] is empty, and it has
    /// more than one element) the shape follows from its input's.
    pub inputs: BTreeMap<String, Array>,
    /// Decides the values of all other inputs, each with its name.
    pub seed: u64,
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
                let few = Vec::from_iter(1..=ROWS as u32);
                by_ids(&roles, &symbols, ids.as_ref().unwrap_or(&few))?
            }
            (Err(error), Some(_)) => return Err(TrialError::Ids(error)),
            (Err(_), None) => vec![(sizes_of(graph, &symbols, given)?, BTreeMap::new())],
        };
        let steps = steps.into_iter().map(|(sizes, mut filled)| {
            let random = random_arrays(graph, &sizes, given.seed)?;
            let inputs = graph.inputs().iter().zip(random.inputs).map(|(input, random)| {
                match given.inputs.get(&input.name) {
                    Some(array) => shaped(graph, input, array, &sizes),
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
        let bytes = Vec::from_iter(self.inputs.iter().map(bytes_of));
        let inputs = Vec::from_iter(bytes.iter().map(Vec::as_slice));
        run(&StepData { counts: &self.sizes, inputs: &inputs, ..StepData::default() })
    }
}

/// Row-major little-endian bytes.
pub(crate) fn bytes_of(array: &Array) -> Vec<u8> {
    array.data.iter().flat_map(|&x| Scalar::new(array.dtype, x).to_bytes()).collect()
}

/// The elements of row-major little-endian bytes.
pub(crate) fn array_of(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Array {
    let element = |chunk: &[u8]| {
        let mut bits = [0; 8];
        bits[..chunk.len()].copy_from_slice(chunk);
        Scalar::from_bits(dtype, u64::from_le_bytes(bits)).to_f64()
    };
    Array { dtype, shape, data: bytes.chunks_exact(dtype.size()).map(element).collect() }
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
fn by_ids(
    roles: &RoleMap,
    symbols: &SymbolTable,
    ids: &[u32],
) -> Result<Vec<Filled>, TrialError> {
    let most = |class| match symbols.count(class, symbols.bounds()) {
        0 => usize::MAX,
        bound => bound as usize,
    };
    let most = most(SymbolClass::Tokens).min(most(SymbolClass::Rows));
    if ids.is_empty() {
        return Err(TrialError::NoIds);
    }
    let mut steps = Vec::new();
    for (number, chunk) in ids.chunks(most).enumerate() {
        let step = step_of_ids(roles, &[((number * most) as u64, chunk)], ChunkRows::All)?;
        let step = step.ok_or(TrialError::TooManyIds { ids: ids.len() })?;
        steps.push(step.with(|data| {
            let filled = roles.inputs.iter().zip(data.inputs).enumerate().map(|(i, (input, bytes))| {
                let short = data.short_rows.iter().find(|(at, _)| *at == i);
                let dims = Vec::from_iter(input.ty.dims(data.counts).iter().map(|&n| n as usize));
                let padding = input.input.padding().to_f64();
                let array = whole(input.ty.dtype, dims, bytes, short.map(|(_, n)| *n), padding);
                (input.name.clone(), array)
            });
            (data.counts.to_vec(), filled.collect())
        }));
    }
    Ok(steps)
}

/// An input of which the first columns of each row are given, or all of it.
fn whole(
    dtype: DType,
    dims: Vec<usize>,
    bytes: &[u8],
    columns: Option<u64>,
    padding: f64,
) -> Array {
    let Some(columns) = columns.map(|n| n as usize) else { return array_of(dtype, dims, bytes) };
    let rows = dims[0];
    let given = array_of(dtype, vec![rows, columns], bytes);
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
        let Some(array) = given.inputs.get(&input.name) else { continue };
        let ty = graph.ty(input.value);
        let refuse = |reason: String| Err(refused(graph, input, array, reason));
        for (dim, extent) in ty.shape.iter().zip(extents(graph, input, array)?) {
            let Some((symbol, times)) = one_symbol(dim) else { continue };
            let over = symbols.over(symbol);
            let (decl, of_symbol) = (&graph.symbols()[symbol], extent / times);
            if extent % times != 0 || of_symbol % over.times != 0 {
                return refuse(format!("{} is counted in multiples", decl.name));
            }
            if !(decl.min..=decl.max).contains(&of_symbol) {
                let (name, min, max) = (&decl.name, decl.min, decl.max);
                return refuse(format!("that makes {name} = {of_symbol}, declared from {min} to {max}"));
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
        bounds.fold(ROWS, |n, (min, max)| n.clamp(min.min(max), max))
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

/// The extents that an array has or would have as its input.
fn extents(graph: &Graph, input: &InputDecl, array: &Array) -> Result<Vec<u64>, TrialError> {
    let ty = graph.ty(input.value);
    if !array.shape.is_empty() || array.data.len() == 1 && ty.rank() == 0 {
        if array.shape.len() != ty.rank() {
            let reason = format!("it has {} dimensions", ty.rank());
            return Err(refused(graph, input, array, reason));
        }
        return Ok(array.shape.iter().map(|&n| n as u64).collect());
    }
    // Only the outermost dimension is open.
    let Some(row) = ty.row().static_elements().filter(|&n| n > 0) else {
        return Err(refused(graph, input, array, "say its shape".to_owned()));
    };
    let elements = array.data.len() as u64;
    if !elements.is_multiple_of(row) {
        let reason = format!("a row of it has {row}, so give a multiple of that");
        return Err(refused(graph, input, array, reason));
    }
    let inner = ty.shape[1.min(ty.rank())..].iter().map(|dim| dim.eval(&[]));
    Ok(std::iter::once(elements / row).chain(inner).collect())
}

/// The array as its input has it.
fn shaped(
    graph: &Graph,
    input: &InputDecl,
    array: &Array,
    sizes: &[u64],
) -> Result<Array, TrialError> {
    let ty = graph.ty(input.value);
    let dims = Vec::from_iter(ty.dims(sizes).iter().map(|&n| n as usize));
    let shape = extents(graph, input, array)?;
    if !shape.iter().zip(&dims).all(|(&found, &dim)| found == dim as u64) {
        let reason = format!("in this step it is {dims:?}");
        return Err(refused(graph, input, array, reason));
    }
    if array.dtype != ty.dtype && array.dtype.is_float() != ty.dtype.is_float() {
        let reason = format!("give values of {}", ty.dtype);
        return Err(refused(graph, input, array, reason));
    }
    Ok(Array { dtype: ty.dtype, shape: dims, data: array.data.clone() }.rounded())
}

fn refused(graph: &Graph, input: &InputDecl, array: &Array, reason: String) -> TrialError {
    let given = match array.shape.is_empty() {
        true => format!("{} values of {}", array.data.len(), array.dtype),
        false => format!("{}{:?}", array.dtype, array.shape),
    };
    TrialError::Input {
        input: input.name.clone(),
        declared: graph.ty(input.value).display(graph.symbols()).to_string(),
        given,
        reason,
    }
}
