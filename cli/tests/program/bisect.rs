//! A program of one's own with a pass that is wrong, and the commands that find what is.

use crate::bounded::Bound;
use crate::support::cli::{piecewise, root, stdout_of};
use crate::turned::Turned;
use piecewise::prelude::*;
use serde_json::Value;
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;

/// Where a run of this test program finds the arguments that it is to be called with.
const ARGUMENTS: &str = "PIECEWISE_PLANTED_ARGUMENTS";
const MODEL: &str = "examples/tiny-qwen3";

/// The op of `examples/block.pw`: a row is the sum of all rows up to it.
#[derive(Debug)]
struct Mix;

impl CustomOpDef for Mix {
    fn name(&self) -> &str {
        "any.mix"
    }

    fn infer(&self, operands: &[TensorType], _: &Attrs) -> Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn rows(&self) -> RowTreatment {
        RowTreatment::Mixed
    }
}

impl CpuOp for Mix {
    fn name(&self) -> &str {
        "any.mix"
    }

    fn run(&self, args: &CpuOpArgs<'_>) -> Result<(), OpError> {
        let (x, y) = (args.read::<f32>(0)?, args.write::<f32>(1)?);
        let width = args.dim(0, 1);
        for at in 0..args.true_dim(0, 0) * width {
            y[at] = x[at] + if at < width { 0.0 } else { y[at - width] };
        }
        Ok(())
    }
}

/// The program, where it is called as one; what this prints beside it is a line of the test harness.
#[test]
fn program_of_one_s_own() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let mut ops = OpRegistry::builtin();
    ops.define(Arc::new(Mix)).implement_cpu(Arc::new(Mix));
    let registries = Registries::standard().ops(ops);
    let registries = registries.pass_after("canonicalize", "turned", &[], |_| {
        Ok(Box::new(Turned { counts: true, scope: "" }))
    });
    let arguments = std::iter::once("own").chain(arguments.split('\n'));
    let code = piecewise_cli::main_of(registries, arguments);
    std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 3 });
}

/// What the program of one's own says.
fn own(args: &[&str]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["bisect::program_of_one_s_own", "--exact", "--nocapture", "--test-threads=1"]);
    command.current_dir(root()).env(ARGUMENTS, args.join("\n")).bounded_output().unwrap()
}

fn said(output: &Output) -> String {
    // The harness has begun a line of its own.
    let text = String::from_utf8_lossy(&output.stdout);
    let begins = text.find("program_of_one_s_own ... ").map_or(0, |at| at + 25);
    text[begins..].to_owned()
}

#[test]
fn a_wrong_rewrite_of_an_own_pass_is_found_by_one_command() {
    let output = own(&["bisect", "--model", MODEL, "--dtype", "f32", "--ids", "326,680,596"]);
    let (shown, log) = (said(&output), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!(output.status.code(), Some(3), "{shown}{log}");
    for part in [
        "pass (2) turned is at fault",
        "`turned difference`: ",
        "piecewise opt .. --bisect 2 --bisect-rewrites ",
        "what it did changes what the graph computes",
        "first wrong value: v",
        "= sub ",
        "written at ",
        "--- before turned\n+++ after turned\n",
        "the whole: logits is wrong by ",
    ] {
        assert!(shown.contains(part), "no {part:?} in:\n{shown}\n{log}");
    }
    assert!(log.contains("bisect: at the level piecewise: logits is wrong"), "{log}");
    assert!(log.contains("bisect: passes up to (2) turned, "), "{log}");
    let json =
        own(&["bisect", "--model", MODEL, "--dtype", "f32", "--json", "--against", "reference"]);
    let json: Value = serde_json::from_str(&said(&json)).unwrap();
    let fault = &json["culprit"]["pass"];
    assert_eq!((&fault["name"], &fault["verdict"]), (&"turned".into(), &"wrong_rewrite".into()));
    assert_eq!(fault["rewrite"]["rule"], "turned difference");
    let right = stdout_of(&["bisect", "--model", MODEL, "--dtype", "f32", "--ids", "326,680,596"]);
    assert_eq!(right, "nothing is wrong\n", "without the pass");
}

const GRAPH: &str = "graph @small {
  dim T in [1..64] role \"tokens\"
  input %x: f32[T,8]
  input %at: i32[T] pad 0
  weight w0: f32[16,8] = \"up\"
  weight w1: f32[32,16] = \"table\"
  v0: f32[T,8] = exp %x
  v1: f32[T,8] = sub v0, %x
  v2: f32[T,16] = matmul v1, w0 {transpose_rhs}
  v3: f32[T,16] = gather w1, %at
  v4: f32[T,16] = add v2, v3
  ret v4
}
";

#[test]
fn what_is_wrong_shrinks_and_still_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (large, small) = (path("large.pw"), path("small.pw"));
    std::fs::write(&large, GRAPH).unwrap();
    let output = own(&["reduce", &large, "--out", &small]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && log.contains("reduce: 5 nodes are 1, after "), "{log}");
    let text = std::fs::read_to_string(&small).unwrap();
    assert!(text.contains(" = sub ") && !text.contains("weight"), "{text}");
    assert!(said(&own(&["bisect", &small])).contains("pass (2) turned is at fault"));
    // By a command, which needs no wrong pass.
    let test = "grep -q gather";
    let printed = stdout_of(&["reduce", &large, "--test", test]);
    assert!(printed.contains("= gather ") && !printed.contains("matmul"), "{printed}");
    let none = piecewise(&["reduce", &large]);
    let none = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(none.contains("there is nothing to shrink"), "{none}");
}

