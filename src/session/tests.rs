use super::*;
use crate::prelude::*;
use piecewise_ir::builder::BuildErrors;
use piecewise_ir::custom::Attr;
use piecewise_runtime::words::CompileLevel;
use piecewise_testing::MixOp;
use std::sync::Arc;

/// An assembly that leaves the user's cache alone.
fn assembly(graph: Graph) -> Assembly {
    Assembly::graph(graph).set("cache.enabled", false)
}

fn doubled() -> Graph {
    let b = Builder::new("doubled");
    let t = b.symbol("T", 1, 8);
    let x = b.input("x", DType::F32, (t, 2));
    let keep = b.input("keep", DType::Bool, (t, 1));
    let zero = b.scalar(DType::F32, 0.0);
    b.finish([keep.select(x + x, zero), keep]).unwrap()
}

#[test]
fn a_step_of_every_size_gives_the_real_rows_of_typed_outputs() {
    let mut session = assembly(doubled()).capture_sizes([2, 4]).session().unwrap();
    for rows in 1..=8usize {
        let x: Vec<f32> = (0..2 * rows).map(|i| i as f32).collect();
        let keep: Vec<bool> = (0..rows).map(|i| i % 2 == 0).collect();
        let outputs = session.step().input("keep", &keep).input("x", &x).run().unwrap();
        let want: Vec<f32> =
            x.iter().enumerate().map(|(i, x)| if keep[i / 2] { 2.0 * x } else { 0.0 }).collect();
        assert_eq!(outputs.get::<f32>(0).unwrap(), want);
        assert_eq!(outputs.get::<bool>(1).unwrap(), keep);
        assert_eq!(outputs.shape(0).unwrap(), [rows as u64, 2]);
        let mode = session.model().last_step().unwrap().mode;
        assert_eq!(mode, if rows <= 4 { StepMode::Piecewise } else { StepMode::None });
    }
}

#[test]
fn graphs_that_were_dropped_are_captured_again_by_the_steps_that_want_them_or_at_once() {
    let mut session = assembly(doubled()).capture_sizes([2, 4]).session().unwrap();
    let step = |session: &mut Session, rows: usize| {
        let (x, keep) = (vec![1.0f32; 2 * rows], vec![true; rows]);
        let outputs = session.step().input("x", &x).input("keep", &keep).run().unwrap();
        assert_eq!(outputs.get::<f32>(0).unwrap(), vec![2.0; 2 * rows]);
        assert_eq!(session.model().last_step().unwrap().mode, StepMode::Piecewise);
        (session.model().statistics().captures, session.model().statistics().recaptures)
    };
    assert_eq!(step(&mut session, 2), (2, 0));
    session.model_mut().invalidate_graphs();
    assert_eq!(step(&mut session, 2), (3, 1));
    assert_eq!(session.model_mut().enable_graphs().unwrap(), 2);
    assert_eq!(step(&mut session, 4), (4, 2));
}

/// Slots that an input gives are held against each other, in every mode and whatever else is staged;
/// those that the graph makes of it may meet, and one of the rows stays.
#[test]
fn rows_with_one_slot_are_refused_by_name_unless_the_graph_made_it() {
    for level in [CompileLevel::Eager, CompileLevel::default()] {
        let b = Builder::new("kept");
        let t = b.symbol("T", 1, 8);
        let (x, at) =
            (b.input("x", DType::F32, (t, 2)), b.input("at", DType::I32, [t]).padding(-1));
        let (kept, made) =
            (b.state("kept", DType::F32, (4, 2)), b.state("made", DType::F32, (4, 2)));
        kept.scatter(at, x + x);
        made.scatter(at.minimum(b.scalar(DType::I32, 1.0)), x);
        let graph = b.finish([kept.reduce_sum([1]), made.reduce_sum([1])]).unwrap();
        let mut session = assembly(graph).level(level).capture_sizes([2, 4]).session().unwrap();
        let mut step = |rows: &[f32], slots: &[i32]| {
            let outputs = session.step().input("x", rows).input("at", slots).run()?;
            Ok::<_, SessionError>([0, 1].map(|i| outputs.get::<f32>(i).unwrap()))
        };
        let [kept, _] = step(&[1.0, 0.0, 2.0, 0.0], &[3, 0]).unwrap();
        assert_eq!(kept, [4.0, 0.0, 0.0, 2.0]);
        for rows in [2, 3, 6] {
            let mut slots = vec![-1; rows];
            (slots[0], slots[rows - 1]) = (2, 2);
            let error = step(&vec![1.0; 2 * rows], &slots).unwrap_err().to_string();
            assert!(error.contains("input %at: names row 2 of state `kept` twice"), "{error}");
        }
        let [kept, made] = step(&[5.0, 0.0, 7.0, 0.0, 0.0, 0.0], &[1, 2, -1]).unwrap();
        assert_eq!(kept, [4.0, 10.0, 14.0, 2.0], "what was refused wrote nothing");
        assert!(made[1] == 5.0 || made[1] == 7.0, "{made:?}");
    }
}

