//! Makes weights on the device, from uploaded tensors or random numbers.

// A new op or dtype must not compile before it is here.
#![warn(clippy::wildcard_enum_match_arm)]

use super::code::Code;
use super::driver::KernelLaunch;
use super::error::device_error;
use super::event::CudaEvent;
use super::host::PinnedBlock;
use super::kernel_cache::KernelCache;
use super::memory::TemporaryBlock;
use super::module::{Kernel, Modules};
use super::stream::Stream;
use crate::compiler::{NoStore, Store};
use crate::device::{Address, DeviceError, HostBlock};
use crate::weight_plan::{Place, StridedCopy, WeightPlan, WeightStep, evaluate, tensor};
use crate::weights::{TensorSource, TensorSpec, WeightError, WeightSource, normal_key};
use piecewise_ir::dtype::DType;
use piecewise_ir::weight::Recipe;
use std::sync::Arc;

/// The kernels that make weights.
pub const WEIGHT_KERNELS: &str = include_str!("kernels/weights.cu");

/// Bytes of one of the two pinned blocks that uploads go through.
const UPLOAD_BYTES: usize = 16 << 20;

const THREADS: u32 = 256;

/// The axes that the kernel of a copy walks.
const AXES: usize = 6;

/// The machine code of [`WEIGHT_KERNELS`].
///
/// # Errors
/// The compiler's log.
pub(super) fn weight_kernels(
    kernels: &KernelCache,
    store: &dyn Store,
) -> Result<Arc<Code>, String> {
    kernels.compiled(WEIGHT_KERNELS, "weights", store)
}

/// Makes weights. What it needs is made at the first weight.
#[derive(Debug)]
pub(super) struct Loader {
    stream: Arc<Stream>,
    pub(super) kernels: Arc<KernelCache>,
    uploads: Vec<Upload>,
    turn: usize,
}

#[derive(Debug)]
struct Upload {
    block: PinnedBlock,
    /// When the block's last copy is over, if that is known.
    copied: Option<Box<CudaEvent>>,
}

/// The places of a plan.
struct Places {
    target: u64,
    temporaries: Vec<TemporaryBlock>,
}

impl Places {
    fn address(&self, place: Place) -> u64 {
        match place {
            Place::Target => self.target,
            Place::Temporary(i) => self.temporaries[i].address,
        }
    }
}

fn dtype_code(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I32 => 3,
        DType::I64 => 4,
        DType::U8 => 5,
        DType::Bool => 6,
        DType::E4M3 => 7,
        DType::I4 => 8,
    }
}

impl Loader {
    pub(super) fn new(stream: &Arc<Stream>, kernels: Arc<KernelCache>) -> Self {
        Self { stream: stream.clone(), kernels, uploads: Vec::new(), turn: 0 }
    }

