//! The op table: one list gives the enums, mnemonics, text formats and documentation of every op.

use crate::dtype::DType;

/// Declares a family of ops without attributes together with their mnemonics and docs.
macro_rules! op_family {
    ($(#[$doc:meta])* $family:ident { $($variant:ident = $mnemonic:literal, $help:literal;)* }) => {
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

            /// What it computes.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

op_family! {
    /// Elementwise ops of one operand; the result has the operand's type.
    UnaryOp {
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
}

op_family! {
    /// Elementwise ops of two operands of one type; the result has that type.
    BinaryOp {
        Add = "add", "`a + b`; integers wrap";
        Sub = "sub", "`a - b`; integers wrap";
        Mul = "mul", "`a * b`; integers wrap";
        Div = "div", "`a / b`; integers truncate toward 0, and division by 0 gives 0";
        Max = "max", "the larger; a NaN loses to a number";
        Min = "min", "the smaller; a NaN loses to a number";
        And = "and", "logical and, for bool";
        Or = "or", "logical or, for bool";
    }
}

op_family! {
    /// Elementwise comparisons of two operands of one type; the result is bool of the same shape.
    CompareOp {
        Eq = "eq", "`a == b`; false with a NaN";
        Ne = "ne", "`a != b`; true with a NaN";
        Lt = "lt", "`a < b`; false with a NaN";
        Le = "le", "`a <= b`; false with a NaN";
        Gt = "gt", "`a > b`; false with a NaN";
        Ge = "ge", "`a >= b`; false with a NaN";
    }
}

op_family! {
    /// Reductions over axes, which stay in the result with extent 1. bf16 and f16 accumulate in
    /// f32 and round once.
    ReduceOp {
        Sum = "reduce_sum", "sum over the axes";
        Mean = "reduce_mean", "sum over the axes divided by their extent, for floats";
        Max = "reduce_max", "largest element over the axes; NaNs lose";
        Min = "reduce_min", "smallest element over the axes; NaNs lose";
    }
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

/// How an op's operands and attributes are written, and which [`super::Op`] they make.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// `neg a`
    Unary(UnaryOp),
    /// `add a, b`
    Binary(BinaryOp),
    /// `lt a, b`
    Compare(CompareOp),
    /// `select c, a, b`
    Select,
    /// `cast a`
    Cast,
    /// `reduce_sum a {axes=[0, 1]}`
    Reduce(ReduceOp),
    /// `argmax a {axis=1}`
    ArgMax,
    /// `top_k a {axis=1}`
    TopK,
    /// `broadcast a`
    Broadcast,
    /// `reshape a`
    Reshape,
    /// `permute a {perm=[1, 0]}`
    Permute,
    /// `slice a {axis=1, start=64}`
    Slice,
    /// `concat a, b, c {axis=1}`
    Concat,
    /// `gather table, indices`
    Gather,
    /// `scatter mut state, slots, rows`
    Scatter,
    /// `matmul a, b {transpose_rhs}`
    MatMul,
    /// `iota {axis=0}`
    Iota,
    /// `literal [1.0, 2.0]`
    Literal,
    /// `region over T (%a: row v1, %w: w0, %s: mut s0) { ... ret v }`
    Region,
    /// `custom "ns.name" v1, mut s0 {key=1.0} rows mixed split`
    Custom,
}

/// A row of the op table.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// The word that the textual IR has for the op.
    pub mnemonic: &'static str,
    /// How its operands and attributes are written.
    pub format: Format,
    /// What it computes, with the rule for its types.
    pub help: &'static str,
}

impl OpInfo {
    const fn new(mnemonic: &'static str, format: Format, help: &'static str) -> Self {
        Self { mnemonic, format, help }
    }
}

/// The ops that are not in an elementwise or reduction family.
const STRUCTURAL: &[OpInfo] = &[
    OpInfo::new(
        "select",
        Format::Select,
        "`c ? a : b` elementwise; `c` is bool, all shapes are equal",
    ),
    OpInfo::new(
        "cast",
        Format::Cast,
        "each element rounded to the result's dtype; floats to integers truncate and saturate, NaN becomes 0",
    ),
    OpInfo::new(
        "argmax",
        Format::ArgMax,
        "i32 index of the largest element along `axis`, which is dropped; the lowest index wins a tie, NaNs lose",
    ),
    OpInfo::new(
        "top_k",
        Format::TopK,
        "the largest elements along `axis` in descending order and their i32 indices; how many is the results' extent; ties and NaNs as in argmax",
    ),
    OpInfo::new(
        "broadcast",
        Format::Broadcast,
        "repeats axes of extent 1 and adds outer axes to reach the result's shape",
    ),
    OpInfo::new(
        "reshape",
        Format::Reshape,
        "the same elements in row-major order under the result's shape",
    ),
    OpInfo::new(
        "permute",
        Format::Permute,
        "axis `i` of the result is axis `perm[i]` of the operand",
    ),
    OpInfo::new(
        "slice",
        Format::Slice,
        "elements `start..start + n` along `axis`, where `n` is the result's extent",
    ),
    OpInfo::new("concat", Format::Concat, "the operands one after the other along `axis`"),
    OpInfo::new(
        "gather",
        Format::Gather,
        "rows of the table `[n, ..r]` at `indices [..i]`, giving `[..i, ..r]`; an index is clamped to the table",
    ),
    OpInfo::new(
        "scatter",
        Format::Scatter,
        "writes row `rows[i]` of `[..i, ..r]` into row `slots[i]` of the state `[n, ..r]`; a slot outside the state writes nowhere",
    ),
    OpInfo::new(
        "matmul",
        Format::MatMul,
        "`[..b, m, k] x [..b, k, n]`, or `[.., m, k] x [k, n]`; either side transposed; float operands of any two dtypes, products and sums in f32, rounded once to the result's dtype",
    ),
    OpInfo::new("iota", Format::Iota, "each element is its index along `axis`"),
    OpInfo::new("literal", Format::Literal, "a constant of static shape"),
    OpInfo::new(
        "region",
        Format::Region,
        "a row program: its body runs once for each row of the outer symbol",
    ),
    OpInfo::new(
        "custom",
        Format::Custom,
        "an op defined outside the IR; its whole signature is in the text",
    ),
];

/// Every op, in table order.
pub fn op_table() -> impl Iterator<Item = OpInfo> {
    let unary = UnaryOp::ALL.iter().map(|&op| (op.mnemonic(), Format::Unary(op), op.help()));
    let binary = BinaryOp::ALL.iter().map(|&op| (op.mnemonic(), Format::Binary(op), op.help()));
    let compare = CompareOp::ALL.iter().map(|&op| (op.mnemonic(), Format::Compare(op), op.help()));
    let reduce = ReduceOp::ALL.iter().map(|&op| (op.mnemonic(), Format::Reduce(op), op.help()));
    let families = unary.chain(binary).chain(compare).chain(reduce);
    let families = families.map(|(mnemonic, format, help)| OpInfo::new(mnemonic, format, help));
    families.chain(STRUCTURAL.iter().copied())
}

/// The table row of `mnemonic`.
pub fn op_info(mnemonic: &str) -> Option<OpInfo> {
    op_table().find(|info| info.mnemonic == mnemonic)
}
