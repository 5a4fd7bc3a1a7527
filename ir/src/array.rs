//! Values of the reference evaluator.

use crate::dtype::DType;
use crate::literal::Scalar;

/// A tensor of concrete shape whose elements are held in f64.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// The element type that `data` stands for.
    pub dtype: DType,
    /// Extents, outermost first; empty of a scalar.
    pub shape: Vec<usize>,
    /// The elements, row-major, held in f64 whatever `dtype` is.
    pub data: Vec<f64>,
}

impl Array {
    /// An array of `shape` whose element at flat index `i` is `element(i)`.
    pub fn from_fn(dtype: DType, shape: Vec<usize>, element: impl FnMut(usize) -> f64) -> Self {
        let n = shape.iter().product();
        Self { dtype, shape, data: (0..n).map(element).collect() }
    }

    /// Zeros of `shape`.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Self {
        Self::from_fn(dtype, shape, |_| 0.0)
    }

    /// The array that row-major little-endian bytes hold, as many elements as `shape` has.
    pub fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Self {
        let element = |chunk: &[u8]| {
            let mut bits = [0; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            Scalar::from_bits(dtype, u64::from_le_bytes(bits)).to_f64()
        };
        Self { dtype, shape, data: bytes.chunks_exact(dtype.size()).map(element).collect() }
    }

    /// Its elements, each rounded to the dtype, as row-major little-endian bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.data.iter().flat_map(|&x| Scalar::new(self.dtype, x).to_bytes()).collect()
    }

    /// The number of elements of one row: the product of all dimensions but the outermost.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// The same with every element rounded to the dtype.
    pub fn rounded(mut self) -> Self {
        for x in &mut self.data {
            *x = self.dtype.round(*x);
        }
        self
    }
}