/// [`MixOp`] of rows of one column.
#[derive(Debug)]
struct CpuMix;

impl CpuOp for CpuMix {
    fn name(&self) -> &str {
        MixOp::NAME
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, slots) = (args.read::<f32>(0)?, args.read::<i32>(2)?);
        let (state, y) = (args.write::<f32>(1)?, args.write::<f32>(3)?);
        let mut sum = 0.0;
        for (i, &slot) in slots.iter().enumerate().take(args.true_dim(0, 0)) {
            sum += x[i];
            let kept = usize::try_from(slot).ok().and_then(|slot| state.get_mut(slot));
            y[i] = 0.5 * (x[i] + sum / (i + 1) as f32 + kept.as_deref().copied().unwrap_or(0.0));
            if let Some(kept) = kept {
                *kept = y[i];
            }
        }
        Ok(())
    }
}

/// As those of a scatter, the slots of an op whose definition says that it scatters at them.
#[test]
fn rows_with_one_slot_are_refused_by_name_where_an_op_of_ones_own_writes_them() {
    for level in [CompileLevel::Eager, CompileLevel::default()] {
        let b = Builder::new("mixed");
        let t = b.symbol("T", 1, 8);
        let (x, at) =
            (b.input("x", DType::F32, (t, 1)), b.input("at", DType::I32, [t]).padding(-1));
        let kept = b.state("kept", DType::F32, (4, 1));
        let scale = Attrs::from([("scale".to_owned(), Attr::Float(0.5))]);
        let graph = b.finish([b.custom_one(&MixOp, &[x, kept, at], scale)]).unwrap();
        let mut registry = OpRegistry::new();
        registry.define(Arc::new(MixOp));
        registry.implement_cpu(Arc::new(CpuMix));
        let builder = assembly(graph).ops(registry).level(level).capture_sizes([2, 4]);
        let mut session = builder.session().unwrap();
        let mut step = |rows: &[f32], slots: &[i32]| {
            let outputs = session.step().input("x", rows).input("at", slots).run()?;
            Ok::<Vec<f32>, SessionError>(outputs.get(0).unwrap())
        };
        assert_eq!(step(&[2.0, 4.0], &[3, 0]).unwrap(), [2.0, 3.5]);
        for rows in [2, 3, 6] {
            let mut slots = vec![-1; rows];
            (slots[0], slots[rows - 1]) = (3, 3);
            let error = step(&vec![1.0; rows], &slots).unwrap_err().to_string();
            assert!(error.contains("input %at: names row 3 of state `kept` twice"), "{error}");
        }
        let found = step(&[0.0; 4], &[3, -1, 0, -1]).unwrap();
        assert_eq!(found, [1.0, 0.0, 1.75, 0.0], "what was refused wrote nothing");
    }
}

#[test]
fn inputs_that_do_not_fit_are_named_and_leave_the_session_usable() {
    let mut session = assembly(doubled()).session().unwrap();
    let keep = [true];
    let error = session.step().input("x", &[1.0f32, 2.0]).run().unwrap_err();
    assert!(matches!(&error, SessionError::MissingInput { input, .. } if input == "keep"));
    let error = session.step().input("x", &[1i32, 2]).input("keep", &keep).run().unwrap_err();
    assert_eq!(error.to_string(), "input %x is declared as f32, but the step brings i32");
    let mut lengths = |x: &[f32], keep: &[bool]| {
        session.step().input("x", x).input("keep", keep).run().unwrap_err().to_string()
    };
    assert_eq!(
        lengths(&[1.0; 3], &keep),
        "input %x holds 3 values: a row of it has 2, so give a multiple of that"
    );
    assert_eq!(
        lengths(&[1.0; 18], &[true; 9]),
        "input %x holds 18 values: that makes T = 9, declared from 1 to 8"
    );
    assert!(lengths(&[], &[]).contains("T = 0"));
    assert_eq!(
        lengths(&[1.0; 4], &keep),
        "input %keep holds 1 values: that makes T = 1, but %x makes 2"
    );
    let step = session.step().input("x", &[1.0f32, 2.0]).input("keep", &keep);
    let error = step.input("z", &[0u8]).run().unwrap_err();
    assert_eq!(error.to_string(), "the graph has no input %z; it has: %x, %keep");
    let outputs = session.step().input("x", &[1.0f32, 2.0]).input("keep", &keep).run().unwrap();
    assert_eq!(outputs.get::<f32>(0).unwrap(), [2.0, 4.0]);
    assert!(matches!(outputs.get::<u8>(1), Err(SessionError::OutputType { output: 1, .. })));
    assert!(matches!(outputs.shape(2), Err(SessionError::UnknownOutput { outputs: 2, .. })));
}

