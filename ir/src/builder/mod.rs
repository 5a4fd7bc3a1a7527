//! The builder: how a model author writes a graph.
//!
//! [`Tensor`]s are `Copy` handles with operators; scopes prefix weight paths; every node records
//! the author's source line. A mistake is noted with its line and gives a tensor that swallows
//! what follows, so that [`Builder::finish`] returns all mistakes together.

mod composites;
mod error;
mod operators;
mod roles;
mod scope;
mod tensor;

pub use error::{BuildError, BuildErrors};
pub use scope::Scope;
pub use tensor::{Operand, Tensor};

use crate::custom::{Attrs, CustomCall, CustomOpDef};
use crate::dim::SymbolDecl;
use crate::dtype::DType;
use crate::entity::{Symbol, Value};
use crate::graph::{Graph, Loc};
use crate::literal::Literal;
use crate::op::{Op, check_narrow, check_types, infer_type};
use crate::types::{IntoShape, Shape, TensorType};
use crate::weight::Recipe;
use scope::OpenScope;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;

type WeightDTypes = Box<dyn Fn(&str) -> Option<DType>>;

struct State {
    graph: Graph,
    scopes: Vec<OpenScope>,
    weights: BTreeMap<String, Value>,
    weight_dtype: DType,
    weight_dtypes: Option<WeightDTypes>,
    errors: Vec<BuildError>,
    is_finished: bool,
    /// That it is used all the same.
    is_misuse_told: bool,
}

/// Builds a [`Graph`].
///
/// ```
/// use piecewise_ir::builder::Builder;
/// use piecewise_ir::dtype::DType;
///
/// let b = Builder::new("two_layers").weight_dtype(DType::F32);
/// let rows = b.symbol("T", 1, 64);
/// let mut x = b.input("x", DType::F32, (rows, 8));
/// for layer in 0..2 {
///     // Until the guard is dropped, paths begin with the layer's name.
///     let _scope = b.scope(format!("layers.{layer}"));
///     x = x + x.linear(b.weight("weight", [8, 8])).silu();
/// }
/// let graph = b.finish([x])?;
/// assert_eq!(graph.weights().len(), 2);
/// # Ok::<(), piecewise_ir::builder::BuildErrors>(())
/// ```
#[derive(derive_more::Debug)]
#[debug("Builder")]
pub struct Builder {
    state: RefCell<State>,
}

