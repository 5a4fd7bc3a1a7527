//! An op that says more of its captures than it holds, on a device that is there.

use super::*;

/// `x`, or `-x` in every other sequence. In a graph it takes each row for a sequence, which is
/// right in decodes of one token alone, whatever it says.
#[derive(Clone, Copy, Debug)]
struct BySequence {
    splits: bool,
    /// Whether it refuses large values, which made-up ones are.
    is_wary: bool,
}

impl CustomOpDef for BySequence {
    fn name(&self) -> &str {
        "test.by_sequence"
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

impl CpuOp for BySequence {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, starts) = (args.read::<f32>(0)?, args.read::<i32>(1)?);
        let y = args.write::<f32>(2)?;
        let starts = &starts[..args.true_dim(1, 0)];
        if self.is_wary && x[..args.true_dim(0, 0) * WIDTH].iter().any(|x| *x > 3.0) {
            return Err(args.error("a value is too large"));
        }
        let rows = y.chunks_exact_mut(WIDTH).zip(x.chunks_exact(WIDTH)).take(args.true_dim(0, 0));
        for (row, (y, x)) in rows.enumerate() {
            let sequence = match args.context() {
                LaunchContext::Step(_) => starts.partition_point(|&start| start <= row as i32),
                LaunchContext::Capture(_) => row + 1,
            };
            let sign = if sequence % 2 == 0 { -1.0 } else { 1.0 };
            y.iter_mut().zip(x).for_each(|(y, x)| *y = sign * x);
        }
        Ok(())
    }
}

const WIDTH: usize = 16;

/// Of a graph whose inputs mean nothing to anybody but the op.
fn session(op: BySequence) -> Assembly {
    let b = Builder::new("by_rows").weight_dtype(DType::F32);
    let t = b.symbol("T", 1, 8);
    let s = b.symbol_with_role("S", 1, 4, roles::SEQUENCES);
    let x = b.input("x", DType::F32, (t, WIDTH as u64));
    let starts = b.input("starts", DType::I32, [s]).padding(0);
    let y = b.custom_one(&op, &[x.silu(), starts], Attrs::new());
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(op)).implement_cpu(Arc::new(op));
    let assembly = Assembly::graph(b.finish([y * 2.0]).unwrap()).ops(ops);
    assembly.set("cache.enabled", false).threads(1).graph_mode(GraphMode::Full)
}

/// What a step of two sequences gives, and how it ran.
fn stepped(session: &mut Session) -> (Vec<f32>, StepMode) {
    let x: Vec<f32> = (0..4 * WIDTH).map(|i| (i % 3) as f32 + 0.5).collect();
    let outputs = session.step().input("x", &x).input("starts", &[0i32, 3]).run().unwrap();
    let found = outputs.get::<f32>(0).unwrap();
    (found, session.model().last_step().unwrap().mode)
}

/// In padded rows an index may be what its input says of padding, and floats anything.
#[test]
fn an_op_of_a_graph_that_is_stepped_by_hand_is_probed_or_named() {
    for (splits, had) in [(true, StepMode::Piecewise), (false, StepMode::None)] {
        let op = BySequence { splits, is_wary: false };
        let launched = session(op).graph_mode(GraphMode::None).session();
        let expected = stepped(&mut launched.unwrap()).0;
        assert_eq!(stepped(&mut session(op).session().unwrap()), (expected.clone(), had));
        let error = session(op).set("strict", true).session().unwrap_err().to_string();
        assert!(error.contains("`test.by_sequence`"), "{error}");
        // Believed it is wrong, and so the warning names it.
        for (assembly, warns) in [
            (session(op).set("probe_capture", false), false),
            (session(BySequence { is_wary: true, ..op }), true),
        ] {
            let said = Said::default();
            let warnings = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
            let writer = said.clone();
            let warnings = warnings.with_writer(move || writer.clone()).with_ansi(false).finish();
            let session = tracing::subscriber::with_default(warnings, || assembly.session());
            let (found, mode) = stepped(&mut session.unwrap());
            assert_eq!((found == expected, mode), (false, StepMode::Full));
            let said = said.text();
            let named = ["`test.by_sequence` is believed", "too large", "checks.compare"];
            assert!(named.iter().all(|part| said.contains(part) == warns), "{said}");
        }
    }
}

/// What was logged.
#[derive(Clone, Debug, Default)]
pub(super) struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn assembly(op: BySequence) -> Assembly {
    let b = Builder::new("by_sequence").weight_dtype(DType::F32);
    let bounds = StepBounds {
        max_tokens: 8,
        max_rows: 2,
        max_sequences: 2,
        max_length: 64,
        kv_rows: 0,
        state_slots: 0,
    };
    let step = StepInputs::declare(&b, &bounds);
    let embedding = b.weight("embedding", [61, WIDTH as u64]);
    let x = embedding.gather(step.ids).silu();
    let x = b.custom_one(&op, &[x, step.attention.query_starts], Attrs::new());
    let x = x.linear(b.weight("out", [WIDTH as u64, WIDTH as u64]));
    let logits = x.gather(step.logit_rows).matmul_transposed(embedding, DType::F32);
    let graph = b.finish([logits, step.sample(logits)]).unwrap();
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(op)).implement_cpu(Arc::new(op));
    let assembly = Assembly::graph(graph).ops(ops).weights(NormalWeights { std: 0.6, seed: 3 });
    let assembly = assembly.set("cache.enabled", false).graph_mode(GraphMode::Full).threads(1);
    assembly.capture_sizes([1, 2, 8])
}

/// The ids of two prompts that come together.
fn ids(engine: &mut Engine) -> Vec<(RequestId, u32)> {
    for prompt in [&[3, 14, 15][..], &[9, 26]] {
        engine.add(Request::new(prompt.to_vec(), 6)).unwrap();
    }
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let id = |event: &RequestEvent| match event {
        RequestEvent::Token { request, id, .. } => Some((*request, *id)),
        _ => None,
    };
    events.iter().filter_map(id).collect()
}

#[test]
fn an_op_is_captured_for_no_batch_for_which_a_probe_shows_it_wrong() {
    for (splits, had) in [(true, GraphMode::FullAndPiecewise), (false, GraphMode::FullDecodeOnly)] {
        let op = BySequence { splits, is_wary: false };
        let expected = ids(&mut assembly(op).graph_mode(GraphMode::None).engine().unwrap());
        let mut engine = assembly(op).engine().unwrap();
        let reason = engine.model().reduced_mode().unwrap();
        assert!(reason.contains("`test.by_sequence`"), "{reason}");
        assert_eq!(engine.model().dispatcher().mode, had, "{reason}");
        assert_eq!(ids(&mut engine), expected);
        assert!(engine.model().statistics().hits() > 0, "decodes are replayed");
        let error = assembly(op).set("strict", true).engine().unwrap_err().to_string();
        assert!(error.contains("`test.by_sequence`"), "{error}");
        let mut believed = assembly(op).set("probe_capture", false).engine().unwrap();
        assert_ne!(ids(&mut believed), expected, "the test would see no mistake");
    }
}
