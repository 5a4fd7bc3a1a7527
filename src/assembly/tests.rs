use super::*;
use crate::prelude::*;
use piecewise_backend::cuda::CudaOptions;
use piecewise_backend::store::MemoryStore;
use piecewise_ir::module::SlotKind;
use piecewise_ir::op::Op;
use piecewise_kernels::attention::PAGE_ROWS;
use piecewise_passes::pipeline::DEFAULT_PIPELINE;
use piecewise_runtime::config::Source;
use piecewise_testing::cuda::simulated;
use piecewise_testing::{CallFault, Faults};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod author_errors;
mod bounds;
mod dumps;
mod keys;
mod options;
mod own_models;
mod own_ops;
mod own_plans;
mod own_rows;
mod plan_views;
mod probes;
mod returns;
mod room;
mod rounded;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");

fn tiny() -> Assembly {
    let assembly = Assembly::folder(TINY).unwrap().set("cache.enabled", false);
    let assembly = assembly.activations(DType::F32).capture_sizes([1, 8]).threads(1);
    assembly.max_num_tokens(8).max_num_seqs(2).max_seq_len(64)
}

/// `4 x` for each row of `x`.
fn quadrupled() -> Graph {
    let b = Builder::new("quadrupled");
    let t = b.symbol("T", 1, 8);
    let x = b.input("x", DType::F32, (t, 2));
    b.finish([x * 4.0]).unwrap()
}

fn graph() -> Assembly {
    Assembly::graph(quadrupled()).set("cache.enabled", false).threads(1)
}

fn generated(engine: &mut Engine) -> Vec<u32> {
    engine.add(Request::new(vec![326, 680, 596], 6)).unwrap();
    let mut events = Vec::new();
    while engine.step(&mut events).unwrap() {}
    let id = |event: &RequestEvent| match event {
        RequestEvent::Token { id, .. } => Some(*id),
        _ => None,
    };
    events.iter().filter_map(id).collect()
}

/// A store that knows how often each piece is asked for, and keeps nothing if told so.
#[derive(Debug, Default)]
struct Asked {
    kept: Option<MemoryStore>,
    pieces: Mutex<BTreeMap<[u8; 32], usize>>,
}

impl Store for Asked {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        if kind == "piece" {
            *self.pieces.lock().unwrap().entry(key.0).or_default() += 1;
        }
        self.kept.as_ref().map_or(Ok(None), |kept| kept.get(kind, key))
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        self.kept.as_ref().map_or(Ok(()), |kept| kept.put(entry))
    }
}

#[test]
fn each_piece_is_planned_and_lowered_once_whoever_asks_and_whatever_the_budget() {
    for kept in [None, Some(MemoryStore::new())] {
        for budget in [None, Some(24 << 20)] {
            let store = Arc::new(Asked {
                kept: kept.as_ref().map(|_| MemoryStore::new()),
                ..Asked::default()
            });
            let mut assembly = tiny().store(store.clone());
            if let Some(budget) = budget {
                assembly = assembly.memory_budget(budget);
            }
            let planned = assembly.check_weights().plan().unwrap();
            let first = planned.stitch().unwrap().unique.keys().next().unwrap();
            assert_eq!(planned.lower(|unique| unique == first).unwrap().len(), 1);
            planned.artifacts().unwrap();
            let jobs = planned.jobs().unwrap().len();
            let mut engine = planned.engine().unwrap();
            assert!(!generated(&mut engine).is_empty());
            let asked = store.pieces.lock().unwrap().clone();
            assert_eq!((asked.len(), asked.values().sum::<usize>()), (jobs, jobs), "{budget:?}");
            assert_eq!(engine.model().statistics().compile.compiled["piece"], jobs as u64);
        }
    }
}

