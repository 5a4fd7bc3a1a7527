//! Statements with loops of their own: reductions, searches, concats, row gathers and scatters.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::body::static_dims;
use super::build::Builder;
use super::error::LowerError;
use super::row_program::{MapOp, RowStep, StridedAccess, lane_of};
use super::view::{View, dense, nest_of};
use piecewise_ir::dtype::DType;
use piecewise_ir::op::ReduceOp;
use piecewise_ir::types::TensorType;

impl Builder {
    pub(super) fn reduce(
        &mut self,
        op: ReduceOp,
        axes: &[usize],
        input: &View,
        ty: &TensorType,
    ) -> Result<View, LowerError> {
        let rank = input.dims.len();
        let kept: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
        let perm: Vec<usize> = kept.iter().chain(axes).copied().collect();
        let from = input.permuted(&perm);
        let shape = static_dims(ty)?;
        let kept_shape: Vec<u64> = kept.iter().map(|&a| input.dims[a].extent).collect();
        let out = self.temp(ty.dtype, &kept_shape);
        let (nest, mut accesses, loops) = nest_of(&self.places, &[&from, &out], kept.len(), false);
        let (mut to, input) = (accesses.remove(1), accesses.remove(0));
        to.strides.truncate(loops);
        self.steps.push(RowStep::Reduce { op, nest, kept: loops as u32, input, out: to });
        Ok(View { dims: dense(&shape), ..out })
    }

    pub(super) fn top_k(
        &mut self,
        axis: usize,
        input: &View,
        values: Option<&View>,
        indices: &View,
        k: u64,
    ) {
        let rank = input.dims.len();
        let perm: Vec<usize> = (0..rank).filter(|&a| a != axis).chain([axis]).collect();
        let from = input.permuted(&perm);
        let outs: Vec<(View, u64)> = [indices]
            .into_iter()
            .chain(values)
            .map(|view| {
                let mut kept = view.clone();
                let along = kept.dims.remove(axis).stride;
                (kept, along)
            })
            .collect();
        let mut views = vec![&from];
        views.extend(outs.iter().map(|(view, _)| view));
        let (nest, mut accesses, loops) = nest_of(&self.places, &views, rank - 1, false);
        let input = accesses.remove(0);
        for (access, (_, along)) in accesses.iter_mut().zip(&outs) {
            access.strides.truncate(loops);
            access.strides.push(*along);
        }
        let lane = lane_of(self.dtype(&from));
        let whole = |view: View| StridedAccess { place: view.place, offset: 0, strides: vec![1] };
        let best_values = whole(self.temp(lane, &[k]));
        let best_indices = whole(self.temp(DType::I32, &[k]));
        let indices = accesses.remove(0);
        let values = accesses.pop();
        let found = RowStep::TopK { nest, k, input, values, indices, best_values, best_indices };
        self.steps.push(found);
    }

    pub(super) fn concat(
        &mut self,
        axis: usize,
        parts: &[View],
        ty: &TensorType,
    ) -> Result<View, LowerError> {
        let shape = static_dims(ty)?;
        let out = self.temp(ty.dtype, &shape);
        let mut start = 0;
        for part in parts {
            let extent = part.dims[axis].extent;
            self.map_into(MapOp::Cast, &[part], &out.sliced(axis, start, extent));
            start += extent;
        }
        Ok(out)
    }

    pub(super) fn gather(
        &mut self,
        table: &View,
        indices: &View,
        ty: &TensorType,
    ) -> Result<View, LowerError> {
        let shape = static_dims(ty)?;
        let symbolic = self.is_table(table);
        let row: u64 = table.dims[1..].iter().map(|d| d.extent).product();
        let dense_rows = View { dims: table.dims[1..].to_vec(), ..*table }.is_contiguous()
            && (table.dims[0].stride == row || table.dims[0].extent == 1);
        let table = if symbolic || dense_rows { table.clone() } else { self.contiguous(table) };
        let out = self.temp(ty.dtype, &shape);
        let (nest, mut accesses, _) = nest_of(&self.places, &[indices], indices.dims.len(), false);
        let indices = accesses.remove(0);
        self.steps.push(RowStep::Gather {
            table: table.place,
            offset: table.offset,
            extent: (!symbolic).then(|| table.dims[0].extent),
            row,
            nest,
            indices,
            out: out.place,
        });
        Ok(out)
    }

    pub(super) fn scatter(&mut self, table: &View, slots: &View, rows: &View) {
        let rows = self.contiguous(rows);
        let row: u64 = table.dims[1..].iter().map(|d| d.extent).product();
        let (nest, mut accesses, _) = nest_of(&self.places, &[slots], slots.dims.len(), false);
        let slots = accesses.remove(0);
        self.steps.push(RowStep::Scatter {
            table: table.place,
            extent: (!self.is_table(table)).then(|| table.dims[0].extent),
            row,
            nest,
            slots,
            rows: (rows.place, rows.offset),
        });
    }
}
