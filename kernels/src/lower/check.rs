//! The check that makes a row program safe to run, whoever made its bytes: every access lies
//! inside its place, every place inside its memory, and dtypes are what the steps take.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::error::{LowerError, fail, narrow};
use super::row_program::{
    ArgKind, MAX_LOOPS, MapOp, Nest, PlaceKind, RowProgram, RowStep, StridedAccess, lane_of,
};
use piecewise_ir::dtype::DType;

impl RowProgram {
    /// Checks that running it can only touch its arguments, scratch and constants.
    ///
    /// # Errors
    /// A sentence that names what is outside; such a program must not be run.
    pub fn check(&self) -> Result<(), LowerError> {
        let work = self.work;
        if work.tile_rows == 0 || work.temp_bytes_per_row.checked_mul(work.tile_rows).is_none() {
            return fail("a row program whose tile has no rows or no size");
        }
        let dtypes = self.args.iter().map(|arg| arg.dtype);
        let mut dtypes = dtypes.chain(self.places.iter().map(|place| place.dtype));
        if let Some(dtype) = dtypes.find(|dtype| dtype.is_narrow()) {
            return fail(narrow(dtype));
        }
        for (i, place) in self.places.iter().enumerate() {
            let Some(bytes) = place.elements.checked_mul(place.dtype.size() as u64) else {
                return fail(format!("place {i} is too large"));
            };
            let strided = place.row_stride == place.elements;
            let fits = match place.kind {
                PlaceKind::Arg(arg) => self.args.get(arg as usize).is_some_and(|decl| {
                    let row = decl.kind == ArgKind::Row;
                    decl.dtype == place.dtype
                        && decl.elements == place.elements
                        && (if row { strided } else { place.row_stride == 0 })
                }),
                PlaceKind::Temp(at) => {
                    strided
                        && at % 8 == 0
                        && at.checked_add(bytes).is_some_and(|end| end <= work.temp_bytes_per_row)
                        || !self.is_used(i as u32)
                }
                PlaceKind::Constant(word) => {
                    let end = word.checked_add(bytes.div_ceil(8));
                    place.row_stride == 0 && end.is_some_and(|e| e <= self.constants.len() as u64)
                }
            };
            if !fits {
                return fail(format!("place {i} lies outside its memory"));
            }
        }
        for (i, step) in self.steps.iter().enumerate() {
            self.check_step(step).map_err(|e| LowerError(format!("step {i}: {e}")))?;
        }
        self.check_states()
    }

    fn is_used(&self, place: u32) -> bool {
        self.steps.iter().any(|s| s.reads().contains(&place) || s.writes().contains(&place))
    }

    fn dtype(&self, access: &StridedAccess) -> Result<DType, LowerError> {
        match self.places.get(access.place as usize) {
            Some(place) => Ok(place.dtype),
            None => fail("a place that does not exist"),
        }
    }

    fn expect(&self, access: &StridedAccess, dtype: DType) -> Result<(), LowerError> {
        match self.dtype(access)? == dtype {
            true => Ok(()),
            false => fail(format!("{} where {dtype} is needed", self.dtype(access)?)),
        }
    }

    fn expect_index(&self, access: &StridedAccess) -> Result<(), LowerError> {
        match self.dtype(access)?.is_index() {
            true => Ok(()),
            false => fail("an index that is neither i32 nor i64"),
        }
    }

    fn writable(&self, place: u32) -> Result<(), LowerError> {
        let ok = match self.places.get(place as usize).map(|p| p.kind) {
            Some(PlaceKind::Arg(arg)) => self.args.get(arg as usize).is_some_and(|a| a.written),
            Some(PlaceKind::Temp(_)) => true,
            _ => false,
        };
        if ok { Ok(()) } else { fail("writes a place that may only be read") }
    }

    fn is_table(&self, place: u32) -> bool {
        let arg = self.places.get(place as usize).and_then(|place| match place.kind {
            PlaceKind::Arg(arg) => self.args.get(arg as usize),
            PlaceKind::Temp(_) | PlaceKind::Constant(_) => None,
        });
        arg.is_some_and(|decl| decl.kind == ArgKind::Table)
    }

