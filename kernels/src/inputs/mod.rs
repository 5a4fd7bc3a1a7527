//! Inputs of a step: what an op wants to be told of the batch, declared with the op and filled on
//! the host before each step.
//!
//! An input of a graph names a role. Whoever computes with it declares a [`StepInput`] of that role
//! in the [`OpRegistry`](crate::op::OpRegistry): its element type, shape and padding, and a function
//! that fills it from a [`BatchView`]. The ops of this crate declare theirs in the same way, and so
//! does the engine.
//!
//! ```
//! use piecewise_ir::dtype::DType;
//! use piecewise_kernels::inputs::{Extent, StepInput};
//! use piecewise_kernels::op::OpRegistry;
//! use piecewise_kernels::roles;
//!
//! // For each sequence, how much of it earlier steps have computed.
//! let seen = StepInput::new("my.seen", DType::I32, [Extent::of(roles::SEQUENCES)], 0.0)
//!     .filled(|batch, out| {
//!         out.extend(batch.sequences().map(|sequence| sequence.start() as i32));
//!         Ok(())
//!     });
//! let mut registry = OpRegistry::builtin();
//! registry.declare_inputs("my.op", [seen]);
//! ```

mod batch_view;
mod carried;
mod controls;
mod element;
mod engine;
mod pages;
mod sampling;
mod writer;

pub use batch_view::{BatchView, FollowingIds, SequenceInStep, SequenceView};
pub use carried::{TokenValues, ValuesInStep, ValuesView};
pub(crate) use controls::{
    BIASED, CONTROL_WORDS, GIVEN, LIKELIHOODS, MASKED, OF_PROMPT, TALLIED, TIMES, WEIGHED,
};
pub use controls::{
    DETAIL_WORDS, Details, MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS, NO_ID, SampleControls,
    fill_token_row, mask_words, token_words,
};
pub use element::Element;
pub use engine::{DECLARED_BY, engine_inputs};
pub use pages::PAGE_ROWS;
pub use sampling::Sampling;
use writer::Bytes;
pub use writer::InputWriter;

use piecewise_ir::dim::{Dim, Symbols};
use piecewise_ir::dtype::DType;
use piecewise_ir::literal::Scalar;
use piecewise_ir::types::TensorType;
use std::borrow::Cow;
use std::sync::Arc;

/// The extent of an axis of a step's input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Extent {
    /// `times` the symbol of role `of`, and `plus` more.
    Symbolic {
        /// The role of the symbol that the extent follows, such as `tokens`.
        of: Cow<'static, str>,
        /// At least 1.
        times: i64,
        /// What comes on top: 1 for the ends of consecutive ranges.
        plus: i64,
    },
    /// Any constant: the graph chooses.
    AnyConstant,
    /// Fixed, whatever a step brings.
    Constant(u64),
}

impl Extent {
    /// The symbol of a role, such as [`roles::SEQUENCES`](crate::roles::SEQUENCES).
    pub fn of(role: impl Into<Cow<'static, str>>) -> Self {
        Self::Symbolic { of: role.into(), times: 1, plus: 0 }
    }

    fn fits(&self, dim: &Dim, symbols: &Symbols) -> bool {
        match self {
            Self::AnyConstant => dim.as_constant().is_some(),
            Self::Constant(n) => dim.as_constant() == Some(*n),
            Self::Symbolic { of, times, plus } => {
                let &[(symbol, factor)] = dim.terms() else { return false };
                // A symbol without a role stands for tokens.
                let role = symbols.get(symbol).map(|decl| decl.role.as_deref());
                let role = role.map(|role| role.unwrap_or(crate::roles::TOKENS));
                role == Some(&**of) && factor == *times && dim.constant_part() == *plus
            }
        }
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AnyConstant => f.write_str("constant"),
            Self::Constant(n) => write!(f, "{n}"),
            Self::Symbolic { of, times, plus } => {
                if *times != 1 {
                    write!(f, "{times}*")?;
                }
                f.write_str(of)?;
                if *plus != 0 { write!(f, "{plus:+}") } else { Ok(()) }
            }
        }
    }
}