impl Builder {
    /// A builder of an empty graph whose checkpoint weights are bf16.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            state: RefCell::new(State {
                graph: Graph::new(name),
                scopes: Vec::new(),
                weights: BTreeMap::new(),
                weight_dtype: DType::BF16,
                weight_dtypes: None,
                errors: Vec::new(),
                is_finished: false,
                is_misuse_told: false,
            }),
        }
    }

    /// Declares checkpoint weights as `dtype` unless the checkpoint says otherwise.
    #[must_use]
    pub fn weight_dtype(self, dtype: DType) -> Self {
        self.state.borrow_mut().weight_dtype = dtype;
        self
    }

    /// Declares each checkpoint weight by what the checkpoint itself holds, where `dtype_of`
    /// knows the tensor.
    #[must_use]
    pub fn weight_dtypes(self, dtype_of: impl Fn(&str) -> Option<DType> + 'static) -> Self {
        self.state.borrow_mut().weight_dtypes = Some(Box::new(dtype_of));
        self
    }

    /// Declares a symbol with inclusive bounds, whose value follows from the inputs of a step.
    #[track_caller]
    pub fn symbol(&self, name: &str, min: u64, max: u64) -> Symbol {
        self.declare_symbol(name, min, max, None)
    }

    /// [`Self::symbol`] with a role: what the runtime counts for it in each step.
    #[track_caller]
    pub fn symbol_with_role(&self, name: &str, min: u64, max: u64, role: &str) -> Symbol {
        self.declare_symbol(name, min, max, Some(role))
    }

    #[track_caller]
    fn declare_symbol(&self, name: &str, min: u64, max: u64, role: Option<&str>) -> Symbol {
        if min > max {
            self.error(format!("symbol {name} has no value in [{min}..{max}]"));
        }
        self.use_scopes();
        self.is_open();
        self.state.borrow_mut().graph.add_symbol(SymbolDecl {
            name: name.to_owned(),
            min,
            max,
            role: role.map(str::to_owned),
        })
    }

    /// Declares an input: what a step brings. Its padding rows hold anything unless
    /// [`Tensor::padding`] says what.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Tensor<'_> {
        self.use_scopes();
        if !self.is_open() {
            return Tensor::poison(self);
        }
        let ty = TensorType::new(dtype, shape);
        let value = self.state.borrow_mut().graph.add_input(name, ty, None, None);
        Tensor::new(self, value)
    }

    /// A checkpoint tensor of static shape under the current scope. The same path twice is one
    /// weight.
    #[track_caller]
    pub fn weight(&self, name: &str, shape: impl IntoShape) -> Tensor<'_> {
        let path = self.path(name);
        if !self.is_open() {
            return Tensor::poison(self);
        }
        let dtype = {
            let state = self.state.borrow();
            let stored = state.weight_dtypes.as_ref().and_then(|dtype_of| dtype_of(&path));
            stored.unwrap_or(state.weight_dtype)
        };
        let ty = TensorType::new(dtype, shape);
        let known = self.state.borrow().weights.get(&path).copied();
        if let Some(value) = known {
            if *self.state.borrow().graph.ty(value) != ty {
                return self.fail(format!("weight \"{path}\" is used with two types"));
            }
            return Tensor::new(self, value);
        }
        let value = {
            let mut state = self.state.borrow_mut();
            let recipe = Recipe::Checkpoint { name: path.clone(), ty: ty.clone() };
            let value = state.graph.add_weight(ty, recipe);
            state.weights.insert(path, value);
            value
        };
        Tensor::new(self, value)
    }

    /// The recipe of a checkpoint tensor of static shape under the current scope: of `dtype` unless the
    /// checkpoint says otherwise.
    #[track_caller]
    pub fn tensor(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Recipe {
        let name = self.path(name);
        let state = self.state.borrow();
        let stored = state.weight_dtypes.as_ref().and_then(|dtype_of| dtype_of(&name));
        let ty = TensorType::new(stored.unwrap_or(dtype), shape);
        Recipe::Checkpoint { name, ty }
    }

    /// A weight that a recipe makes of [checkpoint tensors](Self::tensor), once at load.
    #[track_caller]
    pub fn weight_of(&self, recipe: Recipe) -> Tensor<'_> {
        self.use_scopes();
        if !self.is_open() {
            return Tensor::poison(self);
        }
        match recipe.ty() {
            Ok(ty) => {
                let value = self.state.borrow_mut().graph.add_weight(ty, recipe);
                Tensor::new(self, value)
            }
            Err(reason) => self.fail(format!("the recipe of a weight: {reason}")),
        }
    }

    /// A weight that `build` computes from nothing: evaluated once at load.
    #[track_caller]
    pub fn derived_weight(
        &self,
        name: &str,
        build: impl FnOnce(&Builder) -> Result<Graph, BuildErrors>,
    ) -> Tensor<'_> {
        self.use_scopes();
        if !self.is_open() {
            return Tensor::poison(self);
        }
        let inner = Self::new(name);
        let recipe = match build(&inner) {
            Ok(graph) => Recipe::Graph(Box::new(graph)),
            Err(errors) => {
                self.state.borrow_mut().errors.extend(errors.0);
                return Tensor::poison(self);
            }
        };
        match recipe.ty() {
            Ok(_) => self.weight_of(recipe),
            Err(reason) => self.fail(format!("derived weight \"{name}\": {reason}")),
        }
    }

    /// A state under the current scope: memory that lives from step to step.
    #[track_caller]
    pub fn state(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Tensor<'_> {
        let path = self.path(name);
        if !self.is_open() {
            return Tensor::poison(self);
        }
        let ty = TensorType::new(dtype, shape);
        let value = self.state.borrow_mut().graph.add_state(path, ty, None);
        Tensor::new(self, value)
    }

    /// A constant tensor of static shape.
    #[track_caller]
    pub fn literal(
        &self,
        dtype: DType,
        shape: impl IntoShape,
        values: impl IntoIterator<Item = f64>,
    ) -> Tensor<'_> {
        let ty = TensorType::new(dtype, shape);
        self.node(Op::Literal(Literal::new(dtype, values)), &[], Some(ty))
    }

    /// A constant of rank 0: `value` rounded to `dtype`.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor<'_> {
        self.literal(dtype, Shape::new(), [value])
    }

    /// A tensor whose elements are their index along `axis`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, shape: impl IntoShape, axis: usize) -> Tensor<'_> {
        self.node(Op::Iota { axis }, &[], Some(TensorType::new(dtype, shape)))
    }

    /// The tensors one after the other along `axis`.
    #[track_caller]
    pub fn concat<'b>(&'b self, tensors: &[Tensor<'b>], axis: usize) -> Tensor<'b> {
        self.node(Op::Concat { axis }, tensors, None)
    }

    /// A call of a custom op, with the types that its definition infers.
    #[track_caller]
    pub fn custom<'b>(
        &'b self,
        def: &dyn CustomOpDef,
        operands: &[Tensor<'b>],
        attrs: Attrs,
    ) -> Vec<Tensor<'b>> {
        let Some(values) = self.values(operands) else { return Vec::new() };
        let types = self.types(&values);
        let results = match def.infer(&types, &attrs) {
            Ok(results) => results,
            Err(reason) => {
                let given = types.iter().map(|ty| self.show(ty)).collect::<Vec<_>>().join(", ");
                self.error(format!("custom op `{}`: {reason} (operands: {given})", def.name()));
                return Vec::new();
            }
        };
        let call = CustomCall {
            name: def.name().to_owned(),
            attrs,
            mutates: def.mutates(),
            rows: def.rows(),
            splits: def.splits(),
            absorbs: def.absorbs(),
            scatters: def.scatters(),
        };
        let loc = self.loc(Location::caller());
        let mut state = self.state.borrow_mut();
        let node = state.graph.push_node(Op::Custom(Box::new(call)), values, results, loc);
        state.graph.node(node).results.iter().map(|&v| Tensor::new(self, v)).collect()
    }

    /// [`Self::custom`] of an op with one result.
    #[track_caller]
    pub fn custom_one<'b>(
        &'b self,
        def: &dyn CustomOpDef,
        operands: &[Tensor<'b>],
        attrs: Attrs,
    ) -> Tensor<'b> {
        match self.custom(def, operands, attrs).as_slice() {
            &[result] => result,
            _ => Tensor::poison(self),
        }
    }

    /// The graph that returns `outputs`. It is handed out once, and nothing is built after it.
    ///
    /// # Errors
    /// Every mistake made on the way, each with its source line.
    #[track_caller]
    pub fn finish<'b>(
        &'b self,
        outputs: impl IntoIterator<Item = Tensor<'b>>,
    ) -> Result<Graph, BuildErrors> {
        let outputs: Vec<_> = outputs.into_iter().collect();
        if outputs.is_empty() {
            self.error("a graph needs at least one output".to_owned());
        }
        let values = self.values(&outputs);
        let mut state = self.state.borrow_mut();
        state.is_finished = true;
        if !state.errors.is_empty() {
            state.is_misuse_told = false;
            return Err(BuildErrors(std::mem::take(&mut state.errors)));
        }
        let none = Graph::new(&*state.graph.name);
        let mut graph = std::mem::replace(&mut state.graph, none);
        graph.set_outputs(values.unwrap_or_default());
        Ok(graph)
    }

    /// Adds a node of one result and of the type `target`, or of the type that follows from the
    /// operands.
    #[track_caller]
    pub(crate) fn node<'b>(
        &'b self,
        op: Op,
        operands: &[Tensor<'b>],
        target: Option<TensorType>,
    ) -> Tensor<'b> {
        match self.try_node(op, operands, target.map(|ty| vec![ty])) {
            Some(results) if results.len() == 1 => results[0],
            _ => Tensor::poison(self),
        }
    }

    /// Adds a node; `None` after noting an error or where an operand is poisoned.
    #[track_caller]
    pub(crate) fn try_node<'b>(
        &'b self,
        op: Op,
        operands: &[Tensor<'b>],
        target: Option<Vec<TensorType>>,
    ) -> Option<Vec<Tensor<'b>>> {
        let values = self.values(operands)?;
        let types = self.types(&values);
        let results = match target {
            Some(results) => Ok(results),
            None => infer_type(&op, &types).map(|ty| ty.into_iter().collect()),
        };
        let checked = results.and_then(|results| {
            check_narrow(&op, &types, &results)?;
            check_types(&op, &types, &results)?;
            Ok(results)
        });
        match checked {
            Ok(results) => {
                let loc = self.loc(Location::caller());
                let mut state = self.state.borrow_mut();
                let node = state.graph.push_node(op, values, results, loc);
                Some(state.graph.node(node).results.iter().map(|&v| Tensor::new(self, v)).collect())
            }
            Err(error) => {
                let given = types.iter().map(|ty| self.show(ty)).collect::<Vec<_>>().join(", ");
                self.error(format!("{error} (operands: {given})"));
                None
            }
        }
    }

    /// Notes a mistake at the caller's line, for composites of one's own: [`Self::finish`] tells it
    /// once, and the tensor swallows what follows from it.
    ///
    /// ```
    /// use piecewise_ir::builder::{Builder, Tensor};
    /// use piecewise_ir::dtype::DType;
    ///
    /// fn halves<'b>(x: Tensor<'b>) -> Tensor<'b> {
    ///     match x.shape().last().and_then(|dim| dim.as_constant()) {
    ///         Some(width) if width % 2 == 0 => x.slice(0, 0..width / 2),
    ///         _ if x.value().is_none() => x,
    ///         _ => x.builder().fail("halves need an even width; pad it".to_owned()),
    ///     }
    /// }
    ///
    /// let b = Builder::new("odd");
    /// let x = halves(halves(b.input("x", DType::F32, [6])));
    /// let errors = b.finish([x.exp()]).unwrap_err();
    /// assert_eq!(errors.0.len(), 1);
    /// ```
    #[track_caller]
    pub fn fail(&self, message: String) -> Tensor<'_> {
        self.error(message);
        Tensor::poison(self)
    }

    #[track_caller]
    fn error(&self, message: String) {
        let loc = self.loc(Location::caller());
        self.state.borrow_mut().errors.push(BuildError { message, loc });
    }

    /// Whether the graph may still be added to; noted once where not.
    #[track_caller]
    fn is_open(&self) -> bool {
        let State { is_finished, is_misuse_told, .. } = *self.state.borrow();
        if is_finished && !is_misuse_told {
            self.state.borrow_mut().is_misuse_told = true;
            let message = "used after `finish`, so that no graph would have it: build it before, or \
                           by another `Builder`";
            self.error(message.to_owned());
        }
        !is_finished
    }

    pub(crate) fn ty(&self, value: Value) -> TensorType {
        self.state.borrow().graph.ty(value).clone()
    }

    pub(crate) fn show(&self, ty: &TensorType) -> String {
        ty.display(self.state.borrow().graph.symbols()).to_string()
    }

    pub(crate) fn show_shape(&self, shape: &Shape) -> String {
        let state = self.state.borrow();
        let dims: Vec<_> =
            shape.iter().map(|d| d.display(state.graph.symbols()).to_string()).collect();
        format!("[{}]", dims.join(","))
    }

    /// The tensors' values; `None` after a mistake.
    #[track_caller]
    pub(crate) fn values(&self, tensors: &[Tensor<'_>]) -> Option<Vec<Value>> {
        let foreign = tensors.iter().find(|tensor| !std::ptr::eq(tensor.builder(), self));
        if let Some(tensor) = foreign {
            let name = |of: &Self| of.state.borrow().graph.name.clone();
            let (theirs, own) = (name(tensor.builder()), name(self));
            self.error(format!(
                "a tensor of the builder \"{theirs}\" is used in \"{own}\": its value is in another \
                 graph; build both by one `Builder`"
            ));
            return None;
        }
        if !self.is_open() {
            return None;
        }
        let mut values = Vec::with_capacity(tensors.len());
        // Not `map`: a closure would lose the author's line.
        for tensor in tensors {
            values.push(tensor.value());
        }
        values.into_iter().collect()
    }

    fn types(&self, values: &[Value]) -> Vec<TensorType> {
        let state = self.state.borrow();
        values.iter().map(|&v| state.graph.ty(v).clone()).collect()
    }

    fn loc(&self, caller: &Location<'_>) -> Loc {
        let file = told_file(caller.file());
        Loc { scope: self.path(""), source: format!("{file}:{}", caller.line()) }
    }
}

/// A file of this library from the folder of its crates on, wherever that lies: dumps of two machines are
/// the same. Any other is told as the compiler was given it.
fn told_file(file: &str) -> &str {
    let crates = env!("CARGO_MANIFEST_DIR").rsplit_once('/').map_or("", |(crates, _)| crates);
    file.strip_prefix(crates).and_then(|file| file.strip_prefix('/')).unwrap_or(file)
}

#[cfg(test)]
mod tests;
