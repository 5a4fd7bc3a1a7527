//! Ops whose one result is like their first operand, and whose kernels take its true rows.

use piecewise_ir::custom::{Attrs, CustomOpDef};
use piecewise_ir::dim::Dim;
use piecewise_ir::entity::{Entity, Symbol};
use piecewise_ir::op::RowTreatment;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::OpError;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param, Scalar,
};

/// Such an op, which leaves padding rows alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LikeFirst {
    pub(crate) name: &'static str,
    pub(crate) splits: bool,
}

impl CustomOpDef for LikeFirst {
    fn name(&self) -> &str {
        self.name
    }
    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(vec![operands[0].clone()])
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
    fn splits(&self) -> bool {
        self.splits
    }
}

/// The symbol of the first operand's rows.
pub(crate) fn rows_of_first(call: &CudaOpCall<'_>, op: &str) -> Result<Symbol, OpError> {
    let message = "x has no rows of a symbol";
    let none = || OpError { op: op.to_owned(), message: message.to_owned() };
    call.operands[0].outer_symbol().ok_or_else(none)
}

impl LikeFirst {
    /// One block of the entry of `source`, which takes so many arguments, the counts, the symbol of the
    /// first operand's rows, and what `rest` makes of that.
    pub(crate) fn one_block(
        self,
        call: &CudaOpCall<'_>,
        (source, entry): (&str, &str),
        [arguments, threads]: [u32; 2],
        rest: impl FnOnce(Symbol) -> Vec<Param>,
    ) -> Result<CudaImplementation, OpError> {
        let rows = rows_of_first(call, self.name)?;
        let mut params: Vec<Param> = (0..arguments).map(Param::Arg).collect();
        params.push(Param::Counts);
        params.push(Param::Scalar(Scalar::U32(Dim::constant(rows.index() as u64))));
        params.extend(rest(rows));
        let launch = LaunchRecipe::new(source, entry, GridAxis::one(), threads, params);
        Ok(CudaImplementation::Source(OpKernels::new([launch])))
    }
}
