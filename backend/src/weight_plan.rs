//! Recipes of weights as steps: what is read, made, cast and copied where. Every device runs them.

use crate::weights::{TensorSource, TensorSpec, WeightError, WeightSource};
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use piecewise_ir::literal::Scalar;
use piecewise_ir::weight::Recipe;

/// Where bytes lie: in the weight itself or in an intermediate block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Target,
    Temporary(usize),
}

/// A copy of a box of elements between strided arrays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StridedCopy {
    /// Bytes of an element.
    pub(crate) element: u64,
    /// Outermost first: the extent of an axis, and its strides in elements where it is read and where
    /// it is written.
    pub(crate) axes: Vec<[u64; 3]>,
}

/// How integers of 4 bits, lines of which begin at a byte, come out of `i32` words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unpacking {
    /// Lines and integers of a line of the result.
    pub(crate) shape: [u64; 2],
    /// The axis along which a word holds eight.
    pub(crate) axis: usize,
    /// Of the eight integers of a word, the lowest bit of each.
    pub(crate) shifts: [u8; 8],
    /// What is taken from each.
    pub(crate) less: u8,
}

impl Unpacking {
    /// Words of a line of words.
    pub(crate) fn words_across(&self) -> u64 {
        if self.axis == 1 { self.shape[1].div_ceil(8) } else { self.shape[1] }
    }
}

/// What makes a part of a weight.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum WeightStep<'a> {
    /// A checkpoint tensor, dense, to a place and an offset in bytes.
    Tensor { name: &'a str, dtype: DType, shape: Vec<u64>, to: Place, offset: u64 },
    /// The output of a small graph, dense.
    Graph { graph: &'a Graph, dtype: DType, bytes: u64, to: Place, offset: u64 },
    /// Dense elements rounded to another dtype.
    Cast { from: Place, from_dtype: DType, to: Place, to_dtype: DType, offset: u64, n: u64 },
    /// Integers of 4 bits out of dense words, dense.
    Unpack { from: Place, unpacking: Unpacking, to: Place, offset: u64 },
    /// A strided copy, from the start of a place.
    Copy { from: Place, from_offset: u64, to: Place, to_offset: u64, copy: StridedCopy },
}

/// The steps that make a weight, in order, and the intermediate blocks that they need.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct WeightPlan<'a> {
    pub(crate) steps: Vec<WeightStep<'a>>,
    /// Bytes of each intermediate block.
    pub(crate) temporaries: Vec<u64>,
}

/// A strided place for a value.
#[derive(Clone, Debug)]
struct View {
    place: Place,
    /// In bytes.
    offset: u64,
    /// In elements.
    strides: Vec<u64>,
}

fn bad(reason: impl Into<String>) -> WeightError {
    WeightError::Recipe { reason: reason.into() }
}

