//! A model that finds everything in a store computes the same bits as the one that filled it, and
//! on CUDA it is built where NVRTC can't be found.

use crate::equal_modes::two_steps;
use crate::sequences::Left;
use crate::small_decoder::Setup;
use crate::target::{Cuda, Target};
use piecewise_backend::compiler::{Compiler, CompilerOptions, Store};
use piecewise_backend::cuda::driver::system::SystemDriver;
use piecewise_backend::cuda::{CudaDevice, CudaOptions, LazyNvrtc, library_dirs};
use piecewise_backend::device::Device;
use piecewise_backend::store::MemoryStore;
use piecewise_backend::weights::NormalWeights;
use piecewise_ir::module::Module;
use piecewise_kernels::op::OpRegistry;
use piecewise_runtime::steps::CompiledModel;
use piecewise_runtime::store::compile_module;
use piecewise_runtime::words::ModelError;
use std::sync::Arc;

pub(crate) fn build(
    device: Box<dyn Device>,
    compiler: &dyn Compiler,
    store: &dyn Store,
) -> Result<CompiledModel, ModelError> {
    build_planned(&Arc::new(setup().module()), device, compiler, store)
}

/// What `build` plans.
pub(crate) fn setup() -> Setup {
    Setup { sizes: vec![1, 4, 8], batches: vec![1, 4], ..Setup::default() }
}

pub(crate) fn build_planned(
    module: &Arc<Module>,
    device: Box<dyn Device>,
    compiler: &dyn Compiler,
    store: &dyn Store,
) -> Result<CompiledModel, ModelError> {
    let options = setup().options();
    let compiled = compile_module(module, &options.dispatcher, compiler, store, &mut |_| {})?;
    CompiledModel::build(
        Arc::clone(module),
        options,
        compiled,
        store,
        device,
        Arc::new(NormalWeights { std: 0.4, seed: 7 }),
        &mut |_| {},
    )
}

/// Steps of every captured size, and one above.
pub(crate) fn steps(model: &mut CompiledModel) -> Vec<Left> {
    [1, 4, 8, 20].into_iter().flat_map(|tokens| two_steps(model, tokens)).collect()
}

fn check_equal(cold: &mut CompiledModel, warm: &mut CompiledModel) {
    let compiled = |model: &CompiledModel| model.statistics().compile.total_compiled();
    assert!(compiled(cold) > 0);
    assert_eq!(compiled(warm), 0);
    for (found, expected) in steps(warm).iter().zip(&steps(cold)) {
        assert_eq!(found.difference(expected), None);
    }
}

/// On the same device.
pub(crate) fn equals_cold<T: Target>() {
    let store = MemoryStore::new();
    let registry = Arc::new(OpRegistry::builtin());
    let made = |threads| {
        let (device, compiler) = T::make(&registry, threads);
        build(device, &*compiler, &store).unwrap()
    };
    let mut cold = made(1);
    check_equal(&mut cold, &mut made(4));
}

#[test]
fn a_model_from_a_filled_store_needs_no_nvrtc() {
    if !Cuda::is_there() {
        return;
    }
    let made = |store: &MemoryStore, nvrtc: LazyNvrtc| {
        let registry = Arc::new(OpRegistry::builtin());
        let driver = Arc::new(SystemDriver::open().unwrap());
        let (options, ops) = (CudaOptions::default(), OpRegistry::clone(&registry));
        let device = CudaDevice::over(driver, nvrtc, options, ops).unwrap();
        let compiler = device.compiler(registry, CompilerOptions::default());
        build(Box::new(device), &*compiler, store)
    };
    let store = MemoryStore::new();
    let mut cold = made(&store, LazyNvrtc::new(library_dirs(&[]), None)).unwrap();
    check_equal(&mut cold, &mut made(&store, LazyNvrtc::missing()).unwrap());
    let error = made(&MemoryStore::new(), LazyNvrtc::missing()).unwrap_err().to_string();
    assert!(error.contains("NVRTC was not found"), "{error}");
}