#[test]
fn a_pool_of_the_budgets_size_is_what_planning_for_it_gives() {
    let within = tiny().memory_budget(24 << 20).plan().unwrap();
    let rows = within.symbols().bounds().to_vec();
    let pool = |planned: &Planned| {
        let graph = planned.module().graph();
        let role = |role: &Option<String>| role.as_deref() == Some(roles::KV_ROWS);
        graph.symbols().values().find(|decl| role(&decl.role)).unwrap().max
    };
    let (rows_within, most) = (pool(&within), pool(&tiny().plan().unwrap()));
    assert!(rows_within <= most && rows_within >= 64, "{rows_within} of {most}");
    let anew = tiny().kv_rows(rows_within).plan().unwrap();
    assert_eq!(anew.module(), within.module());
    assert_eq!(anew.symbols().bounds(), rows);
    // What is said to fit does, and a byte less does not.
    let ask = |length, budget| tiny().max_seq_len(length).memory_budget(budget).plan();
    let refused = |length, budget| ask(length, budget).err().unwrap().to_string();
    let number = |text: &str, before: &str| -> u64 {
        let rest = text.split_once(before).unwrap().1;
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let bytes = number(&refused(1024, 1 << 10), "or at least ");
    assert!(ask(1024, bytes).is_ok());
    let error = refused(1024, bytes - 1);
    let length = number(&error, "; max_seq_len = ");
    assert!(length < 1024 && ask(length, bytes - 1).is_ok(), "{error}");
    let error = tiny().memory_budget(1 << 10).plan().unwrap_err();
    assert!(matches!(&error, AssemblyError::Sizing(_)), "{error}");
    assert!(error.to_string().contains("memory_budget = 1024 bytes leaves 0"), "{error}");
}

#[test]
fn the_ledger_of_a_plan_is_that_of_what_is_built() {
    let planned = tiny().memory_budget(24 << 20).plan().unwrap();
    let ledger = planned.ledger().unwrap();
    assert!(ledger.total() <= 24 << 20 && ledger.pinned > 0, "{ledger:?}");
    assert_eq!(planned.engine().unwrap().model().ledger(), ledger);
}

#[test]
fn a_share_of_what_is_free_bounds_the_pool() {
    let free = DeviceSpec::Cpu.open(1).unwrap().free_bytes().unwrap();
    let wide = || tiny().max_num_seqs(8).max_seq_len(512);
    let share = |share: f64| wide().set("memory_fraction", share);
    let most = wide().plan().unwrap().ledger().unwrap().total();
    // The free memory of the machine changes a little meanwhile.
    let within = share((24 << 20) as f64 / free as f64).plan().unwrap();
    let total = within.ledger().unwrap().total();
    assert!(total > 16 << 20 && total < 32 << 20 && total < most, "{total} of {most}");
    // The smaller of the two counts.
    let budget = share(0.5).memory_budget(20 << 20).plan().unwrap();
    assert!(budget.ledger().unwrap().total() <= 20 << 20);
    let error = share(1e-9).plan().unwrap_err().to_string();
    assert!(error.contains("memory_fraction = ") && error.contains("bytes are needed"), "{error}");
    let error = share(1.5).plan().unwrap_err().to_string();
    assert!(error.contains("must be above 0 and at most 1"), "{error}");
    let arch = share(0.5).device("cuda:sm_90a".parse().unwrap()).plan().unwrap_err();
    assert!(matches!(arch, AssemblyError::Device(_)), "{arch}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    let error = tiny().kv_rows(1 << 30).engine().unwrap_err();
    let AssemblyError::DoesNotFit { needed, free, rows, .. } = error else { panic!("{error}") };
    assert!(needed > free && rows > 0 && rows < 1 << 30, "{error}");
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("a KV pool of"), "{error}");
    // What is said to fit does, and a page more does not.
    let total = |rows| {
        let planned = tiny().kv_rows(rows).plan().unwrap();
        planned.artifacts().unwrap();
        planned.ledger().unwrap().total()
    };
    assert!(total(rows) <= free, "{rows} rows are {} bytes of {free}", total(rows));
    assert!(total(rows + PAGE_ROWS) > free, "{rows} rows are {} bytes of {free}", total(rows));
}

/// Steps of so many rows of 16 MB, with so many weights as wide.
fn wide(rows: u64, weights: u64) -> Assembly {
    let b = Builder::new("wide").weight_dtype(DType::F32);
    let t = b.symbol("T", 1, rows);
    let x = b.input("x", DType::F32, (t, 1 << 22));
    let all = (0..weights).fold(x * 4.0, |x, i| x * b.weight(&format!("w{i}"), [1 << 22]));
    let graph = b.finish([all.silu().reduce_sum([1])]).unwrap();
    let assembly = Assembly::graph(graph).set("cache.enabled", false);
    assembly.capture_sizes([1]).set("graph_mode", "none")
}

#[test]
fn what_does_not_fit_without_a_pool_is_refused_with_the_steps_that_would() {
    let error = wide(1 << 16, 2).session().unwrap_err();
    let AssemblyError::DoesNotFit { needed, from, free, rows, .. } = error else {
        panic!("{error}")
    };
    assert!(needed > free && from == "free memory" && rows > 0, "{error}");
    let total = |rows, weights| {
        let planned = wide(rows, weights).plan().unwrap();
        planned.artifacts().unwrap();
        planned.ledger().unwrap().total()
    };
    // What is said to fit does, and not much more would.
    assert!(total(rows, 2) <= free, "{rows} rows are {} bytes of {free}", total(rows, 2));
    assert!(total(rows + rows / 16 + 1, 2) > free, "{rows} rows are far from {free}");
    let text = error.to_string();
    for part in ["largest part is a step's arena", "weights 33554432", "`T`", "max_num_tokens"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The same of a budget, and where no step is small enough.
    let budget = total(8, 2);
    assert!(wide(8, 2).memory_budget(budget).plan().is_ok());
    let error = wide(64, 2).memory_budget(budget).plan().unwrap_err();
    let AssemblyError::DoesNotFit { from, rows, .. } = error else { panic!("{error}") };
    assert!(from == "memory_budget" && (7..=8).contains(&rows), "{error}");
    let error = wide(64, 8).memory_budget(64 << 20).plan().unwrap_err().to_string();
    assert!(error.contains("largest part is") && error.contains("smaller dtype"), "{error}");
}

#[test]
fn a_size_of_its_own_is_lowered_once_a_step_wants_it() {
    let lowered = |engine: &Engine| engine.model().statistics().compile.total_compiled();
    let own = || tiny().set("compile_sizes", vec![3u64]);
    let mut without = tiny().engine().unwrap();
    let at_start = lowered(&without);
    let expected = generated(&mut without);
    let mut engine = own().engine().unwrap();
    assert_eq!(lowered(&engine), at_start, "nothing more than without it");
    let started = Instant::now();
    while engine.model().dispatcher().rules.specialized.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(600));
        assert_eq!(generated(&mut engine), expected);
    }
    assert_eq!(engine.model().dispatcher().rules.specialized, [3]);
    assert!(lowered(&engine) > at_start);
    assert_eq!(generated(&mut engine), expected);
    // What a budget counts is lowered before.
    let budgeted = own().memory_budget(24 << 20).engine().unwrap();
    assert_eq!(lowered(&budgeted), lowered(&engine));
}

