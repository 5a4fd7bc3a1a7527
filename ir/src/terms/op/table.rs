//! The op table: one list gives the enums, mnemonics, text formats and documentation of every op.

use super::Op;
use crate::dtype::DType;

/// Declares a family of ops without attributes together with their mnemonics and docs.
macro_rules! op_family {
    (
        $(#[$doc:meta])*
        $family:ident of $format:ident, $operands:literal, $keys:expr;
        $($variant:ident = $mnemonic:literal, $help:literal;)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
        pub enum $family {
            $(#[doc = $help] $variant,)*
        }

        impl $family {
            /// Every op of the family, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word that the textual IR has for it.
            pub const fn mnemonic(self) -> &'static str {
                match self { $(Self::$variant => $mnemonic,)* }
            }

            const TABLE: &[OpInfo] = &[$(OpInfo {
                mnemonic: $mnemonic,
                format: Format::$format(Self::$variant),
                operands: $operands,
                keys: &$keys,
                help: $help,
            }),*];
        }
    };
}

op_family! {
    /// Elementwise ops of one operand; the result has the operand's type.
    UnaryOp of Unary, " a", [];
    Neg = "neg", "`-x`, for signed numbers";
    Abs = "abs", "`|x|`, for signed numbers";
    Exp = "exp", "`e^x`, for floats";
    Log = "log", "natural logarithm, for floats";
    Sqrt = "sqrt", "square root, for floats";
    Rsqrt = "rsqrt", "`1 / sqrt(x)`, for floats";
    Sin = "sin", "sine of radians, for floats";
    Cos = "cos", "cosine of radians, for floats";
    Tanh = "tanh", "hyperbolic tangent, for floats";
    Erf = "erf", "error function, for floats";
    Floor = "floor", "largest integer not above x, for floats";
    Not = "not", "logical negation, for bool";
}

op_family! {
    /// Elementwise ops of two operands of one type; the result has that type.
    BinaryOp of Binary, " a, b", [];
    Add = "add", "`a + b`; integers wrap";
    Sub = "sub", "`a - b`; integers wrap";
    Mul = "mul", "`a * b`; integers wrap";
    Div = "div", "`a / b`; integers truncate toward 0, and division by 0 gives 0";
    Max = "max", "the larger; a NaN loses to a number";
    Min = "min", "the smaller; a NaN loses to a number";
    And = "and", "logical and, for bool";
    Or = "or", "logical or, for bool";
}

op_family! {
    /// Elementwise comparisons of two operands of one type; the result is bool of the same shape.
    CompareOp of Compare, " a, b", [];
    Eq = "eq", "`a == b`; false with a NaN";
    Ne = "ne", "`a != b`; true with a NaN";
    Lt = "lt", "`a < b`; false with a NaN";
    Le = "le", "`a <= b`; false with a NaN";
    Gt = "gt", "`a > b`; false with a NaN";
    Ge = "ge", "`a >= b`; false with a NaN";
}

op_family! {
    /// Reductions over axes, which stay in the result with extent 1. bf16 and f16 accumulate in
    /// f32 and round once.
    ReduceOp of Reduce, " a", [AXES];
    Sum = "reduce_sum", "sum over the axes";
    Mean = "reduce_mean", "sum over the axes divided by their extent, for floats";
    Max = "reduce_max", "largest element over the axes; NaNs lose";
    Min = "reduce_min", "smallest element over the axes; NaNs lose";
}

impl UnaryOp {
    /// Whether it takes operands of `dtype`.
    pub fn takes(self, dtype: DType) -> bool {
        match self {
            Self::Neg | Self::Abs => dtype.is_float() || dtype.is_index(),
            Self::Not => dtype == DType::Bool,
            Self::Exp
            | Self::Log
            | Self::Sqrt
            | Self::Rsqrt
            | Self::Sin
            | Self::Cos
            | Self::Tanh
            | Self::Erf
            | Self::Floor => dtype.is_float(),
        }
    }
}

impl BinaryOp {
    /// Whether it takes operands of `dtype`.
    pub fn takes(self, dtype: DType) -> bool {
        match self {
            Self::And | Self::Or => dtype == DType::Bool,
            Self::Add | Self::Sub | Self::Mul | Self::Div | Self::Max | Self::Min => {
                dtype != DType::Bool
            }
        }
    }
}

/// What is written behind an attribute's name, and whether it may be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyKind {
    /// `axis=1`; must be given.
    Number,
    /// `axes=[0, 1]`; must be given.
    Axes,
    /// `transpose_rhs`; given or not.
    Flag,
}

/// An attribute of a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    /// What the text calls it.
    pub(crate) name: &'static str,
    /// What its value has to be.
    pub(crate) kind: KeyKind,
}