/// Larger than what is copied at a time, in parts that end elsewhere, with other inputs beside it.
#[test]
fn a_large_input_in_parts_arrives_whole() {
    const WIDTH: usize = 70_000;
    let b = Builder::new("large");
    let t = b.symbol("T", 1, 40);
    let x = b.input("x", DType::F32, (t, WIDTH as u64));
    let y = b.input("y", DType::F32, (t, WIDTH as u64));
    let keep = b.input("keep", DType::Bool, (t, 1));
    let graph = b.finish([keep.select(x, y)]).unwrap();
    let mut session = assembly(graph).capture_sizes([40]).session().unwrap();
    for rows in [40, 33, 2] {
        let values = |from: usize| Vec::from_iter((from..from + rows * WIDTH).map(|i| i as f32));
        let (x, y) = (values(0), values(7));
        let keep = Vec::from_iter((0..rows).map(|i| i % 3 == 0));
        let (first, rest) = x.split_at(WIDTH / 3);
        let (second, third) = rest.split_at(rest.len() / 2 + 11);
        let step = session.step().input_parts("x", &[first, second, &[], third]);
        let outputs = step.input("y", &y).input("keep", &keep).run().unwrap();
        let found = outputs.get::<f32>(0).unwrap();
        let want = |i: usize| if keep[i / WIDTH] { x[i] } else { y[i] };
        assert!(found.iter().enumerate().all(|(i, &found)| found == want(i)), "{rows} rows");
    }
}

#[test]
fn static_inputs_and_graphs_without_symbols_run() {
    let b = Builder::new("static");
    let x = b.input("x", DType::F32, [3]);
    let graph = b.finish([x * x]).unwrap();
    let mut session = assembly(graph).session().unwrap();
    let outputs = session.step().input("x", &[1.0f32, 2.0, 3.0]).run().unwrap();
    assert_eq!(outputs.get::<f32>(0).unwrap(), [1.0, 4.0, 9.0]);
    let error = session.step().input("x", &[1.0f32]).run().unwrap_err().to_string();
    assert!(error.contains("%x") && error.contains("4 bytes"), "{error}");
}

fn weighted() -> Result<Graph, BuildErrors> {
    let b = Builder::new("weighted").weight_dtype(DType::F32);
    let t = b.symbol("T", 1, 4);
    let x = b.input("x", DType::F32, (t, 2));
    b.finish([x.linear(b.weight("w", [3, 2]))])
}

#[test]
fn weights_are_checked_against_the_graph() {
    let error = |weights: InMemoryWeights| {
        assembly(weighted().unwrap()).weights(weights).session().unwrap_err().to_string()
    };
    assert!(error(InMemoryWeights::new()).contains("no tensor \"w\""));
    let of = |shape: [u64; 2], n| InMemoryWeights::new().with("w", shape, vec![1.0f32; n]);
    let wrong = error(of([2, 3], 6));
    assert!(wrong.contains("f32[2, 3]") && wrong.contains("f32[3, 2]"), "{wrong}");
    assert!(error(of([3, 2], 5)).contains("5 values"));
    let wrong = error(InMemoryWeights::new().with("w", [3, 2], vec![1u8; 6]));
    assert!(wrong.contains("u8[3, 2]"), "{wrong}");
    let mut session =
        assembly(weighted().unwrap()).weights(of([3, 2], 6)).threads(1).session().unwrap();
    let outputs = session.step().input("x", &[1.0f32, 2.0]).run().unwrap();
    assert_eq!(outputs.get::<f32>(0).unwrap(), [3.0; 3]);
}