#[test]
fn models_on_one_open_device_do_not_disturb_each_other() {
    let device = DeviceSpec::Cpu.open(1).unwrap();
    let expected = generated(&mut tiny().engine().unwrap());
    let mut session = graph().on(&device).session().unwrap();
    let mut engines = [(); 2].map(|()| tiny().on(&device).engine().unwrap());
    for _ in 0..2 {
        for engine in &mut engines {
            assert_eq!(generated(engine), expected);
        }
        let outputs = session.step().input("x", &[1.0f32, 2.0]).run().unwrap();
        assert_eq!(outputs.get::<f32>(0).unwrap(), [4.0, 8.0]);
    }
}

#[test]
fn models_on_one_open_device_step_at_the_same_time() {
    let device = DeviceSpec::Cpu.open(2).unwrap();
    let mut sessions = [(); 2].map(|()| graph().on(&device).session().unwrap());
    std::thread::scope(|scope| {
        for (i, session) in sessions.iter_mut().enumerate() {
            scope.spawn(move || {
                for n in 0..200 {
                    let x = (i * 1000 + n) as f32;
                    let outputs = session.step().input("x", &[x, -x]).run().unwrap();
                    assert_eq!(outputs.get::<f32>(0).unwrap(), [4.0 * x, -4.0 * x]);
                }
            });
        }
    });
}

