//! Dumps of a program that uses the library.

use super::*;
use piecewise_passes::pipeline::DEFAULT_PIPELINE;

fn dumping(folder: &tempfile::TempDir) -> Assembly {
    tiny().set("dump.dir", folder.path())
}

#[test]
fn the_library_dumps_what_the_settings_ask_for_and_lowers_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Asked::default());
    let planned = dumping(&folder).store(store.clone()).plan().unwrap();
    for file in [
        "passes/06-fuse.diff",
        "graph.dot",
        "plan.pw",
        "pieces/u0.pw",
        "kernels/u0/at-8.json",
        "captured/p0-to-p12-at-8.dot",
    ] {
        assert!(folder.path().join(file).is_file(), "no {file}");
    }
    let text = std::fs::read_to_string(folder.path().join("plan.pw")).unwrap();
    assert_eq!(text, piecewise_ir::text::print_module(planned.module()));
    let jobs = planned.jobs().unwrap().len();
    assert!(!generated(&mut planned.engine().unwrap()).is_empty());
    let asked = store.pieces.lock().unwrap().clone();
    assert_eq!((asked.len(), asked.values().sum::<usize>()), (jobs, jobs));
}

#[test]
fn a_pass_of_ones_own_can_be_dumped_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let assembly = with_own(&format!("own.count,{DEFAULT_PIPELINE}"));
    let assembly = assembly.set("dump.dir", folder.path()).set("dump.passes", ["own.count"]);
    drop(assembly.plan().unwrap());
    assert!(folder.path().join("passes/01-own.count.remarks.json").is_file());
}

#[test]
fn a_dump_that_can_not_be_written_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let error = |assembly: Assembly| assembly.plan().unwrap_err().to_string();
    for key in ["dump.passes", "dump.pieces"] {
        let said = error(tiny().set(key, ["fuse"]));
        assert!(said.contains(key) && said.contains("dump.dir is not set"), "{said}");
    }
    let said = error(dumping(&folder).set("dump.passes", ["fues"]));
    assert!(said.contains("did you mean `fuse`?"), "{said}");
    let said = error(dumping(&folder).set("dump.pieces", ["u99"]));
    assert!(said.contains("no unique piece \"u99\"") && said.contains("u0, u1"), "{said}");
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let said = error(tiny().set("dump.dir", &file));
    assert!(said.contains("a file"), "{said}");
}
