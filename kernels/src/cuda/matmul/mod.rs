//! Matrix products: weight-streaming kernels for few rows, one in tiles for many, and a general
//! one.

mod finish;
mod panel;
mod ring;
mod scaled;
mod stream;
mod tensor;
mod tile;

pub use ring::{RING_ROWS, RingForm};
pub use stream::{AfterProduct, BeforeProduct};
pub use tensor::TENSOR_ROWS;

use super::text::storage;
use crate::lower::LowerError;
use crate::op::cuda::{GridAxis, LaunchRecipe, Param, Scalar};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Entity;
use piecewise_ir::op::{Op, check_types};
use piecewise_ir::types::TensorType;

/// The most rows that the streaming kernel takes.
pub const STREAM_ROWS: u64 = 8;

/// A product `y [.., m, n] = x [.., m, k] * w [.., k, n]` by types, either side transposed.
#[derive(Clone, PartialEq, Debug)]
pub struct MatMulSpec {
    types: [DType; 3],
    /// Rows of the left operand: all batches' where one matrix serves them all.
    pub rows: Dim,
    /// Columns of the result.
    pub columns: u64,
    /// The terms of a sum.
    pub depth: u64,
    batch: Dim,
    /// Elements between rows, between depths, and between batches, of x.
    x: [Dim; 3],
    /// Elements between depths, between columns, and between batches, of w.
    w: [u64; 3],
    /// Whether w is one matrix `[n, k]` for all rows.
    column_major: bool,
    /// Whether no kernel of a step writes w.
    of_weight: bool,
    /// Where w is of codes with scales: what they are.
    codes: Option<Codes>,
    /// The places of w and of what follows it among the arguments of a kernel in tiles.
    places: [u32; 2],
}

/// Codes that a product has as its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Codes {
    /// What a code is: e4m3 or int4.
    dtype: DType,
    /// What its scales are multiplied as.
    scales: DType,
    /// Rows and columns that share a scale.
    block: [u64; 2],
    zeros: bool,
}

fn product(dims: &[Dim]) -> Result<Dim, LowerError> {
    dims.iter().try_fold(Dim::constant(1), |product, dim| {
        match (product.as_constant(), dim.as_constant()) {
            (_, Some(c)) => Ok(product.times(c as i64)),
            (Some(c), None) => Ok(dim.times(c as i64)),
            _ => Err(LowerError("a matmul over several symbolic axes at once".to_owned())),
        }
    })
}

impl MatMulSpec {
    /// The product of these types.
    ///
    /// # Errors
    /// When the types do not make a product, or an axis other than the outermost of x is symbolic.
    pub fn new(
        transpose_lhs: bool,
        transpose_rhs: bool,
        lhs: &TensorType,
        rhs: &TensorType,
        out: &TensorType,
    ) -> Result<Self, LowerError> {
        let op = Op::MatMul { transpose_lhs, transpose_rhs };
        check_types(&op, &[lhs.clone(), rhs.clone()], std::slice::from_ref(out))
            .map_err(|e| LowerError(e.to_string()))?;
        let fixed = |dim: &Dim| {
            dim.as_constant().filter(|n| *n <= u64::from(u32::MAX)).ok_or_else(|| {
                LowerError("a matmul whose inner or column axis is symbolic".to_owned())
            })
        };
        let (l, r) = (lhs.rank(), rhs.rank());
        let (m_axis, k_axis) = if transpose_lhs { (l - 1, l - 2) } else { (l - 2, l - 1) };
        let n_axis = if transpose_rhs { r - 2 } else { r - 1 };
        let (m, depth, columns) =
            (lhs.shape[m_axis].clone(), fixed(&lhs.shape[k_axis])?, fixed(&rhs.shape[n_axis])?);
        let batch = product(&lhs.shape[..l - 2])?;
        // One matrix on the right for dense rows on the left: the batch is more rows.
        let joined = r == 2 && !transpose_lhs;
        let (rows, batch) = match joined {
            true => (product(&[batch, m.clone()])?, Dim::constant(1)),
            false => (m.clone(), batch),
        };
        let (k, one) = (Dim::constant(depth), Dim::constant(1));
        let x_batch = m.times(depth as i64);
        let x = if transpose_lhs { [one, m, x_batch] } else { [k, one, x_batch] };
        let w_batch = if r == 2 { 0 } else { depth * columns };
        let w = if transpose_rhs { [1, depth, w_batch] } else { [columns, 1, w_batch] };
        let types = [lhs.dtype, rhs.dtype, out.dtype];
        let column_major = transpose_rhs && joined;
        Ok(Self {
            types,
            rows,
            columns,
            depth,
            batch,
            x,
            w,
            column_major,
            of_weight: false,
            codes: None,
            places: [1, 2],
        })
    }

    /// The same where w is a weight: no kernel of a step writes it, so it may be read before the
    /// kernels ahead are done.
    #[must_use]
    pub fn of_weight(self) -> Self {
        Self { of_weight: true, ..self }
    }

    /// Whether a kernel of the step makes w.
    fn w_is_made(&self) -> bool {
        self.places[0] > 1
    }

    /// How the true rows follow from the counts: constant, factor, symbol.
    fn real(&self) -> Result<[u64; 3], LowerError> {
        match self.rows.terms() {
            [] => Ok([0, 0, 0]),
            &[(symbol, factor)] if factor > 0 && self.rows.constant_part() >= 0 => {
                Ok([self.rows.constant_part() as u64, factor as u64, symbol.index() as u64])
            }
            _ => Err(LowerError("a matmul whose rows are no multiple of one symbol".to_owned())),
        }
    }

    /// Parameters of the kernels for few rows: arguments, counts, rows, columns, depth, true rows.
    fn row_params(&self) -> Result<Vec<Param>, LowerError> {
        let arguments = (0..3).map(Param::Arg).chain([Param::Counts]);
        let sizes = [self.columns, self.depth].into_iter().chain(self.real()?).map(Param::size);
        Ok(arguments.chain([Param::size(self.rows.clone())]).chain(sizes).collect())
    }

    fn header(&self) -> String {
        let mut text = String::from("#include \"prelude.cuh\"\n\n");
        for (name, dtype) in ["X", "W", "Y"].into_iter().zip(self.types) {
            text.push_str(&format!("typedef {} {name};\n", storage(dtype)));
        }
        text
    }

    /// The kernel that takes any rows, strides and batches. Arguments: x, w, with scales and zeros where
    /// it is of codes, y.
    ///
    /// # Errors
    /// When the true rows do not follow from one symbol.
    pub fn general_kernel(&self) -> Result<LaunchRecipe, LowerError> {
        let mut params = self.row_params()?;
        let strides = self.x.iter().cloned().chain(self.w.map(Dim::constant));
        let strides = strides.map(|stride| Param::Scalar(Scalar::U64(stride)));
        params.splice(7..7, strides);
        if let Some(codes) = self.codes {
            return self.general_kernel_of_codes(codes);
        }
        let source = self.header() + "\n" + include_str!("general.cu");
        let grid = [
            GridAxis::of(self.columns, 64),
            GridAxis::of(self.rows.clone(), 64),
            GridAxis::of(self.batch.clone(), 1),
        ];
        let launch = LaunchRecipe::own(source, "matmul", grid, 256, params);
        Ok(LaunchRecipe { static_shared: 2 * 16 * 68 * 4, ..launch })
    }
}
