//! The region before, where it makes the one token's queries, keys and values: part of the kernel
//! that attends.

use super::super::region::{
    AbsorbedRow, OperandRole, PartParam, RegionPart, RowMakers, ScatteredPart,
};
use super::super::text::storage;
use super::Shape;
use crate::op::cuda::CudaRegionBefore;
use piecewise_ir::region::ParamMode;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The region in the kernel's text.
pub(super) struct Taken {
    /// What the source starts with.
    pub(super) text: String,
    /// Operands of the region, in the order of the kernel's parameters.
    pub(super) operands: Vec<usize>,
    /// Those of them that are read before the wait.
    pub(super) ahead: Vec<usize>,
    /// Bytes of dynamic shared memory from `at` on.
    pub(super) shared: u64,
}

/// A row that the region makes, and the operands of the region that are its own.
struct Made {
    row: AbsorbedRow,
    operands: Vec<usize>,
}

impl Made {
    fn of(part: &RegionPart, roles: &[OperandRole], makers: RowMakers<'_>) -> Option<Self> {
        let operand = |param: &PartParam| match *param {
            PartParam::Operand(i) => Some(i),
            PartParam::Result(_) => None,
        };
        let operands: Vec<usize> = part.params.iter().map(operand).collect::<Option<_>>()?;
        let roles: Vec<OperandRole> = operands.iter().map(|&i| roles[i]).collect();
        let row = AbsorbedRow::of(&part.region, &roles, makers).ok()?;
        Some(Self { row, operands })
    }
}

impl Taken {
    /// The region, if it makes queries, keys and values of one row and nothing else, from what the
    /// `threads` threads of a block can make of them at once; shared memory is taken from byte `at`
    /// on.
    pub(super) fn of(
        shape: &Shape,
        before: &CudaRegionBefore<'_>,
        threads: u64,
        at: u64,
    ) -> Option<Self> {
        if std::env::var_os("PW_TAKEN").is_some_and(|v| v == "0") {
            return None;
        }
        let CudaRegionBefore { region, roles, results, shared } = *before;
        let state = |operand| shared.iter().position(|&of| of == Some(operand));
        let (keys, values) = (state(1)?, state(2)?);
        let of = |operand| RegionPart::scattered(region, operand);
        let ([0], ScatteredPart { part: key, slots }, ScatteredPart { part: value, slots: others }) =
            (results, of(keys)?, of(values)?)
        else {
            return None;
        };
        let mutated = region.params.iter().filter(|mode| **mode == ParamMode::Mut);
        if region.body.outputs().len() != 1
            || slots != others
            || !roles[slots].staged
            || mutated.count() != 2
        {
            return None;
        }
        let makers =
            |name, threads, group| RowMakers { name, threads, parts: shape.kv_heads, group };
        let query = RegionPart::result(region, 0)?;
        let query = Made::of(&query, roles, makers("query", threads / 2, 0))?;
        let key = Made::of(&key, roles, makers("key", 32, 1))?;
        let value = Made::of(&value, roles, makers("value", 32, 2))?;
        let widths = [
            (&query, shape.heads * shape.dim, 0),
            (&key, shape.kv_heads * shape.dim, 1),
            (&value, shape.kv_heads * shape.value_dim, 1),
        ];
        let fits = |(made, elements, dtype): &(&Made, u64, usize)| {
            made.row.elements == *elements && made.row.storage == storage(shape.dtypes[*dtype])
        };
        let makers = query.row.threads + key.row.threads + value.row.threads;
        if !widths.iter().all(fits) || makers > threads {
            return None;
        }
        let size = shape.dtypes[0].size() as u64;
        let fresh = (shape.group() * shape.dim + shape.dim + shape.value_dim) * size;
        let mut bytes = at + fresh.next_multiple_of(16);
        let mut text = String::from("#define TAKEN\n");
        if std::env::var_os("PW_WAIT_FIRST").is_some() {
            text.push_str("#define WAIT_FIRST\n");
        }
        let mut types = BTreeMap::from([(slots, "const i32*".to_owned())]);
        let mut ahead = vec![slots];
        for (name, made) in [("QUERY", &query), ("KEY", &key), ("VALUE", &value)] {
            let operands: Vec<String> = made.operands.iter().map(|i| format!("r{i}")).collect();
            let _ = write!(
                text,
                "#define {name}_THREADS {}\n#define {name}_OPERANDS {}\n#define {name}_POOL {bytes}\n",
                made.row.threads,
                operands.join(", "),
            );
            bytes += made.row.shared.next_multiple_of(16);
            types.extend(made.operands.iter().copied().zip(made.row.operands.iter().cloned()));
            ahead.extend(made.row.ahead.iter().map(|&i| made.operands[i]));
        }
        let operands: Vec<usize> = types.keys().copied().collect();
        let of_region: Vec<String> = types.iter().map(|(i, ty)| format!("{ty} r{i}")).collect();
        let _ = write!(
            text,
            "#define FRESH {at}\n#define SLOTS r{slots}\n#define PARAMETERS K* k, K* v, \
             const i32* table, const i32* lengths, const i32* starts, const i32* query_lengths, \
             Q* out, {}\n",
            of_region.join(", ")
        );
        for made in [&query, &key, &value] {
            text.push_str(&made.row.text);
        }
        ahead.sort_unstable();
        ahead.dedup();
        Some(Self { text, operands, ahead, shared: bytes - at })
    }
}
