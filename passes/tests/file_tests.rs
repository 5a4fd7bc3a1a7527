//! File tests: one snapshot for each `filetests/**/*.pw`, so that adding a case needs no
//! recompiling.
//!
//! A case is a graph under lines that say what to do with it:
//!
//! ```text
//! ;; pipeline: fuse,split{at=[any.mix]}
//! ;; show: diff, remarks
//! ```
//!
//! `show` is a list of `module` (the text after the last pass), `plan` (the plan document alone),
//! `diff` (of each pass that changed something), `remarks`, `counts`. An error of the parser, of
//! the verifier (in the listing) or of a pass is always shown.

use crate::cases::each_case;
use piecewise_ir::module::Module;
use piecewise_ir::text::{parse_module, print_module};
use piecewise_passes::manager::PrintChanged;
use piecewise_passes::{PassContext, PassError, PassManager, Pipeline, Registry, RunReport};
use std::cell::RefCell;

/// The value of the directive `name` of a case; a case without it is no case.
fn directive<'a>(case: &'a str, name: &str) -> &'a str {
    let prefix = format!(";; {name}:");
    let line = case.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("the case has no line `{prefix}`")).trim()
}

fn outcome(case: &str) -> String {
    let mut module = match parse_module(case) {
        Ok(module) => module,
        Err(errors) => return format!("== does not parse\n{errors}"),
    };
    let shown = directive(case, "show");
    let mut out = String::new();
    let diffs = RefCell::new(String::new());
    let result = run(directive(case, "pipeline"), &mut module, &diffs);
    for what in shown.split(',').map(str::trim).filter(|what| !what.is_empty()) {
        let text = match what {
            "module" => print_module(&module),
            "plan" => plan(&module),
            "diff" => diffs.borrow().clone(),
            "remarks" => remarks(result.as_ref().ok()),
            "counts" => counts(result.as_ref().ok()),
            other => panic!("`show: {other}` is none of module, plan, diff, remarks, counts"),
        };
        out.push_str(&format!("== {what}\n{text}"));
    }
    match result {
        Ok(_) => {}
        Err(PassError::Invalid { after, listing, .. }) => {
            let listing = listing + "\n";
            out.push_str(&format!("== not valid after {after}\n{listing}"));
        }
        Err(error) => out.push_str(&format!("== error\n{error}\n")),
    }
    out
}

fn run(
    pipeline: &str,
    module: &mut Module,
    diffs: &RefCell<String>,
) -> Result<RunReport, PassError> {
    let pipeline = Pipeline::parse(pipeline)?;
    let keep = PrintChanged::new(print_module, |diff: String| diffs.borrow_mut().push_str(&diff));
    let mut manager = PassManager::new(&pipeline, &Registry::standard())?.observe(Box::new(keep));
    manager.run(module, &mut PassContext::default())
}

/// The plan document without the graphs and hashes of the pieces.
fn plan(module: &Module) -> String {
    let text = print_module(module);
    let Some((_, plan)) = text.split_once("\nplan {\n") else { return "none\n".to_owned() };
    let in_piece = |line: &&str| !line.starts_with("      ") && *line != "    }";
    let without_hash = |line| str::split(line, " hash \"").next().unwrap_or(line);
    plan.lines().filter(in_piece).map(|line| format!("{}\n", without_hash(line))).collect()
}

fn remarks(report: Option<&RunReport>) -> String {
    let runs = report.iter().flat_map(|report| &report.passes);
    runs.flat_map(|run| {
        run.report.remarks.iter().map(move |remark| format!("{}: {remark}\n", run.name))
    })
    .collect()
}

fn counts(report: Option<&RunReport>) -> String {
    let runs = report.iter().flat_map(|report| &report.passes);
    runs.flat_map(|run| {
        run.report.matched.iter().map(move |(kind, n)| format!("{}: {n} {kind}\n", run.name))
    })
    .collect()
}

#[test]
fn cases() {
    each_case("", |case| insta::assert_snapshot!(outcome(case)));
}