    /// Checks that the elements of an access over `extents` lie inside its place.
    fn inside(&self, access: &StridedAccess, extents: &[u64]) -> Result<(), LowerError> {
        let Some(place) = self.places.get(access.place as usize) else {
            return fail("a place that does not exist");
        };
        if self.is_table(access.place) {
            return fail("a table may only be gathered from or scattered into");
        }
        if access.strides.len() < extents.len() {
            return fail("an access with too few strides");
        }
        if extents.contains(&0) {
            return Ok(());
        }
        let last = extents
            .iter()
            .zip(&access.strides)
            .map(|(&e, &s)| u128::from(e - 1) * u128::from(s))
            .sum::<u128>()
            + u128::from(access.offset);
        if last >= u128::from(place.elements) {
            return fail(format!(
                "an access up to element {last} of a place of {}",
                place.elements
            ));
        }
        Ok(())
    }

    fn check_nest(nest: &Nest) -> Result<(), LowerError> {
        let elements = nest.extents.iter().try_fold(1u64, |n, &e| n.checked_mul(e));
        match nest.extents.len() {
            1..=MAX_LOOPS if elements.is_some_and(|n| n <= 1 << 48) => Ok(()),
            _ => fail(format!("a nest of {} loops; at most {MAX_LOOPS}", nest.extents.len())),
        }
    }

    fn check_folding(&self, nest: &Nest, accesses: &[&StridedAccess]) -> Result<(), LowerError> {
        if !nest.fold_rows {
            return Ok(());
        }
        let folds = nest.extents.len() == 1
            && accesses.iter().all(|a| {
                let place = &self.places[a.place as usize];
                a.strides[0].checked_mul(nest.extents[0]) == Some(place.row_stride)
            });
        if folds { Ok(()) } else { fail("rows that do not follow one another are folded") }
    }

    fn check_step(&self, step: &RowStep) -> Result<(), LowerError> {
        for place in step.writes() {
            self.writable(place)?;
        }
        match step {
            RowStep::Map { op, nest, inputs, out } => {
                Self::check_nest(nest)?;
                let mut all: Vec<&StridedAccess> = inputs.iter().collect();
                all.push(out);
                for access in &all {
                    self.inside(access, &nest.extents)?;
                    if access.strides.len() != nest.extents.len() {
                        return fail("an access with strides for other loops");
                    }
                }
                self.check_folding(nest, &all)?;
                self.check_map(*op, inputs, out)
            }
            RowStep::Reduce { nest, kept, input, out, .. } => {
                Self::check_nest(nest)?;
                let kept = *kept as usize;
                if kept >= nest.extents.len() || nest.fold_rows {
                    return fail("a reduction without a reduced loop");
                }
                self.inside(input, &nest.extents)?;
                self.inside(out, &nest.extents[..kept])?;
                self.expect(out, self.dtype(input)?)
            }
            RowStep::TopK { nest, k, input, values, indices, best_values, best_indices } => {
                Self::check_nest(nest)?;
                let last = nest.extents.len() - 1;
                self.inside(input, &nest.extents)?;
                if nest.extents[last] < *k || *k == 0 || nest.fold_rows {
                    return fail("a search for more elements than there are");
                }
                let mut found = nest.extents[..last].to_vec();
                found.push(*k);
                for access in values.iter().chain([indices]) {
                    if access.strides.len() != found.len() {
                        return fail("an access with strides for other loops");
                    }
                    self.inside(access, &found)?;
                }
                for access in [best_values, best_indices] {
                    if access.strides != [1] {
                        return fail("found elements that do not lie side by side");
                    }
                    self.inside(access, &[*k])?;
                }
                self.expect(best_values, lane_of(self.dtype(input)?))?;
                self.expect(best_indices, DType::I32)
            }
            RowStep::Gather { table, offset, extent, row, nest, indices, out } => {
                Self::check_nest(nest)?;
                self.expect_index(indices)?;
                self.inside(indices, &nest.extents)?;
                self.check_rows(*table, *offset, *extent, *row)?;
                self.check_block(*out, 0, nest, *row, *table)
            }
            RowStep::Scatter { table, extent, row, nest, slots, rows } => {
                Self::check_nest(nest)?;
                self.expect_index(slots)?;
                self.inside(slots, &nest.extents)?;
                self.check_rows(*table, 0, *extent, *row)?;
                self.check_block(rows.0, rows.1, nest, *row, *table)
            }
        }
    }