/// Fills an input from the batch; what it says is wrong becomes an error that names op and input.
pub type FillInput =
    dyn Fn(&BatchView<'_>, &mut InputWriter<'_>) -> Result<(), String> + Send + Sync;

/// An input that is filled for each step. A clone is the same declaration.
#[derive(Clone, derive_more::Debug)]
#[debug("StepInput(\"{role}\": {self})")]
pub struct StepInput {
    role: Cow<'static, str>,
    dtype: DType,
    shape: Vec<Extent>,
    padding: Scalar,
    fill: Option<Arc<FillInput>>,
}

impl StepInput {
    /// An input of `role` that nothing fills yet. `padding` is what elements past the true counts
    /// hold; where they are indices, choose one that is safe to follow, or -1 where the op skips
    /// that.
    pub fn new(
        role: impl Into<Cow<'static, str>>,
        dtype: DType,
        shape: impl IntoIterator<Item = Extent>,
        padding: f64,
    ) -> Self {
        let shape = shape.into_iter().collect();
        Self { role: role.into(), dtype, shape, padding: Scalar::new(dtype, padding), fill: None }
    }

    /// Fills it with `fill`, which is called once for each step and must write every element of
    /// the true counts, row-major. It may not block or allocate: it runs between two steps.
    #[must_use]
    pub fn filled(
        mut self,
        fill: impl Fn(&BatchView<'_>, &mut InputWriter<'_>) -> Result<(), String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.fill = Some(Arc::new(fill));
        self
    }

    /// The role by which an input of a graph names it.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Of the inputs of a graph that name the role.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[Extent] {
        &self.shape
    }

    /// What elements past the true counts hold.
    pub fn padding(&self) -> Scalar {
        self.padding
    }

    /// Whether a function fills it; one without has to be given by whoever steps the model.
    pub fn is_filled(&self) -> bool {
        self.fill.is_some()
    }

    /// Whether an input of type `ty` in a graph with these symbols is one of this declaration.
    pub fn fits(&self, ty: &TensorType, symbols: &Symbols) -> bool {
        ty.dtype == self.dtype
            && ty.rank() == self.shape.len()
            && self.shape.iter().zip(&ty.shape).all(|(extent, dim)| extent.fits(dim, symbols))
    }

    /// Whether `other` is this declaration and not merely one of the same role.
    pub fn is(&self, other: &Self) -> bool {
        let same_fill = match (&self.fill, &other.fill) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        same_fill && self.to_string() == other.to_string() && self.role == other.role
    }

    /// Replaces `bytes` by the elements for `batch` in a shape of these dimensions. Returns the
    /// columns of each row, where [`InputWriter::shorten_rows`] made them fewer.
    ///
    /// # Errors
    /// What the function that fills it says, or a sentence where it writes more or fewer elements
    /// than the dimensions make, elements of another type, or there is no memory for so many;
    /// `bytes` then mean nothing.
    pub fn fill(
        &self,
        batch: &BatchView<'_>,
        dims: &[u64],
        bytes: &mut Vec<u8>,
    ) -> Result<Option<u64>, String> {
        self.write(batch, dims, Bytes::Grown(bytes))
    }

    /// The same in place: over `place`, which has as many bytes as the dimensions make. Rows that are
    /// made shorter follow one another there, too, and the bytes past them stay.
    ///
    /// # Errors
    /// As for [`Self::fill`].
    pub fn fill_place(
        &self,
        batch: &BatchView<'_>,
        dims: &[u64],
        place: &mut [u8],
    ) -> Result<Option<u64>, String> {
        self.write(batch, dims, Bytes::Placed(place))
    }

    fn write(
        &self,
        batch: &BatchView<'_>,
        dims: &[u64],
        bytes: Bytes<'_>,
    ) -> Result<Option<u64>, String> {
        let Some(fill) = &self.fill else { return Err("nothing fills it".to_owned()) };
        let mut writer = InputWriter::new(self.dtype, dims, bytes)?;
        fill(batch, &mut writer)?;
        writer.finish()
    }
}

impl std::fmt::Display for StepInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape: Vec<_> = self.shape.iter().map(Extent::to_string).collect();
        write!(f, "{}[{}] padded with {}", self.dtype, shape.join(","), self.padding.to_f64())
    }
}

#[cfg(test)]
mod tests;
