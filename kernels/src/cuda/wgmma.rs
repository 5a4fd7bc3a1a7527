//! The text of functions that multiply tiles by a warpgroup of Hopper: one instruction names all
//! registers of a sum, so that each width is a text of its own.

use std::fmt::Write;

/// Where the rows of A are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lhs {
    /// In shared memory, and so are those of B, as long as the depth.
    Shared,
    /// In registers, as fragments of `m16n8k16`; the rows of B are steps of the depth.
    Registers,
}

/// `multiply_add_tile(sum, a, b, add)`: a warpgroup's sum [64, columns] of f32, plus what it was
/// where `add` is not 0, of A [64, 16] and B [16, columns] of `dtype` (`bf16` or `f16`). On the way
/// until it is waited for; goes with `hopper.cuh`.
pub(super) fn multiply_add_tile(dtype: &str, columns: u64, lhs: Lhs) -> String {
    let sums = columns / 2;
    let list = |first: u64, count: u64| {
        (first..first + count).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ")
    };
    let (params, a, inputs, flags) = match lhs {
        Lhs::Shared => ("u64 a", list(sums, 1), "\"l\"(a)", "1, 1, 0, 0"),
        Lhs::Registers => (
            "u32 a0, u32 a1, u32 a2, u32 a3",
            format!("{{{}}}", list(sums, 4)),
            "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3)",
            "1, 1, 1",
        ),
    };
    let b = sums + if lhs == Lhs::Shared { 1 } else { 4 };
    let mut text = format!(
        "DEVICE void multiply_add_tile(float (&sum)[{sums}], {params}, u64 b, u32 add) {{\n  \
         asm volatile(\"{{.reg .pred p; setp.ne.u32 p, %{}, 0;\"\n               \
         \" wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype}\"\n               \
         \" {{{}}}, {a}, %{b}, p, {flags};}}\"\n               :",
        b + 1,
        list(0, sums),
    );
    for i in 0..sums {
        let _ = write!(text, "{} \"+f\"(sum[{i}])", if i == 0 { "" } else { "," });
    }
    let _ = writeln!(text, "\n               : {inputs}, \"l\"(b), \"r\"(add));\n}}");
    text
}
