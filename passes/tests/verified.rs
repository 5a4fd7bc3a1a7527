//! What passes make of random graphs keeps every rule of modules, after each step.

use piecewise_ir::module::Module;
use piecewise_ir::verify::verify_module;
use piecewise_passes::destination::assign_slots;
use piecewise_passes::plan::{PlanOptions, plan_arena};
use piecewise_passes::split::{SplitOptions, split};
use piecewise_passes::{PassContext, PassManager, Pipeline, Registry};
use piecewise_testing::RandomGraph;

fn assert_verifies(module: &Module, what: &str, seed: u64) {
    if let Err(found) = verify_module(module) {
        panic!("after {what} of seed {seed}:\n{found}");
    }
}

fn split_and_plan(mut module: Module, seed: u64) {
    split(&mut module, &SplitOptions::default()).expect("splits");
    assert_verifies(&module, "split", seed);
    assign_slots(&mut module).expect("has an order");
    assert_verifies(&module, "destination", seed);
    plan_arena(&mut module, &PlanOptions::default()).expect("fits");
    assert_verifies(&module, "plan", seed);
}

#[test]
fn unfused_modules_verify() {
    for seed in 0..60 {
        split_and_plan(Module::new(RandomGraph::default().generate(seed)), seed);
    }
}

#[test]
fn fused_modules_verify() {
    let pipeline = Pipeline::parse("canonicalize,fold,merge_matmuls,cse,dce,fuse").unwrap();
    for seed in 0..60 {
        let mut module = Module::new(RandomGraph::default().generate(seed));
        let mut manager = PassManager::new(&pipeline, &Registry::standard()).unwrap();
        manager.run(&mut module, &mut PassContext::default()).unwrap();
        split_and_plan(module, seed);
    }
}
