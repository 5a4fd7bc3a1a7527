//! The mixing op of the suite on CUDA, in both ways that a user can write one: source with a
//! launch recipe, and a host function that puts a kernel on the stream.

use crate::host_kernel::HostKernel;
use piecewise_ir::custom::Attr;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType::F32;
use piecewise_ir::entity::Entity;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::OpError;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpArgs, CudaOpCall, GridAxis, LaunchRecipe, OpKernels, Param,
    Scalar,
};
use std::sync::{Arc, OnceLock};

const SOURCE: &str = include_str!("mix_kernel.cu");
const ENTRY: &str = "mix";
const THREADS: u32 = 64;
/// Rows from which its source has a second implementation, of shorter blocks.
pub(crate) const SECOND_ROWS: u64 = 8;

/// What a kernel of this op takes beside addresses.
struct Numbers {
    symbol: u32,
    width: u64,
    state_rows: u64,
    scale: f32,
}

fn numbers(
    types: &[TensorType],
    scale: Option<&Attr>,
    sizes: &[u64],
) -> Result<Numbers, &'static str> {
    let [x, state, ..] = types else { return Err("it takes x, a state and slots") };
    let Some(symbol) = x.outer_symbol() else { return Err("x must have rows of a symbol") };
    let Some(Attr::Float(scale)) = scale else { return Err("attribute `scale` must be a float") };
    if x.dtype != F32 {
        return Err("its kernel takes f32 alone");
    }
    Ok(Numbers {
        symbol: symbol.index() as u32,
        width: x.shape[1].eval(sizes),
        state_rows: state.shape[0].eval(sizes),
        scale: *scale as f32,
    })
}

/// The op as source with a launch recipe: compiled, kept and launched like the framework's own.
#[derive(Debug)]
pub(crate) struct SourceMix {
    pub name: &'static str,
    /// A fault to plant: sums begin with the last padding row.
    pub reads_padding: bool,
}

impl SourceMix {
    fn kernels(&self, call: &CudaOpCall<'_>, threads: u32) -> Result<OpKernels, OpError> {
        let numbers = numbers(call.operands, call.attrs.get("scale"), call.sizes);
        let Numbers { symbol, width, state_rows, scale } =
            numbers.map_err(|e| OpError { op: self.name.to_owned(), message: e.to_owned() })?;
        let number = |n: u64| Param::Scalar(Scalar::U32(Dim::constant(n)));
        let mut params: Vec<Param> = (0..4).map(Param::Arg).collect();
        params.push(Param::Counts);
        params.extend([number(symbol.into()), number(width), number(state_rows)]);
        params.push(Param::Scalar(Scalar::F32(scale)));
        let padded = call.operands[0].shape[0].clone();
        let padded = if self.reads_padding { padded } else { Dim::constant(0) };
        params.push(Param::Scalar(Scalar::U32(padded)));
        let grid = GridAxis::of(width, threads.into());
        let launch = LaunchRecipe::new(SOURCE, ENTRY, grid, threads, params);
        Ok(OpKernels::new([launch]))
    }
}

impl CudaOp for SourceMix {
    fn name(&self) -> &str {
        self.name
    }

    fn implementation(&self, call: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        self.kernels(call, THREADS).map(CudaImplementation::Source)
    }

    fn other_implementations(
        &self,
        call: &CudaOpCall<'_>,
    ) -> Result<Vec<CudaImplementation>, OpError> {
        let has_second = call.operands[0].shape[0].eval(call.sizes) >= SECOND_ROWS;
        let second = has_second.then(|| self.kernels(call, THREADS / 16));
        second.into_iter().map(|kernels| kernels.map(CudaImplementation::Source)).collect()
    }
}

/// The op as a host function, with a kernel that the driver loaded before.
#[derive(Debug)]
pub(crate) struct HostMix {
    pub name: &'static str,
}

fn kernel() -> &'static HostKernel {
    static KERNEL: OnceLock<Arc<HostKernel>> = OnceLock::new();
    KERNEL.get_or_init(|| Arc::new(HostKernel::load(SOURCE, ENTRY).unwrap()))
}

impl CudaOp for HostMix {
    fn name(&self) -> &str {
        self.name
    }

    /// The kernel is loaded here: while a capture runs, nothing may be.
    fn implementation(&self, _: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        kernel();
        Ok(CudaImplementation::Host)
    }

    fn enqueue(&self, args: &CudaOpArgs<'_>) -> Result<(), OpError> {
        let numbers = numbers(args.types, args.attrs.get("scale"), args.context.sizes());
        let Numbers { symbol, width, state_rows, scale } = numbers.map_err(|e| args.error(e))?;
        let mut parameters = args.addresses.to_vec();
        parameters.push(args.counts);
        parameters.extend([symbol.into(), width, state_rows, scale.to_bits().into(), 0]);
        let blocks = width.div_ceil(THREADS.into()) as u32;
        kernel().launch(args.stream, blocks, THREADS, &mut parameters).map_err(|e| args.error(e))
    }
}