pub(crate) const AXIS: Key = Key { name: "axis", kind: KeyKind::Number };
pub(crate) const AXES: Key = Key { name: "axes", kind: KeyKind::Axes };
pub(crate) const PERM: Key = Key { name: "perm", kind: KeyKind::Axes };
pub(crate) const START: Key = Key { name: "start", kind: KeyKind::Number };
pub(crate) const TRANSPOSE_LHS: Key = Key { name: "transpose_lhs", kind: KeyKind::Flag };
pub(crate) const TRANSPOSE_RHS: Key = Key { name: "transpose_rhs", kind: KeyKind::Flag };

/// A row of the op table.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// The word that the textual IR has for the op.
    pub mnemonic: &'static str,
    /// How its operands and attributes are written.
    pub format: Format,
    /// How operands are written behind the mnemonic, for the document.
    pub(crate) operands: &'static str,
    /// Its attributes, in the order in which they print.
    pub(crate) keys: &'static [Key],
    /// What it computes, with the rule for its types.
    pub help: &'static str,
}

/// Declares the ops that are in no family, each with how it is written, and with it the formats.
macro_rules! other_ops {
    ($($variant:ident = $mnemonic:literal, $operands:literal, $keys:expr, $help:literal;)*) => {
        /// How an op's operands and attributes are written, and which [`Op`] they make.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Format {
            /// `neg a`
            Unary(UnaryOp),
            /// `add a, b`
            Binary(BinaryOp),
            /// `lt a, b`
            Compare(CompareOp),
            /// `reduce_sum a {axes=[0, 1]}`
            Reduce(ReduceOp),
            $(#[doc = concat!("`", $mnemonic, $operands, "`")] $variant,)*
        }

        impl Op {
            /// Its row of the op table.
            pub fn format(&self) -> Format {
                match self {
                    Self::Unary(op) => Format::Unary(*op),
                    Self::Binary(op) => Format::Binary(*op),
                    Self::Compare(op) => Format::Compare(*op),
                    Self::Reduce { op, .. } => Format::Reduce(*op),
                    $(Self::$variant { .. } => Format::$variant,)*
                }
            }
        }

        const OTHERS: &[OpInfo] = &[$(OpInfo {
            mnemonic: $mnemonic,
            format: Format::$variant,
            operands: $operands,
            keys: &$keys,
            help: $help,
        }),*];
    };
}

other_ops! {
    Select = "select", " c, a, b", [], "`c ? a : b` elementwise; `c` is bool, all shapes are equal";
    Cast = "cast", " a", [],
        "each element rounded to the result's dtype; floats to integers truncate and saturate, NaN becomes 0";
    ArgMax = "argmax", " a", [AXIS],
        "i32 index of the largest element along `axis`, which is dropped; the lowest index wins a tie, NaNs lose";
    TopK = "top_k", " a", [AXIS],
        "the largest elements along `axis` in descending order and their i32 indices; how many is the results' extent; ties and NaNs as in argmax";
    Broadcast = "broadcast", " a", [],
        "repeats axes of extent 1 and adds outer axes to reach the result's shape";
    Reshape = "reshape", " a", [], "the same elements in row-major order under the result's shape";
    Permute = "permute", " a", [PERM], "axis `i` of the result is axis `perm[i]` of the operand";
    Slice = "slice", " a", [AXIS, START],
        "elements `start..start + n` along `axis`, where `n` is the result's extent";
    Concat = "concat", " a, b, ..", [AXIS], "the operands one after the other along `axis`";
    Gather = "gather", " table, indices", [],
        "rows of the table `[n, ..r]` at `indices [..i]`, giving `[..i, ..r]`; an index is clamped to the table";
    Scatter = "scatter", " mut state, slots, rows", [],
        "writes row `rows[i]` of `[..i, ..r]` into row `slots[i]` of the state `[n, ..r]`; a slot outside the state writes nowhere; of rows with one slot one stays, on a GPU element by element, and an input that gives two rows one slot is refused";
    MatMul = "matmul", " a, b", [TRANSPOSE_LHS, TRANSPOSE_RHS],
        "`[..b, m, k] x [..b, k, n]`, or `[.., m, k] x [k, n]`; either side transposed; float operands of any two dtypes, products and sums in f32, rounded once to the result's dtype";
    Iota = "iota", "", [AXIS], "each element is its index along `axis`";
    Literal = "literal", " [1.0, 2.0]", [], "a constant of static shape";
    Region = "region", " over T (%a: row v0, %w: w0, %s: mut s0) { .. }", [],
        "a row program: its body runs once for each row of the outer symbol";
    Custom = "custom", " \"ns.name\" a, mut s0 {key=1} rows mixed split", [],
        "an op defined outside the IR; its whole signature is in the text";
}

/// Every op, in table order.
pub fn op_table() -> impl Iterator<Item = OpInfo> {
    let families = [UnaryOp::TABLE, BinaryOp::TABLE, CompareOp::TABLE, ReduceOp::TABLE];
    families.into_iter().chain([OTHERS]).flatten().copied()
}

/// The table row of `mnemonic`.
pub fn op_info(mnemonic: &str) -> Option<OpInfo> {
    op_table().find(|info| info.mnemonic == mnemonic)
}
