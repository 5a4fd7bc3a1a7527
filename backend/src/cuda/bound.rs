//! Launches with what they are bound to.

use super::driver::TensorMap;
use super::image::{CudaImage, HostImage, LIBRARY_MATMUL};
use super::lt::{LtCall, LtProduct};
use super::memory::AddressRange;
use super::module::Kernel;
use crate::binding::Argument;
use crate::matmul::Matmul;
use piecewise_ir::dim::Dim;
use piecewise_kernels::op::cuda::{CudaOp, LaunchRecipe};
use piecewise_kernels::step::CaptureSupport;
use std::sync::Arc;

/// One launch with everything it needs, and the memory that it points to.
#[derive(Debug)]
pub(super) struct BoundLaunch {
    pub(super) name: String,
    /// The nodes of the unique piece that it computes, by position in program order.
    pub(super) nodes: Vec<u32>,
    pub(super) label: Arc<str>,
    pub(super) support: CaptureSupport,
    pub(super) work: Work,
    /// What it is bound to: the counts, then its arguments.
    pub(super) arguments: Vec<Argument>,
    pub(super) ranges: Vec<UsedRange>,
    /// The largest size of each symbol that its memory holds.
    pub(super) limits: Arc<[u64]>,
}

#[derive(Debug)]
pub(super) struct UsedRange {
    pub(super) range: Arc<AddressRange>,
    /// States may lack backing: a warm-up run writes to no slot and reads no row.
    pub(super) is_state: bool,
}

#[derive(Debug)]
pub(super) enum Work {
    Kernel(Box<BoundKernel>),
    Matmul(Box<BoundMatmul>),
    Host(BoundHost),
}

#[derive(Debug)]
pub(super) struct BoundKernel {
    pub(super) kernel: Arc<Kernel>,
    pub(super) recipe: LaunchRecipe,
    pub(super) values: Vec<ParameterValue>,
    /// The parameters that are tensor maps instead, by position; of the largest size.
    pub(super) maps: Vec<(usize, TensorMap)>,
}

/// The value of a kernel's parameter.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ParameterValue {
    Fixed(u64),
    /// A function of the padded sizes.
    Size(Dim),
    /// Where the blocks of a captured launch note their times.
    Stamps,
}

impl ParameterValue {
    pub(super) fn at(&self, sizes: &[u64], stamps: u64) -> u64 {
        match self {
            Self::Stamps => stamps,
            Self::Fixed(value) => *value,
            Self::Size(dim) => dim.eval(sizes),
        }
    }

    pub(super) fn of_size(dim: &Dim) -> Self {
        match dim.as_constant() {
            Some(value) => Self::Fixed(value),
            None => Self::Size(dim.clone()),
        }
    }
}

/// A product of the library.
#[derive(Debug)]
pub(super) struct BoundMatmul {
    pub(super) matmul: Matmul,
    pub(super) call: LtCall,
}

impl BoundMatmul {
    /// The product at these sizes.
    pub(super) fn product(&self, sizes: &[u64]) -> Result<LtProduct, String> {
        Ok((self.matmul.problem(sizes)?, self.call.workspace_bytes))
    }
}

#[derive(Debug)]
pub(super) struct BoundHost {
    pub(super) op: Arc<dyn CudaOp>,
    pub(super) image: Arc<CudaImage>,
    pub(super) addresses: Vec<u64>,
    pub(super) scratch: (u64, u64),
    pub(super) counts: u64,
}

impl BoundHost {
    pub(super) fn image(&self) -> Option<&HostImage> {
        match &*self.image {
            CudaImage::Host(image) => Some(image),
            _ => None,
        }
    }
}

impl BoundLaunch {
    /// The entry of its kernel, the library's function, or the op of its host function.
    pub(super) fn kernel(&self) -> &str {
        match &self.work {
            Work::Kernel(bound) => &bound.recipe.entry,
            Work::Matmul(_) => LIBRARY_MATMUL,
            Work::Host(bound) => bound.image().map_or("", |image| &image.name),
        }
    }

    /// That its memory holds these sizes and can be used.
    pub(super) fn check(&self, sizes: &[u64]) -> Result<(), String> {
        if sizes.len() < self.limits.len() {
            return Err(format!("{} sizes for {} symbols", sizes.len(), self.limits.len()));
        }
        for (symbol, (size, limit)) in sizes.iter().zip(self.limits.iter()).enumerate() {
            if size > limit {
                return Err(format!("size {size} of symbol {symbol} is over its bound {limit}"));
            }
        }
        check_backing(self.needed())
    }

    /// That a captured launch of it can be set to other sizes.
    pub(super) fn check_follows(&self) -> Result<(), String> {
        match &self.work {
            Work::Kernel(bound) if bound.recipe.always_has_work() => Ok(()),
            Work::Kernel(_) => {
                Err("it has no work at some sizes, and can't follow them".to_owned())
            }
            Work::Matmul(_) | Work::Host(_) => {
                Err("it is no kernel of ours alone, and can't follow the sizes of replays"
                    .to_owned())
            }
        }
    }

    /// The ranges that must be backed where it runs.
    pub(super) fn needed(&self) -> impl Iterator<Item = &Arc<AddressRange>> {
        self.ranges.iter().filter(|used| !used.is_state).map(|used| &used.range)
    }
}

/// The ranges that launches need backed, each once: launches share few.
pub(super) fn needed_once(launches: &[Arc<BoundLaunch>]) -> Vec<Arc<AddressRange>> {
    let mut needed: Vec<Arc<AddressRange>> = Vec::new();
    for range in launches.iter().flat_map(|launch| launch.needed()) {
        if !needed.iter().any(|known| Arc::ptr_eq(known, range)) {
            needed.push(range.clone());
        }
    }
    needed
}

/// An error that names the first range whose memory was given back.
pub(super) fn check_backing<'a>(
    mut ranges: impl Iterator<Item = &'a Arc<AddressRange>>,
) -> Result<(), String> {
    match ranges.find(|range| !range.is_backed()) {
        Some(range) => Err(format!("the memory of {} is not backed", range.what)),
        None => Ok(()),
    }
}