#[test]
fn a_graph_runs_on_tensors_and_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (graph, out) = (path("graph.pw"), path("out.safetensors"));
    std::fs::write(&graph, GRAPH).unwrap();
    let run = ["run", &graph, "--input", "at=3,1,2", "--out", &out];
    let shown = stdout_of(&run);
    assert!(shown.starts_with("output_0 f32 [3, 16], blake3 "), "{shown}");
    // What was written is what comes again, of the tensors that are in a file, too.
    let given =
        ["--input", "at=@IN", "--compare", &out].map(|part| part.replace("IN", &path("in")));
    let at = [3i32, 1, 2].map(i32::to_le_bytes).concat();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I32, vec![3], &at).unwrap();
    safetensors::serialize_to_file([("whatever", view)], None, path("in").as_ref()).unwrap();
    let given = given.each_ref().map(String::as_str);
    let same = stdout_of(&[&["run", &graph, "--tolerance", "0"][..], &given].concat());
    assert!(same.contains(&format!("compared with {out}: off by at most 0.000e0")), "{same}");
    let exact = ["--level", "reference", "--compare", "eager", "--json"];
    let exact = stdout_of(&[&run[..4], &exact].concat());
    let exact: Value = serde_json::from_str(&exact).unwrap();
    assert_eq!(exact["compared"]["is_right"], true);
    assert_eq!(exact["outputs"][0]["shape"], serde_json::json!([3, 16]));
    let other = piecewise(&[&run[..2], &["--input", "at=3,1,1", "--compare", &out]].concat());
    let other = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(other.contains("output_0 is wrong by") && other.contains("first at [2, 0]"), "{other}");
    for (flag, said) in [
        ("y=1", "the graph has no input %y; it has: %x, %at"),
        ("x=random:f32[5,7]", "%x is f32[T,8]"),
        ("x=random:i32[5,8]", "input %x is of f32; write that in place of i32"),
        ("x=random:f32[65,8]", "T = 65, declared from 1 to 64"),
        ("x=@none.safetensors", "can't read none.safetensors"),
    ] {
        let error = piecewise(&["run", &graph, "--input", flag]);
        let error = String::from_utf8_lossy(&error.stderr).into_owned();
        assert!(error.contains(said), "{flag}: {error}");
    }
    let level = piecewise(&["inspect", &graph, "--level", "reference"]);
    let level = String::from_utf8_lossy(&level.stderr).into_owned();
    assert!(level.contains("--level reference compiles nothing"), "{level}");
}

/// A graph with a split op of one's own, in its program.
#[test]
fn graphs_with_ops_of_one_s_own_run_by_hand() {
    let graph = "examples/block.pw";
    let run = own(&["run", graph, "--input", "x=random:f32[5,8]", "--compare", "eager"]);
    let shown = said(&run);
    assert!(run.status.success() && shown.contains("output_0 f32 [5, 8], blake3 "), "{shown}");
    assert!(said(&own(&["inspect", graph, "--sizes"])).contains("any.mix"));
    let passes = said(&own(&["opt", "--list-passes"]));
    assert!(passes.contains("  1  canonicalize\n  2  turned\n  3  fold\n"), "{passes}");
    let none = piecewise(&["run", graph]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("has no implementation on cpu"));
}

/// The logits of the engine, of the reference evaluator and of an encoder's graph.
#[test]
fn decoders_and_encoders_run_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(&path, text).unwrap();
        path
    };
    let model =
        ["--model", MODEL, "--dtype", "f32", "--max-num-tokens", "8", "--max-num-seqs", "2"];
    let inspect = [&["inspect", "--stop-after", "dce", "--max-seq-len", "64"][..], &model].concat();
    let decoder = file("decoder.pw", stdout_of(&inspect));
    // Longer than a step.
    let ids = ["--ids", "326,680,596,12,7,91,200,33,4,55,2"];
    let run = [&["run", &decoder, "--weights", MODEL][..], &ids].concat();
    let exact = stdout_of(&[&run[..], &["--compare", "reference"]].concat());
    assert!(exact.contains("compared with the reference evaluator: off by at most"), "{exact}");
    let next = |text: &str| text.lines().next().unwrap().to_owned();
    assert_eq!(next(&exact), next(&stdout_of(&[&run[..], &["--level", "reference"]].concat())));
    let encoder = "tests/fixtures/encoders/bert";
    let graph =
        file("encoder.pw", stdout_of(&["inspect", "--model", encoder, "--stop-after", "dce"]));
    let inputs = ["--input", "starts=0,3", "--input", "lengths=3,2", "--input", "ids=5,6,7,8,9"];
    let positions = ["--input", "positions=0,1,2,0,1", "--input", "token_types=0,0,0,0,0"];
    let run = [&["run", &graph, "--weights", encoder][..], &inputs, &positions].concat();
    let shown = stdout_of(&[&run[..], &["--compare", "reference"]].concat());
    assert!(shown.contains("output_0 f32 [2, "), "{shown}");
}