fn dense(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// The dtype, the extents in what is copied as one (elements, and bytes where elements share these),
/// and the bytes of what a recipe makes.
fn type_of(recipe: &Recipe) -> Result<(DType, Vec<u64>, u64), WeightError> {
    let ty = recipe.ty().map_err(bad)?;
    let mut shape = ty.static_shape().ok_or_else(|| bad("a weight of symbolic shape"))?;
    if ty.dtype.is_packed()
        && let Some(line) = shape.last_mut()
    {
        *line = ty.dtype.line_bytes(*line);
    }
    let bytes = shape.iter().try_fold(ty.dtype.size() as u64, |n, &d| n.checked_mul(d));
    let bytes = bytes.filter(|bytes| *bytes < 1 << 48);
    let bytes = bytes.ok_or_else(|| bad("a weight larger than the address space"))?;
    Ok((ty.dtype, shape, bytes))
}

/// Bytes of the weight that a recipe makes.
pub(crate) fn recipe_bytes(recipe: &Recipe) -> Result<u64, WeightError> {
    Ok(type_of(recipe)?.2)
}

impl<'a> WeightPlan<'a> {
    /// The steps that make `recipe`, row-major.
    pub(crate) fn new(recipe: &'a Recipe) -> Result<Self, WeightError> {
        let (_, shape, _) = type_of(recipe)?;
        let mut plan = Self::default();
        let view = View { place: Place::Target, offset: 0, strides: dense(&shape) };
        plan.place(recipe, &view)?;
        Ok(plan)
    }

    fn temporary(&mut self, shape: &[u64], bytes: u64) -> View {
        self.temporaries.push(bytes);
        let place = Place::Temporary(self.temporaries.len() - 1);
        View { place, offset: 0, strides: dense(shape) }
    }

    /// Makes `recipe` in a dense place of its own.
    fn evaluate(&mut self, recipe: &'a Recipe) -> Result<View, WeightError> {
        let (_, shape, bytes) = type_of(recipe)?;
        let view = self.temporary(&shape, bytes);
        self.place(recipe, &view)?;
        Ok(view)
    }

    /// Makes `recipe` in a strided place.
    fn place(&mut self, recipe: &'a Recipe, to: &View) -> Result<(), WeightError> {
        let (dtype, shape, bytes) = type_of(recipe)?;
        if bytes == 0 {
            return Ok(());
        }
        let element = dtype.size() as u64;
        match recipe {
            Recipe::Concat { axis, parts } => {
                let mut to = to.clone();
                for part in parts {
                    let (_, part_shape, _) = type_of(part)?;
                    self.place(part, &to)?;
                    to.offset += part_shape[*axis] * to.strides[*axis] * element;
                }
                Ok(())
            }
            Recipe::Transpose { perm, of } => {
                let mut strides = vec![0; perm.len()];
                for (axis, &source) in perm.iter().enumerate() {
                    strides[source] = to.strides[axis];
                }
                self.place(of, &View { place: to.place, offset: to.offset, strides })
            }
            Recipe::Slice { axis, start, of, .. } => {
                let mut from = self.evaluate(of)?;
                from.offset = start * from.strides[*axis] * element;
                self.copy(element, &shape, &from, to);
                Ok(())
            }
            Recipe::Broadcast { of, .. } => {
                let mut from = self.evaluate(of)?;
                let inner = type_of(of)?.1;
                let outer = shape.len() - inner.len();
                let step = |axis: usize| match axis.checked_sub(outer) {
                    Some(at) if inner[at] != 1 => from.strides[at],
                    _ => 0,
                };
                from.strides = (0..shape.len()).map(step).collect();
                self.copy(element, &shape, &from, to);
                Ok(())
            }
            Recipe::Checkpoint { .. }
            | Recipe::Unpack { .. }
            | Recipe::Cast { .. }
            | Recipe::Reshape { .. }
            | Recipe::Graph(_)
                if !is_dense(&shape, &to.strides) =>
            {
                let from = self.evaluate(recipe)?;
                self.copy(element, &shape, &from, to);
                Ok(())
            }
            Recipe::Unpack { axis, order, less, len, of } => {
                let (_, words, _) = type_of(of)?;
                let from = self.evaluate(of)?.place;
                let mut unpacked = [words[0], words[1]];
                unpacked[*axis] = *len;
                let mut shifts = [0; 8];
                for (place, &integer) in (0u8..).zip(order) {
                    shifts[usize::from(integer)] = 4 * place;
                }
                let unpacking = Unpacking { shape: unpacked, axis: *axis, shifts, less: *less };
                let (to, offset) = (to.place, to.offset);
                self.steps.push(WeightStep::Unpack { from, unpacking, to, offset });
                Ok(())
            }
            Recipe::Checkpoint { name, .. } => {
                if dtype.is_packed() {
                    return Err(bad(format!("tensor \"{name}\" of {dtype}, which no file stores")));
                }
                let (to, offset) = (to.place, to.offset);
                self.steps.push(WeightStep::Tensor { name, dtype, shape, to, offset });
                Ok(())
            }
            Recipe::Cast { to: to_dtype, of } => {
                let (from_dtype, ..) = type_of(of)?;
                if from_dtype.is_packed() || to_dtype.is_packed() {
                    return Err(bad(format!("a cast from {from_dtype} to {to_dtype}")));
                }
                let from = self.evaluate(of)?.place;
                let (n, to_dtype, offset) = (bytes / element, *to_dtype, to.offset);
                let to = to.place;
                self.steps.push(WeightStep::Cast { from, from_dtype, to, to_dtype, offset, n });
                Ok(())
            }
            Recipe::Reshape { of, .. } => {
                let strides = dense(&type_of(of)?.1);
                self.place(of, &View { place: to.place, offset: to.offset, strides })
            }
            Recipe::Graph(graph) => {
                let (to, offset) = (to.place, to.offset);
                self.steps.push(WeightStep::Graph { graph, dtype, bytes, to, offset });
                Ok(())
            }
        }
    }

    fn copy(&mut self, element: u64, shape: &[u64], from: &View, to: &View) {
        let axes = shape.iter().zip(&from.strides).zip(&to.strides);
        let axes = axes.map(|((&extent, &from), &to)| [extent, from, to]).collect();
        let copy = StridedCopy { element, axes }.merged().widened(from.offset, to.offset);
        self.steps.push(WeightStep::Copy {
            from: from.place,
            from_offset: from.offset,
            to: to.place,
            to_offset: to.offset,
            copy,
        });
    }
}

fn is_dense(shape: &[u64], strides: &[u64]) -> bool {
    dense(shape).iter().zip(strides).zip(shape).all(|((a, b), &extent)| extent == 1 || a == b)
}

impl StridedCopy {
    pub(crate) fn elements(&self) -> u64 {
        self.axes.iter().map(|[extent, ..]| extent).product()
    }

    /// The same copy over as few axes as can be.
    fn merged(self) -> Self {
        let mut axes: Vec<[u64; 3]> = Vec::with_capacity(self.axes.len());
        for [extent, from, to] in self.axes.into_iter().filter(|[extent, ..]| *extent != 1) {
            match axes.last_mut() {
                Some([outer, f, t]) if (*f, *t) == (from * extent, to * extent) => {
                    *outer *= extent;
                    (*f, *t) = (from, to);
                }
                _ => axes.push([extent, from, to]),
            }
        }
        Self { axes, ..self }
    }

    /// The same copy with elements of up to 16 bytes, where both sides allow it.
    fn widened(mut self, from_offset: u64, to_offset: u64) -> Self {
        while self.element < 16 {
            let Some(([extent, 1, 1], outer)) = self.axes.split_last_mut() else { break };
            let aligned = [from_offset, to_offset].iter().all(|at| at % (2 * self.element) == 0);
            let pairs = outer.iter().all(|[_, from, to]| from % 2 == 0 && to % 2 == 0);
            if !extent.is_multiple_of(2) || !aligned || !pairs {
                break;
            }
            self.element *= 2;
            *extent /= 2;
            for [_, from, to] in outer {
                *from /= 2;
                *to /= 2;
            }
        }
        self
    }
}

/// A tensor of the source, whose bytes are as many as its type says.
pub(crate) fn tensor<'a>(
    source: &'a dyn WeightSource,
    spec: TensorSpec<'_>,
) -> Result<TensorSource<'a>, WeightError> {
    let (tensor, TensorSpec { name, dtype, shape }) = (source.tensor(spec)?, spec);
    let expected = shape.iter().product::<u64>() * dtype.size() as u64;
    match &tensor {
        TensorSource::Bytes(bytes) if bytes.len() as u64 != expected => {
            Err(WeightError::Mismatch {
                name: name.to_owned(),
                found: format!("{} bytes", bytes.len()),
                expected: format!("{shape:?} of {dtype}, {expected} bytes"),
            })
        }
        _ => Ok(tensor),
    }
}

