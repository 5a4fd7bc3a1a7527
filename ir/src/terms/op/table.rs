//! The op table: one list gives the enums, mnemonics, text formats and documentation of every op.

use super::Op;
use crate::dtype::DType;

/// Declares a family of ops without attributes together with their mnemonics and docs.
macro_rules! op_family {
    (
        $(#[$doc:meta])*
        $family:ident of $format:ident, $operands:literal, $keys:expr;
        $($variant:ident = $mnemonic:literal, $help:expr;)*
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

/// The elementwise ops of one operand, and all that is said of each in one place: its mnemonic, the
/// builder's method, the dtypes that it takes, about what an element costs beside an addition, whether it
/// rounds, its value in CUDA C++ and in f64 (in integers too, where it takes them), and its help.
macro_rules! unary_ops {
    ($then:ident $($head:tt)*) => { $then! { [$($head)*]
        Neg = "neg" as negate { signed, 1, exact "op_neg({a})", |x| -x } "`-x`";
        Abs = "abs" as abs { signed, 1, exact "op_abs({a})", |x| x.abs() } "`|x|`";
        Exp = "exp" as exp { floats, 12, rounded "expf({a})", f64::exp } "`e^x`";
        Log = "log" as log { floats, 12, rounded "logf({a})", f64::ln } "natural logarithm";
        Log1p = "log1p" as log1p { floats, 12, rounded "log1pf({a})", f64::ln_1p }
            "natural logarithm of `1 + x`, without the loss of a small x";
        Sqrt = "sqrt" as sqrt { floats, 12, rounded "sqrtf({a})", f64::sqrt } "square root";
        Rsqrt = "rsqrt" as rsqrt { floats, 12, rounded "op_rsqrt({a})", |x| 1.0 / x.sqrt() }
            "`1 / sqrt(x)`";
        Sin = "sin" as sin { floats, 12, rounded "sinf({a})", f64::sin } "sine of radians";
        Cos = "cos" as cos { floats, 12, rounded "cosf({a})", f64::cos } "cosine of radians";
        Tanh = "tanh" as tanh { floats, 12, rounded "tanhf({a})", f64::tanh } "hyperbolic tangent";
        // The rational approximations of FreeBSD's msun s_erf.c, within 1 ulp.
        Erf = "erf" as erf { floats, 12, rounded "erff({a})", libm::erf } "error function";
        Floor = "floor" as floor { floats, 1, exact "floorf({a})", f64::floor }
            "largest integer not above x";
        Not = "not" as logical_not { bool, 1, exact "(u8)({a} == 0)", |x| f64::from(x == 0.0) }
            "logical negation";
    } };
}
pub(crate) use unary_ops;

/// The elementwise ops of two operands, in lines as those of [`unary_ops`]. What is said of integers
/// stands behind what is said of floats, where that differs; those without a method are operators.
macro_rules! binary_ops {
    ($then:ident $($head:tt)*) => { $then! { [$($head)*]
        Add = "add" { numbers, 1, rounded "{a} + {b}" or "op_add({a}, {b})", |a, b| a + b }
            "`a + b`; integers wrap";
        Sub = "sub" { numbers, 1, rounded "{a} - {b}" or "op_sub({a}, {b})", |a, b| a - b }
            "`a - b`; integers wrap";
        Mul = "mul" { numbers, 1, rounded "{a} * {b}" or "op_mul({a}, {b})", |a, b| a * b }
            "`a * b`; integers wrap";
        Div = "div" {
            numbers, 8, rounded "{a} / {b}" or "op_div({a}, {b})",
            |a, b| a / b, |a, b| if b == 0 { 0 } else { a / b }
        } "`a / b`; integers truncate toward 0, and division by 0 gives 0";
        // `f64::max` and `min` already let a NaN lose.
        Max = "max" as maximum { numbers, 1, exact "op_max({a}, {b})", |a, b| a.max(b) }
            "the larger; a NaN loses to a number";
        Min = "min" as minimum { numbers, 1, exact "op_min({a}, {b})", |a, b| a.min(b) }
            "the smaller; a NaN loses to a number";
        And = "and" as logical_and {
            bool, 1, exact "(u8)(({a} != 0) & ({b} != 0))",
            |a, b| f64::from(a != 0.0 && b != 0.0)
        } "logical and";
        Or = "or" as logical_or {
            bool, 1, exact "(u8)(({a} != 0) | ({b} != 0))",
            |a, b| f64::from(a != 0.0 || b != 0.0)
        } "logical or";
    } };
}
pub(crate) use binary_ops;

/// The comparisons: mnemonic, the builder's method, the sign of Rust and C++, help.
macro_rules! compare_ops {
    ($then:ident $($head:tt)*) => { $then! { [$($head)*]
        Eq = "eq" as equal { == } "`a == b`; false with a NaN";
        Ne = "ne" as not_equal { != } "`a != b`; true with a NaN";
        Lt = "lt" as less { < } "`a < b`; false with a NaN";
        Le = "le" as less_equal { <= } "`a <= b`; false with a NaN";
        Gt = "gt" as greater { > } "`a > b`; false with a NaN";
        Ge = "ge" as greater_equal { >= } "`a >= b`; false with a NaN";
    } };
}
pub(crate) use compare_ops;

/// Of a word of [`unary_ops`]: what help says, or whether a dtype is meant.
macro_rules! operand_types {
    (floats) => {
        ", for floats"
    };
    (signed) => {
        ", for signed numbers"
    };
    (numbers) => {
        ""
    };
    (bool) => {
        ", for bool"
    };
    (floats, $dtype:expr) => {
        $dtype.is_float()
    };
    (signed, $dtype:expr) => {
        $dtype.is_float() || $dtype.is_index()
    };
    (numbers, $dtype:expr) => {
        $dtype != DType::Bool
    };
    (bool, $dtype:expr) => {
        $dtype == DType::Bool
    };
}

/// Of a word of [`unary_ops`] and meanings behind it: that of integers.
macro_rules! in_integers {
    (floats, $of:expr) => {
        None
    };
    (bool, $of:expr) => {
        None
    };
    ($types:ident, $of:expr) => {
        Some($of)
    };
    ($types:ident, $of:expr, $of_integers:expr) => {
        Some($of_integers)
    };
}

/// Declares a family of elementwise ops whose result has their operands' type.
macro_rules! elementwise_family {
    (
        [$(#[$doc:meta])* $family:ident of $format:ident, $operands:literal, $real:ty, $integer:ty]
        $($variant:ident = $mnemonic:literal $(as $method:ident)? {
            $types:ident, $cost:literal, $rounding:ident $cuda:literal $(or $of_integers:literal)?,
            $($of:expr),+
        } $help:literal;)*
    ) => {
        op_family! {
            $(#[$doc])*
            $family of $format, $operands, [];
            $($variant = $mnemonic, concat!($help, operand_types!($types));)*
        }

        impl $family {
            /// Whether it takes operands of `dtype`.
            pub fn takes(self, dtype: DType) -> bool {
                match self { $(Self::$variant => operand_types!($types, dtype),)* }
            }

            /// About what an element costs, besides its operands; an addition is 1.
            pub const fn cost(self) -> u64 {
                match self { $(Self::$variant => $cost,)* }
            }

            /// Whether its value always is one of its operands' dtype, so that nothing is rounded.
            pub const fn is_exact(self) -> bool {
                match self { $(Self::$variant => matches!(stringify!($rounding).as_bytes(), b"exact"),)* }
            }

            /// Its value in CUDA C++ for operands of `dtype`, before it is rounded; floats come as f32.
            /// An operand's text goes where its name stands in braces.
            pub fn cuda(self, dtype: DType) -> &'static str {
                let _is_float = dtype.is_float();
                match self { $(Self::$variant => {
                    $(if !_is_float { return $of_integers; })?
                    $cuda
                })* }
            }

            /// Its value in f64: what everything else is held against.
            pub(crate) fn in_f64(self) -> $real {
                match self { $(Self::$variant => first!($($of),+),)* }
            }

            /// Its value in integers, before it wraps; `None` where it takes none.
            pub(crate) fn in_integers(self) -> Option<$integer> {
                match self { $(Self::$variant => in_integers!($types, $($of),+),)* }
            }
        }
    };
}

macro_rules! first {
    ($first:expr $(, $other:expr)*) => {
        $first
    };
}

unary_ops! { elementwise_family
    /// Elementwise ops of one operand; the result has the operand's type.
    UnaryOp of Unary, " a", fn(f64) -> f64, fn(i128) -> i128
}

binary_ops! { elementwise_family
    /// Elementwise ops of two operands of one type; the result has that type.
    BinaryOp of Binary, " a, b", fn(f64, f64) -> f64, fn(i128, i128) -> i128
}

macro_rules! compare_family {
    ([] $($variant:ident = $mnemonic:literal as $method:ident { $sign:tt } $help:literal;)*) => {
        op_family! {
            /// Elementwise comparisons of two operands of one type; the result is bool of the same shape.
            CompareOp of Compare, " a, b", [];
            $($variant = $mnemonic, $help;)*
        }

        impl CompareOp {
            /// Its sign in Rust and in C++.
            pub const fn sign(self) -> &'static str {
                match self { $(Self::$variant => stringify!($sign),)* }
            }

            /// Whether it holds of two numbers.
            pub(crate) fn holds(self, a: f64, b: f64) -> bool {
                match self { $(Self::$variant => a $sign b,)* }
            }
        }
    };
}
compare_ops! { compare_family }

op_family! {
    /// Reductions over axes, which stay in the result with extent 1. bf16 and f16 accumulate in
    /// f32 and round once.
    ReduceOp of Reduce, " a", [AXES];
    Sum = "reduce_sum", "sum over the axes";
    Mean = "reduce_mean", "sum over the axes divided by their extent, for floats";
    Max = "reduce_max", "largest element over the axes; NaNs lose";
    Min = "reduce_min", "smallest element over the axes; NaNs lose";
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
pub(crate) const BLOCK: Key = Key { name: "block", kind: KeyKind::Axes };
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
        "writes row `rows[i]` of `[..i, ..r]` into row `slots[i]` of the state `[n, ..r]`; a slot outside the state writes nowhere; of rows with one slot one stays whole, and an input that gives two rows one slot is refused";
    MatMul = "matmul", " a, b", [TRANSPOSE_LHS, TRANSPOSE_RHS],
        "`[..b, m, k] x [..b, k, n]`, or `[.., m, k] x [k, n]`; either side transposed; float operands of any two dtypes, products and sums in f32, rounded once to the result's dtype";
    ScaledMatMul = "scaled_matmul", " x, w, scales, zeros", [BLOCK],
        "`[.., m, k] x [n, k]` transposed, where weight `(i, j)` is `(w - zero) * scale` and scale and zero are those at `(i / block[0], j / block[1])`; `w` and the zeros, which may be left out, are narrow; products and sums in f32, rounded once to the result's dtype";
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