#[test]
fn a_text_a_graph_and_a_planned_text_are_the_same_model() {
    let planned = graph().plan().unwrap();
    let text = piecewise_ir::text::print_module(planned.module());
    let bare = piecewise_ir::text::print_graph(&quadrupled());
    for text in [&text, &bare] {
        let assembly = Assembly::text("a text", text).unwrap().set("cache.enabled", false);
        let mut session = assembly.threads(1).session().unwrap();
        let outputs = session.step().input("x", &[0.5f32, 1.0]).run().unwrap();
        assert_eq!(outputs.get::<f32>(0).unwrap(), [2.0, 4.0]);
    }
    let error = Assembly::text("a text", "graph").unwrap_err().to_string();
    assert!(error.starts_with("a text does not parse: "), "{error}");
}

/// Slots have moved by a page, and nothing lies in the room before them.
#[test]
fn a_text_that_brings_its_plan_runs_by_it_and_no_pass_runs() {
    let planned = graph().plan().unwrap();
    assert!(!planned.passes().passes.is_empty());
    let mut moved = planned.module().clone();
    let mut layout = moved.layout().unwrap().clone();
    let by = 4096;
    for (offset, slot) in layout.offsets.iter_mut().zip(moved.slots().unwrap().slots.values()) {
        *offset += if slot.kind == SlotKind::Input { 0 } else { by };
    }
    layout.bytes += by;
    moved.set_layout(layout);
    let text = piecewise_ir::text::print_module(&moved);
    assert_ne!(text, piecewise_ir::text::print_module(planned.module()));
    let assembly = || {
        let assembly = Assembly::text("a text", &text).unwrap().set("cache.enabled", false);
        assembly.threads(1).set("strict", true)
    };
    let brought = assembly().plan().unwrap();
    assert_eq!(piecewise_ir::text::print_module(brought.module()), text);
    assert!(brought.passes().passes.is_empty(), "{:?}", brought.passes());
    let mut session = assembly().session().unwrap();
    assert_eq!(session.model().ledger().slots, planned.ledger().unwrap().slots + by);
    let outputs = session.step().input("x", &[0.5f32, 1.0]).run().unwrap();
    assert_eq!(outputs.get::<f32>(0).unwrap(), [2.0, 4.0]);
}

#[test]
fn a_device_that_makes_no_stream_is_named_by_its_own_number() {
    let faults = Faults::default();
    let options = CudaOptions { ordinal: 1, ..CudaOptions::default() };
    let device = simulated(options, OpRegistry::new(), &faults).unwrap().into();
    faults.fail(CallFault::always("cuStreamCreate", 2));
    let error = graph().on(&device).session().unwrap_err();
    let AssemblyError::Device(error) = &error else { panic!("{error}") };
    assert!(matches!(**error, OpenError::Device { device: DeviceSpec::Cuda(1), .. }), "{error}");
}

