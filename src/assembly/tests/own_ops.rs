//! What is said of custom ops is held against their definitions: those of the framework and one's own.

use super::*;
use piecewise_passes::pipeline::DEFAULT_PIPELINE;

/// A sum that goes on in a state.
#[derive(Debug)]
struct Sum;

impl CustomOpDef for Sum {
    fn name(&self) -> &str {
        "own.sum"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        match operands {
            [x, _] => Ok(vec![x.clone()]),
            _ => Err("wants x and a carry".to_owned()),
        }
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

fn ops() -> OpRegistry {
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(Sum));
    ops
}

fn summed() -> Graph {
    let b = Builder::new("summed");
    let t = b.symbol("T", 1, 8);
    let x = b.input("x", DType::F32, (t, 2));
    let carry = b.state("carry", DType::F32, (1, 2));
    b.finish([b.custom_one(&Sum, &[x, carry], Attrs::new())]).unwrap()
}

/// `x`, in captured steps as far as it says.
#[derive(Debug)]
pub(super) struct Captured(pub(super) CaptureSupport);

impl CustomOpDef for Captured {
    fn name(&self) -> &str {
        "own.captured"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Independent
    }
}

impl CpuOp for Captured {
    fn name(&self) -> &str {
        CustomOpDef::name(self)
    }

    fn capture_support(&self) -> CaptureSupport {
        self.0
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        args.write::<f32>(1)?.copy_from_slice(args.read::<f32>(0)?);
        Ok(())
    }
}

/// What encoders do unless somebody says otherwise.
#[test]
fn steps_are_whole_where_every_op_can_be_captured_in_any() {
    let assembly = |support| {
        let b = Builder::new("captured");
        let t = b.symbol("T", 1, 8);
        let x = b.input("x", DType::F32, (t, 2));
        let graph = b.finish([b.custom_one(&Captured(support), &[x], Attrs::new())]).unwrap();
        let mut ops = OpRegistry::builtin();
        ops.define(Arc::new(Captured(support))).implement_cpu(Arc::new(Captured(support)));
        Assembly::graph(graph).ops(ops).set("cache.enabled", false).device(DeviceSpec::Cpu)
    };
    let mode = |assembly: Assembly| {
        let settings = assembly.whole_where_possible().unwrap().settings().unwrap();
        settings.config.graph_mode
    };
    assert_eq!(mode(assembly(CaptureSupport::Always)), GraphMode::Full);
    for support in
        [CaptureSupport::UniformBatch, CaptureSupport::SingleTokenDecode, CaptureSupport::Never]
    {
        assert_eq!(mode(assembly(support)), GraphMode::Piecewise, "{support:?}");
    }
    let always = || assembly(CaptureSupport::Always);
    assert_eq!(mode(always().graph_mode(GraphMode::None)), GraphMode::None, "chosen");
    assert_eq!(mode(always().set("capture_exclude", ["any"])), GraphMode::Piecewise);
    // A run may find the one device or the other, and the GPU has no implementation.
    assert_eq!(mode(always().device(DeviceSpec::Auto)), GraphMode::Piecewise);
}

fn text_of(graph: Graph, ops: OpRegistry) -> [String; 2] {
    let planned = Assembly::graph(graph.clone()).ops(ops).set("cache.enabled", false).plan();
    let planned = piecewise_ir::text::print_module(planned.unwrap().module());
    [piecewise_ir::text::print_graph(&graph), planned]
}

fn refused(text: &str, ops: OpRegistry) -> String {
    let assembly = Assembly::text("a text", text).unwrap().ops(ops).set("cache.enabled", false);
    assembly.plan().unwrap_err().to_string()
}

#[test]
fn a_text_that_lies_about_an_op_is_refused_planned_or_not() {
    let tiny = Assembly::folder(TINY).unwrap().set("cache.enabled", false).plan().unwrap();
    let attends = tiny.module().graph().clone();
    for text in text_of(attends, OpRegistry::builtin()) {
        let lie = text.replace("rows masked split", "rows independent split");
        assert_ne!(lie, text);
        let error = refused(&lie, OpRegistry::builtin());
        assert!(error.contains("V0502") && error.contains("piecewise.paged_attention"), "{error}");
        assert!(error.contains("says rows independent, but its definition masked"), "{error}");
    }
    for text in text_of(summed(), ops()) {
        let lie = text.replace(", mut s0", ", s0");
        assert_ne!(lie, text);
        let error = refused(&lie, ops());
        assert!(error.contains("V0502") && error.contains("own.sum"), "{error}");
        assert!(error.contains("says mutates [], but its definition [1]"), "{error}");
        // Nobody knows the op: it is taken at its word.
        Assembly::text("a text", &lie).unwrap().set("cache.enabled", false).plan().unwrap();
    }
}

/// Asks for the definition of the op.
#[derive(Debug)]
struct Asks;

impl Pass for Asks {
    fn name(&self) -> &'static str {
        "own.asks"
    }

    fn run(&self, _: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
        let mut report = PassReport::default();
        report.count_many(
            "defined",
            ["own.sum", "piecewise.sample"].map(|name| cx.defs.get(name)).iter().flatten().count(),
        );
        Ok(report)
    }
}

#[test]
fn a_pass_of_ones_own_knows_the_ops_of_the_assembly() {
    let assembly = Assembly::graph(summed()).ops(ops()).set("cache.enabled", false);
    let assembly = assembly.pass("own.asks", &[], |_| Ok(Box::new(Asks)));
    let planned = assembly.pipeline(format!("own.asks,{DEFAULT_PIPELINE}")).plan().unwrap();
    assert_eq!(planned.passes().passes[0].report.matches("defined"), 2);
}