    /// Makes the weight of a recipe at an address, row-major, and returns when it is enqueued.
    pub(super) fn materialize(
        &mut self,
        modules: &mut Modules,
        recipe: &Recipe,
        source: &dyn WeightSource,
        to: Address,
    ) -> Result<(), DeviceError> {
        let plan = WeightPlan::new(recipe)?;
        let context = self.stream.context.clone();
        let temporaries = plan
            .temporaries
            .iter()
            .map(|&bytes| TemporaryBlock::allocate(&context, "a weight's intermediate", bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let places = Places { target: to.0, temporaries };
        let made = plan.steps.iter().try_for_each(|step| match step {
            WeightStep::Tensor { name, dtype, shape, to, offset } => {
                let to = places.address(*to) + offset;
                self.tensor(modules, TensorSpec { name, dtype: *dtype, shape }, source, to)
            }
            WeightStep::Graph { graph, dtype, bytes, to, offset } => {
                let made = evaluate(graph, *dtype, *bytes)?;
                self.upload(&made, places.address(*to) + offset)
            }
            WeightStep::Cast { from, from_dtype, to, to_dtype, offset, n } => {
                let parameters = [
                    places.address(*from),
                    places.address(*to) + offset,
                    *n,
                    dtype_code(*from_dtype),
                    dtype_code(*to_dtype),
                ];
                self.run(modules, "cast", *n, &parameters)
            }
            WeightStep::Unpack { from, unpacking, to, offset } => {
                let shifts = u64::from_le_bytes(unpacking.shifts);
                let [lines, line] = unpacking.shape;
                let parameters = [
                    places.address(*from),
                    places.address(*to) + offset,
                    lines,
                    line,
                    unpacking.words_across(),
                    unpacking.axis as u64,
                    shifts,
                    u64::from(unpacking.less),
                ];
                self.run(modules, "unpack", lines * line.div_ceil(2), &parameters)
            }
            WeightStep::Copy { from, from_offset, to, to_offset, copy } => {
                let from = places.address(*from) + from_offset;
                let to = places.address(*to) + to_offset;
                self.copy(modules, copy, from, to)
            }
        });
        if !places.temporaries.is_empty() {
            // The intermediate blocks are returned next.
            let waited = self.stream.synchronize();
            waited.map_err(|e| device_error("make a weight", &e))?;
        }
        made
    }

    /// Enqueues filling memory with `n` normal `f32`.
    pub(super) fn fill_normal(
        &mut self,
        modules: &mut Modules,
        to: u64,
        n: u64,
    ) -> Result<(), DeviceError> {
        let [k0, k1] = normal_key("fill", 0).map(u64::from);
        let parameters = [to, n, dtype_code(DType::F32), k0, k1, u64::from(1f32.to_bits())];
        self.run(modules, "normal", n.div_ceil(4), &parameters)
    }

    fn tensor(
        &mut self,
        modules: &mut Modules,
        spec: TensorSpec<'_>,
        source: &dyn WeightSource,
        to: u64,
    ) -> Result<(), DeviceError> {
        let n: u64 = spec.shape.iter().product();
        match tensor(source, spec)? {
            TensorSource::Bytes(bytes) => self.upload(&bytes, to),
            TensorSource::Normal { std, seed } => {
                let [k0, k1] = normal_key(spec.name, seed).map(u64::from);
                let std = u64::from(std.to_bits());
                let parameters = [to, n, dtype_code(spec.dtype), k0, k1, std];
                self.run(modules, "normal", n.div_ceil(4), &parameters)
            }
        }
    }

    /// Copies host bytes through two pinned blocks, one filled while the other is copied.
    fn upload(&mut self, bytes: &[u8], to: u64) -> Result<(), DeviceError> {
        let context = self.stream.context.clone();
        let failed = |e| device_error(format!("upload {} bytes of a weight", bytes.len()), &e);
        while self.uploads.len() < 2 {
            let block = HostBlock { id: self.uploads.len() as u32, bytes: UPLOAD_BYTES as u64 };
            let block = PinnedBlock::allocate(&context, block)?;
            self.uploads.push(Upload { block, copied: None });
        }
        let mut to = to;
        for chunk in bytes.chunks(UPLOAD_BYTES) {
            self.turn = (self.turn + 1) % 2;
            let upload = &mut self.uploads[self.turn];
            // Without an event there is a first copy, or one that nothing marks.
            let waited = match upload.copied.take() {
                Some(copied) => copied.wait(),
                None => self.stream.synchronize(),
            };
            waited.map_err(failed)?;
            let (block, copies) = (&mut upload.block, &self.stream.copies);
            let n = chunk.len() as u64;
            block.bytes_mut(0..n, copies)?.copy_from_slice(chunk);
            let from = block.lend(0..n, copies)?;
            // SAFETY: the block is lent to the copy, so that nobody writes to these bytes before it is
            // done.
            unsafe { context.driver.copy_in(to, from, n, self.stream.handle) }.map_err(failed)?;
            upload.copied = Some(CudaEvent::record(&self.stream, false, None).map_err(failed)?);
            to += n;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        modules: &mut Modules,
        copy: &StridedCopy,
        from: u64,
        to: u64,
    ) -> Result<(), DeviceError> {
        let rank = copy.axes.len();
        let Some(missing) = AXES.checked_sub(rank) else {
            let reason = format!("a copy over {rank} axes that do not merge; at most {AXES}");
            return Err(DeviceError::Weight(WeightError::Recipe { reason }));
        };
        let n = copy.elements();
        let mut parameters = vec![from, to, n];
        for (i, pad) in [1, 0, 0].into_iter().enumerate() {
            parameters.extend(std::iter::repeat_n(pad, missing));
            parameters.extend(copy.axes.iter().map(|axis| axis[i]));
        }
        self.run(modules, &format!("copy_{}", copy.element), n, &parameters)
    }

    fn kernel(&mut self, modules: &mut Modules, entry: &str) -> Result<Arc<Kernel>, DeviceError> {
        let refused = |reason: String| DeviceError::Driver {
            action: format!("make weights with kernel `{entry}`"),
            reason,
        };
        let code = weight_kernels(&self.kernels, &NoStore).map_err(refused)?;
        modules.kernel(&code.cubin, entry, 0).map_err(|e| refused(e.to_string()))
    }

    fn run(
        &mut self,
        modules: &mut Modules,
        entry: &str,
        threads: u64,
        parameters: &[u64],
    ) -> Result<(), DeviceError> {
        if threads == 0 {
            return Ok(());
        }
        let kernel = self.kernel(modules, entry)?;
        let context = &self.stream.context;
        // Threads go on in steps of the grid; more blocks than these would only wait.
        let most = u64::from(context.device.multiprocessors.max(1)) * 16;
        let blocks = threads.div_ceil(u64::from(THREADS)).min(most) as u32;
        let launch =
            KernelLaunch::plain(kernel.function, blocks, THREADS, self.stream.handle, parameters);
        context
            .driver
            .launch(&launch)
            .map_err(|e| device_error(format!("make weights with kernel `{entry}`"), &e))
    }
}
