//! The share of a GPU that a model takes, and passes that are off.

use super::*;

/// A GPU of 1 GiB, and a pool that alone would take more of it.
#[test]
fn the_pool_of_a_gpu_takes_no_more_than_the_rest_leaves_of_a_share() {
    let options = CudaOptions { ordinal: 1, ..CudaOptions::default() };
    let device = simulated(options, OpRegistry::new(), &Faults::default()).unwrap();
    let device: OpenDevice = device.into();
    let free = device.free_bytes().unwrap();
    let room = (free as f64 * 0.9) as u64;
    let wide = |assembly: Assembly| assembly.kv_rows(1 << 18).on(&device);
    let mut planned = wide(tiny()).plan().unwrap();
    let wanted = planned.ledger().unwrap().total();
    assert!(wanted > room, "{wanted} of {room}");
    planned.fit_gpu().unwrap();
    let total = planned.ledger().unwrap().total();
    assert!(total <= room && total > room - (1 << 20), "{total} of {room}");
    // What fits is left alone, and so is a processor.
    let bytes = |mut planned: Planned| {
        planned.fit_gpu().unwrap();
        planned.ledger().unwrap().total()
    };
    let small = tiny().on(&device).plan().unwrap();
    let before = small.ledger().unwrap().total();
    assert_eq!(bytes(small), before);
    assert_eq!(bytes(tiny().kv_rows(1 << 18).plan().unwrap()), wanted);
}

#[test]
fn a_gpu_has_a_share_of_its_own_and_nobody_elses_is_changed() {
    let of = |assembly: Assembly| {
        let found = assembly.settings().unwrap().configured().unwrap();
        let share = found.config.memory_fraction;
        (share, found.source("memory_fraction").to_string())
    };
    let gpu = || tiny().device(DeviceSpec::Cuda(0));
    assert_eq!(of(gpu()), (Some(0.9), "from the device, a GPU".to_owned()));
    assert_eq!(of(gpu().memory_fraction(0.5)), (Some(0.5), "set by the program".to_owned()));
    for without in
        [gpu().memory_budget(1 << 30), tiny(), tiny().device("cuda:sm_90a".parse().unwrap())]
    {
        assert_eq!(of(without), (None, "default".to_owned()));
    }
}

/// Without the passes that fuse, as many kernels run as ops there are, and all modes replay them.
#[test]
fn what_is_not_fused_is_captured_as_it_is() {
    let whole = generated(&mut tiny().graph_mode(GraphMode::None).engine().unwrap());
    let off = || tiny().passes_off(["fuse", "merge_matmuls", "cse"]);
    let names = |planned: &Planned| {
        Vec::from_iter(planned.passes().passes.iter().map(|run| run.name.clone())).join(",")
    };
    let planned = off().plan().unwrap();
    assert_eq!(names(&planned), "canonicalize,fold,dce,split,destination,plan");
    for mode in [GraphMode::Full, GraphMode::Piecewise] {
        let mut engine = off().graph_mode(mode).strict().engine().unwrap();
        assert_eq!(generated(&mut engine), whole, "{}", mode.name());
        let statistics = engine.model().statistics();
        assert_eq!((statistics.misses(), statistics.steps_by_mode[0]), (0, 0), "{}", mode.name());
    }
    let error = tiny().passes_off(["split"]).plan().unwrap_err().to_string();
    assert!(error.contains("pass `split` can't be left out"), "{error}");
}
