//! Tensor types: a dtype and a shape of affine dimensions.

use crate::dim::{Dim, Symbols};
use crate::dtype::DType;
use crate::entity::Symbol;
use smallvec::SmallVec;

/// The dimensions of a tensor, outermost first; row-major.
pub type Shape = SmallVec<[Dim; 4]>;

/// The type of a value: `bf16[T,1024]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct TensorType {
    /// What each element is, and the rounding of whatever computes it.
    pub dtype: DType,
    /// The dimensions, outermost first. Empty for a scalar.
    pub shape: Shape,
}

/// Dimensions as an author writes them, outermost first: an array where all are of one kind,
/// `[4, 8]`, a tuple of up to five where numbers and symbols are mixed, `(rows, 8)`, or a list.
pub trait IntoShape {
    /// The dimensions, outermost first; empty for a scalar.
    fn into_shape(self) -> Shape;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Shape {
        self
    }
}

impl<D: Into<Dim>, const RANK: usize> IntoShape for [D; RANK] {
    fn into_shape(self) -> Shape {
        self.into_iter().map(Into::into).collect()
    }
}

impl<D: Into<Dim>> IntoShape for Vec<D> {
    fn into_shape(self) -> Shape {
        self.into_iter().map(Into::into).collect()
    }
}

impl<D: Into<Dim> + Clone> IntoShape for &[D] {
    fn into_shape(self) -> Shape {
        self.iter().cloned().map(Into::into).collect()
    }
}

macro_rules! tuples {
    ($($($dim:ident)+;)*) => {
        $(impl<$($dim: Into<Dim>),+> IntoShape for ($($dim,)+) {
            #[expect(non_snake_case, reason = "each dimension is named as its type")]
            fn into_shape(self) -> Shape {
                let ($($dim,)+) = self;
                [$($dim.into()),+].into_iter().collect()
            }
        })*
    };
}

tuples! {
    A B;
    A B C;
    A B C D;
    A B C D E;
}

impl TensorType {
    /// The type of elements `dtype` and dimensions `shape`.
    pub fn new(dtype: DType, shape: impl IntoShape) -> Self {
        Self { dtype, shape: shape.into_shape() }
    }

    /// The type of a single element, without dimensions.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: Shape::new() }
    }

    /// The number of dimensions; 0 of a single element.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, shape: self.shape.clone() }
    }

    /// The symbol that is exactly the outermost dimension, if there is one.
    pub fn outer_symbol(&self) -> Option<Symbol> {
        self.shape.first().and_then(Dim::as_symbol)
    }

    /// Whether any dimension mentions `symbol`.
    pub fn mentions(&self, symbol: Symbol) -> bool {
        self.shape.iter().any(|d| d.mentions(symbol))
    }

    /// The type of one row: the same without the outermost dimension.
    pub fn row(&self) -> Self {
        Self { dtype: self.dtype, shape: self.shape.iter().skip(1).cloned().collect() }
    }

    /// The dimensions, if none is symbolic.
    pub fn static_shape(&self) -> Option<Vec<u64>> {
        self.shape.iter().map(Dim::as_constant).collect()
    }

    /// The number of elements, if no dimension is symbolic and the product fits.
    pub fn static_elements(&self) -> Option<u64> {
        self.static_shape()?.into_iter().try_fold(1u64, u64::checked_mul)
    }

    /// The dimensions under `sizes`, indexed by symbol.
    pub fn dims(&self, sizes: &[u64]) -> SmallVec<[u64; 4]> {
        self.shape.iter().map(|d| d.eval(sizes)).collect()
    }

    /// Bytes under `sizes`, indexed by symbol; saturating.
    pub fn bytes(&self, sizes: &[u64]) -> u64 {
        self.bytes_of(self.dims(sizes).into_iter())
    }

    /// Bytes at the largest value of every symbol; saturating.
    pub fn max_bytes(&self, symbols: &Symbols) -> u64 {
        self.bytes_of(self.shape.iter().map(|dim| dim.max(symbols)))
    }

    /// Bytes if no dimension is symbolic; saturating.
    pub fn static_bytes(&self) -> Option<u64> {
        self.shape.iter().all(|dim| dim.as_constant().is_some()).then(|| self.bytes(&[]))
    }

    /// Bytes of lines along the innermost axis, each of whole bytes.
    fn bytes_of(&self, mut extents: impl DoubleEndedIterator<Item = u64>) -> u64 {
        let line = self.dtype.line_bytes(extents.next_back().unwrap_or(1));
        extents.fold(line, u64::saturating_mul)
    }

    /// Writes it with the names of `symbols`.
    pub fn display<'a>(&'a self, symbols: &'a Symbols) -> impl std::fmt::Display + 'a {
        std::fmt::from_fn(|f| self.write(f, |dim| dim.display(symbols)))
    }

    fn write<'a, D: std::fmt::Display>(
        &'a self,
        f: &mut std::fmt::Formatter<'_>,
        shown: impl Fn(&'a Dim) -> D,
    ) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.shape.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}", shown(dim))?;
        }
        write!(f, "]")
    }
}

/// As in the text of a graph, with symbols by their numbers: `f32[s0,8]`. [`TensorType::display`] knows
/// their names.
impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write(f, |dim| dim)
    }
}
