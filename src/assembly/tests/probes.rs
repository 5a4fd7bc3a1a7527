//! An op that says more of its captures than it holds, on a device that is there.

use super::*;

/// `x`, or `-x` in every other sequence. In a graph it takes each row for a sequence, which is
/// right in decodes of one token alone, whatever it says.
#[derive(Clone, Copy, Debug)]
struct BySequence {
    splits: bool,
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
fn ids(engine: &mut dyn Engine) -> Vec<(RequestId, u32)> {
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
        let op = BySequence { splits };
        let expected = ids(&mut *assembly(op).graph_mode(GraphMode::None).engine().unwrap());
        let mut engine = assembly(op).engine().unwrap();
        let reason = engine.lowered_mode().unwrap();
        assert!(reason.contains("`test.by_sequence`"), "{reason}");
        assert_eq!(engine.dispatcher().mode, had, "{reason}");
        assert_eq!(ids(&mut *engine), expected);
        assert!(engine.statistics().hits() > 0, "decodes are replayed");
        let error = assembly(op).set("strict", true).engine().unwrap_err().to_string();
        assert!(error.contains("`test.by_sequence`"), "{error}");
        let mut believed = assembly(op).set("probe_capture", false).engine().unwrap();
        assert_ne!(ids(&mut *believed), expected, "the test would see no mistake");
    }
}
