use super::*;
use crate::optimize::Dce;
use crate::pipeline::DEFAULT_PIPELINE;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::{Op, UnaryOp};
use piecewise_ir::types::TensorType;
use std::cell::RefCell;

fn module_with_dead_node() -> Module {
    let mut graph = Graph::new("g");
    let ty = TensorType::new(DType::F32, [4u64]);
    let x = graph.add_input("x", ty.clone(), None, None);
    graph.push(Op::Unary(UnaryOp::Exp), vec![x], ty.clone(), Loc::default());
    let y = graph.push(Op::Unary(UnaryOp::Neg), vec![x], ty, Loc::default());
    graph.set_outputs(vec![y]);
    Module::new(graph)
}

fn manager(text: &str) -> PassManager<'static> {
    PassManager::new(&Pipeline::parse(text).unwrap(), &Registry::standard()).unwrap()
}

fn node_count(module: &Module) -> String {
    format!("{} nodes\n", module.graph().order().len())
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    let error = |text: &str| {
        PassManager::new(&Pipeline::parse(text).unwrap(), &Registry::standard()).unwrap_err()
    };
    let message = error("canonicalise").to_string();
    assert!(
        message.starts_with("unknown pass `canonicalise`, did you mean `canonicalize`?; known")
    );
    assert_eq!(error("dce{deep}").to_string(), "pass `dce` has no option `deep`; it has none");
}

#[test]
fn a_registered_pass_reads_its_options() {
    #[derive(Debug)]
    struct Limited(u64);
    impl Pass for Limited {
        fn name(&self) -> &'static str {
            "limited"
        }
        fn run(&self, _: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
            let mut report = PassReport::default();
            report.count_many("limit", self.0 as usize);
            Ok(report)
        }
    }
    let mut registry = Registry::standard();
    registry.add("limited", &["max", "at"], |options| {
        Ok(Box::new(Limited(options.number("max")?.unwrap_or(7))))
    });
    let run = |text: &str| {
        let mut manager = PassManager::new(&Pipeline::parse(text).unwrap(), &registry)?;
        let report = manager.run(&mut module_with_dead_node(), &mut PassContext::default());
        Ok::<_, PipelineError>(report.unwrap().of("limited").unwrap().matches("limit"))
    };
    assert_eq!(run("limited"), Ok(7));
    assert_eq!(run("limited{max=1_000}"), Ok(1000));
    assert_eq!(
        run("limited{max=[]}").unwrap_err().to_string(),
        "pass `limited`: option `max` has the value `[]`, expected a whole number"
    );
    assert_eq!(
        run("limited{maks=1}").unwrap_err().to_string(),
        "pass `limited` has no option `maks`, did you mean `max`?; it has: max, at"
    );
}

#[test]
fn each_pass_is_counted_and_seen() {
    let seen = RefCell::new(Vec::new());
    let print = PrintAfter {
        pass: None,
        print: node_count,
        sink: |name: &str, text: String| seen.borrow_mut().push(format!("{name}: {text}")),
    };
    let mut module = module_with_dead_node();
    let report = manager("cse,dce,cse")
        .observe(Box::new(print))
        .observe(Box::new(StopAfter("dce".into())))
        .run(&mut module, &mut PassContext::default())
        .unwrap();
    assert_eq!(*seen.borrow(), ["cse: 2 nodes\n", "dce: 1 nodes\n"]);
    assert!(report.stopped);
    assert_eq!(report.of("dce").unwrap().matches("dead node"), 1);
    assert_eq!(module.graph().node_count(), 1, "the graph is compact");
}

#[test]
fn an_invalid_module_is_dumped_and_named() {
    /// As dead code elimination, and leaves an op without the operands that it needs.
    struct Broken;
    impl Pass for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }
        fn run(&self, module: &mut Module, cx: &mut PassContext) -> Result<PassReport, PassError> {
            let report = Dce.run(module, cx)?;
            let graph = module.graph_mut();
            let node = graph.order()[0];
            graph.node_mut(node).op = Op::Select;
            Ok(report)
        }
    }
    let mut registry = Registry::standard();
    registry.add("broken", &[], |_| Ok(Box::new(Broken)));
    let pipeline = Pipeline::parse("cse,broken,cse").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dump = DumpDir::new(dir.path().join("deep/dump"), node_count).unwrap();
    let error = PassManager::new(&pipeline, &registry)
        .unwrap()
        .observe(Box::new(dump))
        .run(&mut module_with_dead_node(), &mut PassContext::default())
        .unwrap_err();
    assert!(matches!(&error, PassError::Invalid { after, .. } if after == "broken"));
    let expected = "the module is not valid after broken:\ngraph @g {";
    let message = error.to_string();
    assert!(message.starts_with(expected) && message.contains("^ error[V0301]:"), "{message}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("deep/dump").join(name));
    assert_eq!(read("02-broken.before.pw").unwrap(), "2 nodes\n");
    assert_eq!(read("02-broken.after.pw").unwrap(), "1 nodes\n");
    assert!(read("01-cse.before.pw").is_err() && read("03-cse.remarks.json").is_err());
    let remarks: serde_json::Value =
        serde_json::from_str(&read("02-broken.remarks.json").unwrap()).unwrap();
    assert_eq!(remarks["matched"]["dead node"], 1);
}