#[test]
fn graphs_that_a_session_can_not_size_are_refused() {
    let refused = |build: fn(&Builder) -> Result<Graph, BuildErrors>| {
        assembly(build(&Builder::new("g")).unwrap()).session().unwrap_err().to_string()
    };
    let error = refused(|b| {
        let t = b.symbol("T", 1, 4);
        b.symbol_with_role("S", 1, 4, roles::SEQUENCES);
        b.finish([b.input("x", DType::F32, [t]).abs()])
    });
    assert!(error.starts_with("symbol S is the outermost dimension of no input"), "{error}");
    let error = refused(|b| {
        let t = b.symbol("T", 1, 4);
        let x = b.input("x", DType::F32, [t]);
        let u = b.symbol("U", 1, 4);
        b.finish([x.abs(), b.input("y", DType::F32, [u]).abs()])
    });
    assert!(error.starts_with("symbol U and symbol T both count"), "{error}");
    let error = assembly(doubled()).capture_sizes([0, 2]).session().unwrap_err();
    assert!(matches!(error, AssemblyError::Config(_)), "{error}");
    let error = assembly(doubled()).capture_sizes([9]).session().unwrap_err();
    assert!(error.to_string().contains("max_num_tokens = 8"), "{error}");
}

#[test]
fn every_level_and_mode_gives_the_same_values() {
    let x = [0.5f32, -1.5, 2.0, 4.0];
    let run = |level, mode| {
        let weights = InMemoryWeights::new().with("w", [3, 2], [0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6]);
        let builder = assembly(weighted().unwrap()).weights(weights).level(level);
        let mut session = builder.graph_mode(mode).session().unwrap();
        let values = session.step().input("x", &x).run().unwrap().get::<f32>(0).unwrap();
        (values, session.model().last_step().unwrap().mode)
    };
    let (expected, mode) = run(CompileLevel::Piecewise, GraphMode::Piecewise);
    assert_eq!(mode, StepMode::Piecewise);
    for level in [CompileLevel::Eager, CompileLevel::Trace, CompileLevel::Compile] {
        assert_eq!(run(level, GraphMode::Piecewise), (expected.clone(), StepMode::None));
    }
    assert_eq!(run(CompileLevel::Piecewise, GraphMode::Full), (expected, StepMode::Full));
}

/// Adds how often it was launched, and ran before, to every row.
#[derive(Debug)]
struct CountLaunches;

impl CustomOpDef for CountLaunches {
    fn name(&self) -> &str {
        "test.count_launches"
    }
    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(vec![operands[0].clone()])
    }
    fn mutates(&self) -> Vec<usize> {
        vec![1]
    }
    fn rows(&self) -> RowTreatment {
        RowTreatment::Masked
    }
    fn splits(&self) -> bool {
        true
    }
}

impl CpuOp for CountLaunches {
    fn name(&self) -> &str {
        "test.count_launches"
    }
    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let launches = args.write::<f32>(1)?;
        launches[0] += 1.0;
        let rows = args.true_dim(0, 0);
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(2)?);
        for (y, x) in y.iter_mut().zip(x).take(rows) {
            *y = x + launches[0];
        }
        Ok(())
    }
}

#[test]
fn a_state_that_a_custom_op_mutates_is_zero_before_the_first_step_in_every_mode() {
    for mode in GraphMode::ALL {
        for split_ops in [vec!["test.count_launches"], vec![]] {
            let b = Builder::new("counting");
            let t = b.symbol("T", 1, 4);
            let x = b.input("x", DType::F32, [t]);
            let state = b.state("launches", DType::F32, [1]);
            let counted = b.custom_one(&CountLaunches, &[x * 2.0, state], Attrs::new());
            let graph = b.finish([counted * 10.0]).unwrap();
            let mut registry = OpRegistry::new();
            registry.define(Arc::new(CountLaunches));
            registry.implement_cpu(Arc::new(CountLaunches));
            let builder = assembly(graph).ops(registry).graph_mode(mode);
            let mut session = builder.split_at(split_ops).capture_sizes([1, 2]).session().unwrap();
            let mut run = |x: &[f32]| session.step().input("x", x).run().unwrap().get(0).unwrap();
            let steps: [Vec<f32>; 3] = [run(&[1.0]), run(&[1.0, 2.0]), run(&[0.0; 4])];
            assert_eq!(steps, [vec![30.0], vec![40.0, 60.0], vec![30.0; 4]], "{mode:?}");
        }
    }
}
