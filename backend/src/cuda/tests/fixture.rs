//! A device over a simulated driver, with an arena, a piece and artifacts made by hand.

use crate::artifact::{Access, Alternative, Arg, ArgRef, Artifact, Choice, Launch, PieceSize};
use crate::cuda::testing::{Faults, FaultyDriver, SimulatedDriver};
use crate::cuda::*;
use crate::device::{Binding, Device, DeviceError, Program, Reservation};
use piecewise_ir::builder::Builder;
use piecewise_ir::custom::Attrs;
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::entity::Symbol;
use piecewise_ir::module::UniquePiece;
use piecewise_ir::types::TensorType;
use piecewise_kernels::op::cuda::{
    CudaImplementation, CudaOp, CudaOpArgs, CudaOpCall, GridAxis, LaunchRecipe, Param, Scalar,
    TensorBoxes,
};
use piecewise_kernels::op::{OpError, OpRegistry};
use piecewise_kernels::step::{CaptureSupport, LaunchContext, StepContext};
use std::sync::Arc;

/// A host function that notes nothing and can fail.
#[derive(Debug)]
struct HostOp;

impl CudaOp for HostOp {
    fn name(&self) -> &str {
        "test.host"
    }
    fn implementation(&self, _: &CudaOpCall<'_>) -> Result<CudaImplementation, OpError> {
        Ok(CudaImplementation::Host)
    }
    fn enqueue(&self, args: &CudaOpArgs<'_>) -> Result<(), OpError> {
        assert_ne!(args.stream, 0);
        assert_eq!(args.addresses.len(), args.types.len());
        match args.dim(0, 0) {
            3 => panic!("a custom op panics at 3 rows"),
            5 => Err(args.error("it does not take 5 rows")),
            _ => Ok(()),
        }
    }
}

pub(super) struct Fixture {
    pub(super) driver: Arc<SimulatedDriver>,
    pub(super) faults: Faults,
    pub(super) device: CudaDevice,
    pub(super) arena: Reservation,
    pub(super) piece: UniquePiece,
    pub(super) bounds: Vec<u64>,
}

/// A piece over `T` of one node; its artifacts are made by hand here.
fn piece() -> UniquePiece {
    let b = Builder::new("negate");
    let rows = b.symbol("T", 1, 64);
    let x = b.input("x", DType::F32, (rows, 4));
    let y = -x;
    let graph = b.finish([y]).unwrap();
    UniquePiece { over: Some(rows), graph, hash: [7; 32] }
}

pub(super) fn fixture() -> Fixture {
    opened(CudaOptions::default())
}

/// The same on a device that is opened so.
pub(super) fn opened(options: CudaOptions) -> Fixture {
    let driver = Arc::new(SimulatedDriver::new());
    let faults = Faults::default();
    let faulty = FaultyDriver { inner: driver.clone(), faults: faults.clone() };
    let mut registry = OpRegistry::new();
    registry.implement_cuda(Arc::new(HostOp));
    let mut device =
        CudaDevice::over(Arc::new(faulty), LazyNvrtc::missing(), options, registry).unwrap();
    let arena = device.reserve("the arena", 4096).unwrap();
    device.back(arena).unwrap();
    Fixture { driver, faults, device, arena, piece: piece(), bounds: vec![64] }
}

pub(super) fn kernel(name: &str, programmatic: bool) -> CudaImage {
    let rows = Dim::from(symbol());
    let number = |dim: Dim| Param::Scalar(Scalar::U32(dim));
    let params = vec![
        Param::Arg(0),
        Param::Arg(1),
        Param::Counts,
        number(rows.clone()),
        Param::Scalar(Scalar::U64(rows.times(1 << 32))),
        Param::Scalar(Scalar::F32(1.0)),
        number(Dim::constant(7)),
    ];
    let mut recipe = LaunchRecipe::new("", name, GridAxis::of(rows, 8), 256, params);
    recipe.grid[1] = GridAxis::of(3u64, 1);
    recipe.programmatic = programmatic;
    let cubin = format!("\x7fELF{name}").into_bytes();
    let code = Code { nvrtc: (13, 0), cubin };
    CudaImage::Kernel(KernelImage { arch: Arch { number: 90 }, code, recipe })
}

/// A kernel that takes a tensor map.
pub(super) fn mapped() -> CudaImage {
    let boxes = TensorBoxes {
        arg: 0,
        dtype: DType::BF16,
        rows: 4u64.into(),
        columns: 8,
        box_rows: 4,
        box_slices: 1,
    };
    let CudaImage::Kernel(mut mapped) = kernel("mapped", false) else { unreachable!() };
    mapped.recipe.params[0] = Param::TensorMap(boxes);
    CudaImage::Kernel(mapped)
}

fn symbol() -> Symbol {
    piece().over.unwrap()
}

pub(super) fn host() -> CudaImage {
    let ty = TensorType::new(DType::F32, [Dim::from(symbol()), 4u64.into()]);
    let types = vec![ty.clone(), ty];
    CudaImage::Host(HostImage { name: "test.host".to_owned(), attrs: Attrs::new(), types })
}

pub(super) fn artifact(images: &[(&str, CudaImage)], size: PieceSize) -> Artifact {
    let mut made = Artifact { piece: [7; 32], size, alternatives: Vec::new(), images: Vec::new() };
    let mut launches = Vec::new();
    for (name, image) in images {
        let (digest, bytes) = image.to_bytes().unwrap();
        made.images.push((digest, bytes));
        let arg = |position, access| Arg { at: ArgRef::Operand(position), access };
        launches.push(Launch {
            name: (*name).to_owned(),
            nodes: vec![0],
            args: vec![arg(0, Access::Read), arg(1, Access::Write)],
            image: digest,
            grid: [1, 3, 1],
            params: Vec::new(),
            capture: CaptureSupport::Always,
            follows_sizes: matches!(image, CudaImage::Kernel(_)),
        });
    }
    made.alternatives.push(Alternative::single(launches, 0));
    made
}

impl Fixture {
    /// Another device on the same hardware, with the same faults.
    pub(super) fn beside(&self) -> CudaDevice {
        let inner = self.driver.clone();
        let faulty = Arc::new(FaultyDriver { inner, faults: self.faults.clone() });
        let options = CudaOptions::default();
        CudaDevice::over(faulty, LazyNvrtc::missing(), options, OpRegistry::new()).unwrap()
    }

    pub(super) fn bind(
        &mut self,
        artifact: &Artifact,
        label: &str,
    ) -> Result<Program, DeviceError> {
        let base = self.arena.base;
        let operands: Vec<_> =
            (0..self.piece.operands().len()).map(|i| Some(base.offset(1024 * i as u64))).collect();
        let binding = Binding {
            piece: &self.piece,
            choice: &Choice::default(),
            operands: &operands,
            scratch: base,
            scratch_bytes: 0,
            counts: base.offset(3840),
            bounds: &self.bounds,
            label,
        };
        self.device.bind(artifact, &binding)
    }

    pub(super) fn launch(&mut self, program: &Program, rows: u64) -> Result<(), DeviceError> {
        let step = StepContext { counts: &[rows], sizes: &[rows], inputs: &[] };
        self.device.launch(program, LaunchContext::Step(&step))
    }
}

pub(super) fn two_kernels(size: PieceSize) -> Artifact {
    artifact(&[("first", kernel("first", false)), ("second", kernel("second", true))], size)
}