#[test]
fn settings_know_where_they_came_from() {
    let layers = ConfigLayers::new().file("a.toml", "max_num_tokens = 16\nstrict = true").unwrap();
    let layers = layers.flag("tune", "off", "--tune").unwrap();
    let assembly = Assembly::folder(TINY).unwrap().configure(layers).max_num_tokens(8);
    let settings = assembly.settings().unwrap();
    let configured = settings.configured().unwrap();
    assert_eq!((settings.config.max_num_tokens, settings.config.strict), (8, true));
    assert_eq!(configured.source("max_num_tokens"), Source::Program);
    assert_eq!(configured.source("strict"), Source::File("a.toml".to_owned()));
    assert_eq!(configured.source("tune"), Source::Flag("--tune".to_owned()));
    assert!(matches!(configured.source("dtype"), Source::Derived(_)));
    assert_eq!(configured.source("padding"), Source::Default);
    // Files lie beneath what is set, whatever the order of calls; of two files the later is on top.
    let file = |name, text| ConfigLayers::new().file(name, text).unwrap();
    let set = Assembly::folder(TINY).unwrap().max_num_tokens(8).flag("tune", "load", "--tune");
    let set = set.configure(file("a.toml", "max_num_tokens = 16\nstrict = true\ntune = \"off\""));
    let set = set.configure(file("b.toml", "strict = false\n[cache]\nenabled = false"));
    let configured = set.settings().unwrap().configured().unwrap();
    let (config, from) = (&configured.config, |key| configured.source(key).to_string());
    assert_eq!((config.max_num_tokens, config.strict, config.cache.enabled), (8, false, false));
    assert_eq!([from("max_num_tokens"), from("tune")], ["set by the program", "--tune"]);
    assert_eq!([from("strict"), from("cache.enabled")], ["b.toml", "b.toml"]);
    let typed = tiny().memory_fraction(0.5).capture(CaptureWhen::Lazy).strict().cache_dir("kept");
    let typed = typed.no_cache().settings().unwrap().config;
    assert_eq!((typed.memory_fraction, typed.capture), (Some(0.5), CaptureWhen::Lazy));
    assert_eq!((typed.strict, typed.cache.enabled), (true, false));
    assert_eq!(typed.cache.dir.as_deref(), Some(Path::new("kept")));
    // A mistake made before is not forgotten.
    let wrong = tiny().set("tuna", 1).configure(ConfigLayers::new()).plan().unwrap_err();
    assert!(wrong.to_string().contains("`tuna`"), "{wrong}");
    let wrong = |assembly: Assembly| assembly.plan().unwrap_err().to_string();
    assert!(wrong(tiny().set("max_tokens", 1)).contains("did you mean `max_num_tokens`?"));
    let error = wrong(tiny().set("strict", 3));
    assert!(error.contains("set by the program: strict can't be 3"), "{error}");
    let error = wrong(tiny().max_seq_len(1 << 20));
    assert!(error.contains("max_position_embeddings"), "{error}");
    let error = wrong(tiny().set("device", "gpu"));
    assert!(error.contains("`gpu` is no device"), "{error}");
    let error = wrong(tiny().split_at(["no.such"]));
    assert!(error.contains("\"no.such\"") && error.contains("paged_attention"), "{error}");
    let arch = "cuda:sm_90".parse().unwrap();
    let error = tiny().device(arch).engine().unwrap_err().to_string();
    assert!(error.contains("cuda:sm_90") || error.contains("NVRTC"), "{error}");
}

/// Counts the nodes that it sees, and with the option `breaks` leaves the graph wrong.
#[derive(Debug)]
struct Own {
    name: String,
    seen: Arc<AtomicUsize>,
    breaks: bool,
}

impl Pass for Own {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
        let graph = module.graph_mut();
        let nodes: Vec<_> = graph.nodes().collect();
        self.seen.fetch_add(nodes.len(), Ordering::Relaxed);
        if self.breaks {
            graph.set_symbol_bounds(graph.symbols().keys().next().unwrap(), 9, 1);
        }
        Ok(PassReport::default())
    }
}

/// Passes of one's own share what they were made with, and neither names nor options need be literals.
fn with_seen(text: &str, seen: &Arc<AtomicUsize>) -> Assembly {
    let (seen, option) = (Arc::clone(seen), String::from("breaks"));
    let name = format!("own.{}", "count");
    let assembly = graph().pass(name.clone(), &[&option], move |options| {
        let (name, seen) = (name.clone(), Arc::clone(&seen));
        Ok(Box::new(Own { name, seen, breaks: options.flag("breaks")? }))
    });
    assembly.pipeline(text)
}

fn with_own(text: &str) -> Assembly {
    with_seen(text, &Arc::default())
}

#[test]
fn a_pass_of_ones_own_runs_where_the_text_names_it() {
    let (seen, text) = (Arc::default(), format!("own.count,{DEFAULT_PIPELINE}"));
    let planned = with_seen(&text, &seen).plan().unwrap();
    assert!(seen.load(Ordering::Relaxed) > 0);
    assert_eq!(planned.passes().passes[0].name, "own.count");
    let fused = planned.module().graph().nodes().count();
    let mut session = planned.session().unwrap();
    assert_eq!(
        session.step().input("x", &[1.0f32; 2]).run().unwrap().get::<f32>(0).unwrap(),
        [4.0; 2]
    );
    // Unfused, nothing before the split runs.
    let eager = with_own(&text).level(CompileLevel::Eager).plan().unwrap();
    assert!(eager.passes().of("own.count").is_none());
    let is_region = |g: &Graph| g.nodes().any(|n| matches!(g.node(n).op, Op::Region(_)));
    assert!(fused > 0 && !is_region(eager.module().graph()));
}