#[test]
fn a_pass_that_panics_is_named_and_what_it_was_given_is_kept() {
    /// Takes every node out, and then does not go on.
    struct Lost;
    impl Pass for Lost {
        fn name(&self) -> &'static str {
            "lost"
        }
        fn run(&self, module: &mut Module, _: &mut PassContext) -> Result<PassReport, PassError> {
            module.graph_mut().set_outputs(Vec::new());
            panic!("no {}", "way")
        }
    }
    let mut registry = Registry::standard();
    registry.add("lost", &["deep"], |_| Ok(Box::new(Lost)));
    let pipeline = Pipeline::parse("dce,lost{deep}").unwrap();
    let given = piecewise_ir::text::print_module(&{
        let mut module = module_with_dead_node();
        manager("dce").run(&mut module, &mut PassContext::default()).unwrap();
        module
    });
    let dir = tempfile::tempdir().unwrap();
    for dumps in [false, true] {
        let mut manager = PassManager::new(&pipeline, &registry).unwrap();
        if dumps {
            // Whatever is dumped of passes that end.
            let dump = DumpDir::new(dir.path(), node_count).unwrap().only(vec!["dce".to_owned()]);
            manager = manager.observe(Box::new(dump));
        }
        let mut module = module_with_dead_node();
        let error = manager.run(&mut module, &mut PassContext::default()).unwrap_err();
        let message = error.to_string();
        let PassError::Panicked { pass, said, before, kept, .. } = error else {
            panic!("{message}")
        };
        assert_eq!((pass.as_str(), said.as_str(), &before), ("lost", "no way", &given));
        assert_eq!(piecewise_ir::text::print_module(&module), given, "it is what it was before");
        let file = dir.path().join("02-lost.before.pw");
        assert_eq!(kept.as_ref(), dumps.then_some(&file));
        let again = "`piecewise opt FILE --pipeline 'lost{deep}'` does it again";
        assert!(message.starts_with("pass `lost` panicked: no way;"), "{message}");
        assert!(message.contains(again), "{message}");
        match dumps {
            true => assert_eq!(std::fs::read_to_string(file).unwrap(), given),
            false => {
                assert!(message.ends_with("(`dump.dir`, or `--dump-dir`, keeps it)"), "{message}")
            }
        }
    }
}

/// A pass that nobody runs would never be stopped, printed or dumped after, without a word.
#[test]
fn what_waits_for_a_pass_that_does_not_run_is_refused_before_any_runs() {
    let run = |manager: PassManager<'_>| {
        let mut manager = manager;
        let mut module = module_with_dead_node();
        let error = manager.run(&mut module, &mut PassContext::default()).unwrap_err();
        assert_eq!(node_count(&module), "2 nodes\n", "a pass ran");
        error.to_string()
    };
    let stop = |pass: &str| Box::new(StopAfter(pass.to_owned()));
    let error = run(manager("canonicalize,dce").observe(stop("canonicalise")));
    assert!(error.contains("`canonicalise`, since no such pass runs, did you mean"), "{error}");
    assert!(error.ends_with("what runs: canonicalize, dce"), "{error}");
    let error = run(manager("dce").observe(stop("fold")));
    assert!(error.contains("`fold`") && error.ends_with("what runs: dce"), "{error}");
    let print =
        PrintAfter { pass: Some("fold".to_owned()), print: node_count, sink: |_: &str, _| {} };
    assert!(run(manager("dce").observe(Box::new(print))).contains("`fold`"));
    let folder = tempfile::tempdir().unwrap();
    let dump = DumpDir::new(folder.path(), node_count).unwrap().only(vec!["fold".to_owned()]);
    assert!(run(manager("dce").observe(Box::new(dump))).contains("`fold`"));
    let bisected = manager("canonicalize,dce").only_first(1).observe(stop("dce"));
    assert!(run(bisected).ends_with("what runs: canonicalize"));
    assert!(run(manager("").observe(stop("dce"))).ends_with("no pass runs at all"));
}

#[test]
fn passes_are_left_out_but_for_those_that_a_plan_needs() {
    let without = |names: &[&str]| {
        let names = Vec::from_iter(names.iter().map(|&name| name.to_owned()));
        let pipeline = Pipeline::parse(DEFAULT_PIPELINE).unwrap();
        let left = Registry::standard().without(pipeline, &names);
        left.map(|left| left.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(without(&[]).unwrap(), DEFAULT_PIPELINE);
    assert_eq!(
        without(&["fuse", "fold"]).unwrap(),
        "canonicalize,merge_matmuls,cse,dce,split,destination,plan"
    );
    let far = without(&["fuze"]).unwrap_err();
    assert!(far.starts_with("there is no pass `fuze` to leave out, did you mean `fuse`?"), "{far}");
    for needed in ["split", "destination", "plan"] {
        let error = without(&[needed]).unwrap_err();
        let expected = format!("pass `{needed}` can't be left out, since what runs is made by it");
        assert!(error.starts_with(&expected), "{error}");
        assert!(error.ends_with("canonicalize, fold, merge_matmuls, cse, dce, fuse"), "{error}");
    }
}