/// The output of a small graph, as so many bytes of its dtype.
pub(crate) fn evaluate(graph: &Graph, dtype: DType, bytes: u64) -> Result<Vec<u8>, WeightError> {
    let array = piecewise_ir::eval::evaluate_constant(graph).map_err(|e| bad(e.to_string()))?;
    let size = dtype.size();
    let scalars = array.data.iter().map(|&x| Scalar::new(dtype, x).bits().to_le_bytes());
    let made: Vec<u8> = scalars.flat_map(|bits| bits.into_iter().take(size)).collect();
    if made.len() as u64 != bytes {
        let reason = format!("a graph made {} bytes where its type has {bytes}", made.len());
        return Err(bad(reason));
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_ir::types::TensorType;
    use proptest::prelude::*;

    fn tensor(name: &str, shape: &[u64]) -> Recipe {
        let ty = TensorType::new(DType::U8, shape);
        Recipe::Checkpoint { name: name.to_owned(), ty }
    }

    /// Byte `i` of the tensor `name`.
    fn byte(name: &str, i: u64) -> u8 {
        (name.as_bytes()[0] as u64 * 31 + i * 7) as u8
    }

    /// What a recipe means, element by element.
    fn element(recipe: &Recipe, at: &[u64]) -> u8 {
        match recipe {
            Recipe::Checkpoint { name, ty } => {
                let strides = dense(&ty.static_shape().unwrap());
                byte(name, at.iter().zip(strides).map(|(a, s)| a * s).sum())
            }
            Recipe::Concat { axis, parts } => {
                let mut at = at.to_vec();
                for part in parts {
                    let extent = type_of(part).unwrap().1[*axis];
                    if at[*axis] < extent {
                        return element(part, &at);
                    }
                    at[*axis] -= extent;
                }
                unreachable!("an index past the parts")
            }
            Recipe::Slice { axis, start, of, .. } => {
                let mut at = at.to_vec();
                at[*axis] += start;
                element(of, &at)
            }
            Recipe::Transpose { perm, of } => {
                let mut source = vec![0; at.len()];
                for (axis, &from) in perm.iter().enumerate() {
                    source[from] = at[axis];
                }
                element(of, &source)
            }
            Recipe::Cast { of, .. } => u8::from(element(of, at) != 0),
            Recipe::Reshape { shape, of } => {
                let flat: u64 = at.iter().zip(dense(shape)).map(|(a, s)| a * s).sum();
                let before = type_of(of).unwrap().1;
                let strides = dense(&before);
                let places = strides.iter().zip(&before).map(|(s, extent)| flat / s % extent);
                element(of, &Vec::from_iter(places))
            }
            Recipe::Broadcast { .. } | Recipe::Unpack { .. } => {
                unreachable!("no such recipes here")
            }
            Recipe::Graph(_) => unreachable!("no graphs here"),
        }
    }

    /// Tensors of the bytes that [`byte`] says.
    #[derive(Debug)]
    struct Bytes;

    impl WeightSource for Bytes {
        fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
            let TensorSpec { name, shape, .. } = spec;
            let bytes = (0..shape.iter().product()).map(|i| byte(name, i)).collect::<Vec<_>>();
            Ok(TensorSource::Bytes(bytes.into()))
        }
    }

    fn run(recipe: &Recipe) -> Vec<u8> {
        let mut made = vec![0xee; recipe_bytes(recipe).unwrap() as usize];
        crate::cpu::materialize::materialize(recipe, &Bytes, &mut made).unwrap();
        made
    }

    fn check(recipe: &Recipe) {
        let (_, shape, _) = type_of(recipe).unwrap();
        let strides = dense(&shape);
        let want: Vec<u8> = (0..shape.iter().product())
            .map(|i| {
                let at: Vec<u64> =
                    strides.iter().zip(&shape).map(|(s, extent)| i / s % extent).collect();
                element(recipe, &at)
            })
            .collect();
        assert_eq!(run(recipe), want, "{recipe:?}");
    }

    fn recipe() -> impl Strategy<Value = Recipe> {
        let leaf = (prop::collection::vec(1u64..5, 2..4), "[a-z]");
        let leaf = leaf.prop_map(|(shape, name)| tensor(&name, &shape));
        leaf.prop_recursive(4, 12, 3, |inner| {
            let transpose = inner.clone().prop_perturb(|of, mut rng| {
                let mut perm: Vec<usize> = (0..type_of(&of).unwrap().1.len()).collect();
                for i in (1..perm.len()).rev() {
                    perm.swap(i, rng.random_range(0..=i));
                }
                Recipe::Transpose { perm, of: Box::new(of) }
            });
            let slice = (inner.clone(), any::<(u64, u64, u64)>()).prop_map(|(of, (a, s, l))| {
                let shape = type_of(&of).unwrap().1;
                let axis = (a % shape.len() as u64) as usize;
                let start = s % shape[axis];
                let len = 1 + l % (shape[axis] - start);
                Recipe::Slice { axis, start, len, of: Box::new(of) }
            });
            let concat = (inner.clone(), any::<u64>(), 1u64..3).prop_map(|(of, a, extent)| {
                let mut shape = type_of(&of).unwrap().1;
                let axis = (a % shape.len() as u64) as usize;
                shape[axis] = extent;
                // The part's elements must have the type of the first.
                let dtype = type_of(&of).unwrap().0;
                let other = Recipe::Cast { to: dtype, of: Box::new(tensor("z", &shape)) };
                let other = if dtype == DType::U8 { tensor("z", &shape) } else { other };
                Recipe::Concat { axis, parts: vec![of, other] }
            });
            let reshape = (inner.clone(), any::<bool>()).prop_map(|(of, last)| {
                let mut shape = type_of(&of).unwrap().1;
                let extent = shape.pop().unwrap();
                match (last, shape.last_mut()) {
                    (false, Some(before)) => *before *= extent,
                    _ => shape.extend([1, extent]),
                }
                Recipe::Reshape { shape, of: Box::new(of) }
            });
            let cast = inner.prop_map(|of| Recipe::Cast { to: DType::Bool, of: Box::new(of) });
            prop_oneof![transpose, slice, concat, reshape, cast]
        })
    }

    proptest! {
        #[test]
        fn the_steps_make_what_the_recipe_means(recipe in recipe()) {
            check(&recipe);
        }
    }

    #[test]
    fn merged_projections_go_straight_to_their_place() {
        let parts = vec![tensor("q", &[8, 4]), tensor("k", &[4, 4]), tensor("v", &[4, 4])];
        let recipe = Recipe::Concat { axis: 0, parts };
        let plan = WeightPlan::new(&recipe).unwrap();
        assert!(plan.temporaries.is_empty());
        let offsets: Vec<u64> = plan
            .steps
            .iter()
            .map(|step| match step {
                WeightStep::Tensor { offset, .. } => *offset,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(offsets, [0, 32, 48]);
    }

    #[test]
    fn wide_rows_are_copied_sixteen_bytes_at_a_time() {
        let slice =
            Recipe::Slice { axis: 1, start: 32, len: 64, of: Box::new(tensor("a", &[4, 96])) };
        let plan = WeightPlan::new(&slice).unwrap();
        let WeightStep::Copy { copy, .. } = &plan.steps[1] else { panic!("{plan:?}") };
        let extents = Vec::from_iter(copy.axes.iter().map(|[extent, ..]| *extent));
        assert_eq!((copy.element, extents), (16, vec![4, 4]));
        check(&slice);
    }
}