    /// Checks a table of rows side by side.
    fn check_rows(
        &self,
        table: u32,
        offset: u64,
        extent: Option<u64>,
        row: u64,
    ) -> Result<(), LowerError> {
        let elements = self.places.get(table as usize).map(|p| p.elements);
        let fits = match extent {
            Some(extent) => {
                let end = extent.checked_mul(row).and_then(|n| n.checked_add(offset));
                !self.is_table(table) && end.is_some_and(|end| elements.is_some_and(|n| end <= n))
            }
            None => self.is_table(table) && offset == 0 && elements == Some(row),
        };
        if fits { Ok(()) } else { fail("rows outside their table") }
    }

    /// Checks rows side by side, one for each iteration of a nest.
    fn check_block(
        &self,
        place: u32,
        first: u64,
        nest: &Nest,
        row: u64,
        table: u32,
    ) -> Result<(), LowerError> {
        let needs = nest.extents.iter().try_fold(row, |n, &e| n.checked_mul(e));
        let end = needs.and_then(|n| n.checked_add(first));
        let fits = !self.is_table(place)
            && match (self.places.get(place as usize), self.places.get(table as usize)) {
                (Some(p), Some(t)) => {
                    p.dtype == t.dtype && end.is_some_and(|end| end <= p.elements)
                }
                _ => false,
            };
        if fits { Ok(()) } else { fail("a row for each index does not fit its place") }
    }

    fn check_map(
        &self,
        op: MapOp,
        inputs: &[StridedAccess],
        out: &StridedAccess,
    ) -> Result<(), LowerError> {
        let needs = match op {
            MapOp::Unary(_) | MapOp::Cast => 1,
            MapOp::Binary(_) | MapOp::Compare(_) => 2,
            MapOp::Select => 3,
            MapOp::Index | MapOp::RowNumber => 0,
        };
        if inputs.len() != needs {
            return fail(format!("{} operands where {needs} are needed", inputs.len()));
        }
        let Some(last) = inputs.last() else { return Ok(()) };
        let dtype = self.dtype(last)?;
        match op {
            MapOp::Unary(op) if !op.takes(dtype) => fail(format!("`{}` of {dtype}", op.mnemonic())),
            MapOp::Binary(op) if !op.takes(dtype) => {
                fail(format!("`{}` of {dtype}", op.mnemonic()))
            }
            MapOp::Cast => Ok(()),
            MapOp::Compare(_) => {
                self.expect(&inputs[0], dtype)?;
                self.expect(out, DType::Bool)
            }
            MapOp::Select => {
                self.expect(&inputs[0], DType::Bool)?;
                self.expect(&inputs[1], dtype)?;
                self.expect(out, dtype)
            }
            MapOp::Unary(_) | MapOp::Binary(_) => {
                self.expect(&inputs[0], dtype)?;
                self.expect(out, dtype)
            }
            MapOp::Index | MapOp::RowNumber => fail("a count with operands"),
        }
    }

    /// Rows run in any order, so what one row writes for all must be read by none.
    fn check_states(&self) -> Result<(), LowerError> {
        for step in &self.steps {
            let RowStep::Scatter { table, .. } = step else { continue };
            let kind = self.places[*table as usize].kind;
            let read = self
                .steps
                .iter()
                .any(|s| s.reads().iter().any(|&p| self.places[p as usize].kind == kind));
            if read {
                return fail("reads a state that it scatters into; split it into two regions");
            }
        }
        Ok(())
    }
}