/// Both launch op by op. Trace runs and checks every pass, so that one that is wrong is found, and uses
/// nothing of what they made.
#[test]
fn trace_runs_the_passes_that_eager_leaves_out() {
    let of =
        |level, text: &str| with_own(&format!("{text},{DEFAULT_PIPELINE}")).level(level).plan();
    let eager = of(CompileLevel::Eager, "own.count{breaks}").unwrap();
    let error = of(CompileLevel::Trace, "own.count{breaks}").unwrap_err().to_string();
    assert!(error.contains("own.count"), "{error}");
    let trace = of(CompileLevel::Trace, "own.count").unwrap();
    assert_eq!(trace.module(), eager.module());
    assert_ne!(of(CompileLevel::Compile, "own.count").unwrap().module(), eager.module());
}

#[test]
fn a_pipeline_that_can_not_be_used_is_named() {
    let error = |text: &str| with_own(text).plan().unwrap_err().to_string();
    let breaks = error(&format!("own.count{{breaks}},{DEFAULT_PIPELINE}"));
    assert!(breaks.contains("after own.count") && breaks.contains("V0101"), "{breaks}");
    let unknown = error("own.cuont,split,destination,plan");
    assert!(unknown.contains("unknown pass `own.cuont`, did you mean `own.count`?"), "{unknown}");
    assert!(error("own.count{broken}").contains("no option `broken`"));
    assert!(error("split,").contains("pipeline column"));
    let error = with_own("own.count,split").session().unwrap_err().to_string();
    assert!(error.contains("layout"), "{error}");
}

#[test]
fn what_watches_hears_of_progress_and_warnings() {
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let to = Arc::clone(&heard);
    let assembly =
        tiny().graph_mode(GraphMode::None).level(CompileLevel::Compile).watch(move |notice| {
            to.lock().unwrap().push(format!("{notice:?}"));
        });
    assembly.graph_mode(GraphMode::Full).engine().unwrap();
    let heard = heard.lock().unwrap().join("\n");
    for part in ["Warning(\"graph_mode = full has no effect", "Compiling", "Loading"] {
        assert!(heard.contains(part), "{part} in {heard}");
    }
}

#[test]
fn a_session_counts_several_symbols_and_says_when_it_decodes() {
    let b = Builder::new("several");
    let t = b.symbol("T", 1, 8);
    let s = b.symbol_with_role("S", 1, 4, roles::SEQUENCES);
    let x = b.input("x", DType::F32, (t, 2));
    let starts = b.input("starts", DType::I32, [s]).padding(0.0);
    let graph = b.finish([x * 2.0, starts]).unwrap();
    let assembly = Assembly::graph(graph).set("cache.enabled", false).threads(1);
    let mut session = assembly.session().unwrap();
    let step = session.step().input("x", &[1.0f32; 12]).input("starts", &[0i32, 2, 4]);
    let outputs = step.run().unwrap();
    assert_eq!((outputs.shape(0).unwrap(), outputs.shape(1).unwrap()), (&[6, 2][..], &[3][..]));
    assert_eq!(outputs.get::<i32>(1).unwrap(), [0, 2, 4]);
    let step = session.step().input("x", &[1.0f32; 8]).input("starts", &[0i32, 1, 2, 3]);
    assert_eq!(step.query_length(1).run().unwrap().get::<f32>(0).unwrap(), [2.0; 8]);
    assert_eq!(session.model().last_step().unwrap().mode, StepMode::Full);
    let step = session.step().input("x", &[1.0f32; 4]).input("starts", &[0i32, 1, 2]);
    assert_eq!(step.query_length(1).run().unwrap().get::<f32>(0).unwrap(), [2.0; 4]);
    assert_eq!(
        session.model().last_step().unwrap().mode,
        StepMode::Piecewise,
        "not one token each"
    );
}
