//! `piecewise bench`: rows of the tiny model from end to end, and the costs that it writes.

use crate::bounded::Bound;
use crate::skip::skipped;
use crate::support::cli::{device_flags, error_of, piecewise, stdout_of};
use serde_json::Value;
use std::path::Path;

const QUICK: [&str; 9] =
    ["bench", "--model", "examples/tiny-qwen3", "--context", "24", "--steps", "6", "--warmup", "2"];

fn bench(flags: &[&str]) -> String {
    let device = device_flags();
    let device: Vec<&str> = device.iter().map(String::as_str).collect();
    stdout_of(&[&QUICK[..], flags, &device].concat())
}

/// Runs `bench` over a subject with a few steps; its rows.
fn few_steps(args: &[&str]) -> Vec<Value> {
    let [_, device, ..] = device_flags();
    let few = ["--steps", "4", "--warmup", "1", "--json", "--device", &device];
    let report: Value = serde_json::from_str(&stdout_of(&[args, &few[..]].concat())).unwrap();
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        let time = |name: &str| row[name].as_f64().unwrap();
        assert!(0.0 < time("p50_us") && time("p50_us") <= time("p99_us"), "{row}");
        assert!(0.0 < time("mean_us") && time("mean_us") <= time("p99_us"), "{row}");
    }
    rows
}

fn texts_of(rows: &[Value], key: &str) -> Vec<String> {
    rows.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn steps_of_a_textual_graph_are_timed_launched_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let graph = folder.path().join("graph.pw");
    let text = "graph @g {\n dim T in [1..16]\n input %x: f32[T,8]\n weight w0: f32[8,8] = \"w\"\n \
                v0: f32[T,8] = matmul %x, w0 {transpose_rhs}\n v1: f32[T,8] = tanh v0\n ret v1\n}\n";
    std::fs::write(&graph, text).unwrap();
    let graph = graph.to_str().unwrap();
    let modes = ["--graph-mode", "none,full"];
    let rows = few_steps(&[&["bench", "graph", graph, "--rows", "1,8"][..], &modes].concat());
    assert_eq!(texts_of(&rows, "mode"), ["none", "none", "full", "full"]);
    assert_eq!(texts_of(&rows, "ran"), ["none at 1", "none at 8", "full at 1", "full at 8"]);
    assert_eq!(texts_of(&rows, "subject")[..2], ["1 rows", "8 rows"]);
    assert!(rows.iter().all(|row| row["steps"] == 4), "{rows:?}");
    let given = ["bench", "graph", graph, "--input", "x=random:f32[3,8]"];
    let rows = few_steps(&[&given[..], &modes].concat());
    assert_eq!(texts_of(&rows, "subject"), ["as given", "as given"]);
    assert!(texts_of(&rows, "ran")[0].ends_with(" at 4"), "{rows:?}");
    let error = error_of(&["bench", "graph", "nowhere.pw"]);
    assert!(error.contains("nowhere.pw"), "{error}");
}

/// Texts and images, made up or of the sizes of a log.
#[test]
fn calls_of_an_encoder_are_timed_launched_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("items.jsonl");
    std::fs::write(
        &log,
        "{\"path\":\"items\",\"tokens\":[3,9]}\n{\"path\":\"items\",\"tokens\":[5]}\n",
    )
    .unwrap();
    let bench = |model: &str, what: &[&str]| {
        let model = format!("tests/fixtures/encoders/{model}");
        let args = ["bench", "encoder", "--model", &model, "--graph-mode", "none,full"];
        few_steps(&[&args[..], what].concat())
    };
    let rows = bench("bert", &["--tokens", "8,6x3"]);
    assert_eq!(texts_of(&rows, "mode"), ["none", "none", "full", "full"]);
    assert_eq!(texts_of(&rows, "subject")[..2], ["8", "6x3"]);
    let ran = texts_of(&rows, "ran");
    assert_eq!(ran[1], "0 items replayed, 15 launched, in 5 steps");
    assert_eq!(ran[3], "15 items replayed, 0 launched, in 5 steps");
    let rows = bench("bert", &["--items", log.to_str().unwrap()]);
    assert_eq!(texts_of(&rows, "subject"), ["2 calls", "2 calls"]);
    assert!(rows.iter().all(|row| row["steps"] == 8), "{rows:?}");
    let error =
        error_of(&["bench", "encoder", "--model", "tests/fixtures/encoders/vit", "--tokens", "1"]);
    let tokens = error.split(" has ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(bench("vit", &["--tokens", &tokens]).len(), 2);
    assert_eq!(bench("qwen2_5_vl_vision", &["--tokens", "6"]).len(), 2);
}

#[test]
fn every_row_is_measured_in_every_mode() {
    let text = bench(&["--batch", "1,3", "--mixed", "24,32", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert!(report["read_bandwidth"]["best"].as_f64().unwrap() > 0.0);
    let is_cuda = device_flags().iter().any(|flag| flag.starts_with("cuda"));
    let versions = report["versions"].as_object().unwrap();
    let expected = ["cublas_lt", "cuda", "nvrtc"].map(|name| (name, is_cuda));
    assert_eq!(expected.map(|(name, _)| (name, versions.contains_key(name))), expected);
    assert!(is_cuda || versions.is_empty(), "{versions:?}");
    assert!(report["start"]["first_prompt"]["ms"].as_f64().unwrap() > 0.0);
    let modes = report["modes"].as_array().unwrap();
    let names: Vec<_> = modes.iter().map(|mode| mode["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "piecewise", "full"]);
    for mode in modes {
        let rows = mode["rows"].as_array().unwrap();
        let shapes: Vec<_> = rows
            .iter()
            .map(|row| {
                assert_eq!(row["failures"], serde_json::json!([]), "{row}");
                assert!(row["gpu_ms"]["median"].as_f64().unwrap() > 0.0);
                assert!(row["bytes"].as_u64().unwrap() > 1 << 20);
                assert_eq!(row["device"], report["device"]);
                let number = |key: &str| row[key].as_u64().unwrap();
                (number("tokens"), number("size"))
            })
            .collect();
        assert_eq!(shapes, [(1, 1), (3, 3), (24, 32), (32, 32)]);
        let launches: Vec<_> = rows
            .iter()
            .map(|row| {
                let number = |key: &str| row[key].as_u64().unwrap();
                (number("graph_launches"), number("plain_launches") > 0, number("nodes") > 0)
            })
            .collect();
        let expected = match mode["mode"].as_str().unwrap() {
            "none" => (0, true, false),
            "piecewise" => (2, false, true),
            _ => (1, false, true),
        };
        assert_eq!(launches, [expected; 4], "{}", mode["mode"]);
    }
    let (pieces, full) = (&modes[1]["captured"], &modes[2]["captured"]);
    assert_eq!(pieces["graphs"], 3 + 2 + 2, "three sizes, decodes of 1 and 3, and the head");
    assert_eq!(full["graphs"], 5, "decodes of 1 and 3, and other steps of 1, 3 and 32 tokens");
}

/// `tests/gpu/figures.py` on the figures in `file` and a report.
fn figures(what: &str, file: &Path, report: &Path) -> (bool, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/gpu/figures.py");
    let mut command = std::process::Command::new("python3");
    let output =
        command.args([script, what]).args([file, report]).bounded_output().expect("python3");
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_run_is_compared_with_figures_that_were_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [kept, run] = ["figures.json", "run.json"].map(|name| folder.path().join(name));
    let write = |file: &Path, value: &Value| std::fs::write(file, value.to_string()).unwrap();
    let text = bench(&["--batch", "1,3", "--mixed", "24", "--graph-mode", "full", "--json"]);
    std::fs::write(&run, &text).unwrap();
    let mut report: Value = serde_json::from_str(&text).unwrap();
    write(&kept, &serde_json::json!({"device": report["device"], "rows": []}));
    let (is_well, said) = figures("compare", &kept, &run);
    assert!(is_well && said.matches("no figure is kept").count() == 3, "{said}");
    assert!(figures("keep", &kept, &run).0);
    let (is_well, said) = figures("compare", &kept, &run);
    assert!(is_well && said.matches("\tok\t").count() == 3, "{said}");
    let figures_of = |file: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    for row in figures_of(&kept)["rows"].as_array().unwrap() {
        assert!(row["p10_ms"].as_f64().unwrap() <= row["gpu_ms"].as_f64().unwrap(), "{row}");
    }
    // A decode is held by its median, a step with prompts by its p10, where one is kept.
    let slow = |which: usize, figure: &str, by: f64| {
        let mut slow = report.clone();
        let figure = &mut slow["modes"][0]["rows"][which]["gpu_ms"][figure];
        *figure = serde_json::json!(figure.as_f64().unwrap() * by + 0.01);
        write(&run, &slow);
        let (is_well, said) = figures("compare", &kept, &run);
        let slower: Vec<_> = said.lines().filter(|line| line.contains("\tFAILED\t")).collect();
        assert_eq!(is_well, slower.is_empty(), "{said}");
        slower.concat()
    };
    let decode = slow(1, "median", 1.2);
    assert!(decode.contains("decode 3x24 full"), "{decode}");
    assert_eq!([slow(1, "p10", 1.2), slow(2, "median", 1.2)].concat(), "");
    let mixed = slow(2, "p10", 1.06);
    assert!(mixed.contains("mixed 24 full") && mixed.contains("\tp10 "), "{mixed}");
    let mut older = figures_of(&kept);
    let rows = older["rows"].as_array_mut().unwrap();
    rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("p10_ms")));
    write(&kept, &older);
    assert_eq!(slow(2, "p10", 1.2), "", "none is kept");
    let mixed = slow(2, "median", 1.2);
    assert!(mixed.contains("mixed 24 full") && !mixed.contains("p10"), "{mixed}");
    // Every mode has rows of its own, and what the host path costs is beside them. A row whose steps
    // were launched by choice is none of its mode.
    report["modes"][0]["rows"][0]["mode"] = "none".into();
    report["modes"][0]["rows"][1]["mode"] = "piecewise".into();
    report["modes"][0]["rows"][1]["chosen"] = "launches_faster".into();
    report["modes"][0]["rows"][0]["host_us"] = 12.34.into();
    write(&run, &report);
    assert!(figures("compare", &kept, &run).1.contains("none\tnone\t"));
    assert!(figures("keep", &kept, &run).0);
    let rows = figures_of(&kept)["rows"].clone();
    let added = rows.as_array().unwrap().iter().find(|row| row["mode"] == "none").unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &added["host_us"]), (4, &12.3.into()));
    assert!(figures("compare", &kept, &run).1.contains(", host 12.3 of 12.3 us"));
    report["device"] = "another".into();
    write(&run, &report);
    let (is_well, said) = figures("compare", &kept, &run);
    assert!(is_well && said.starts_with("device\tnone\tanother"), "{said}");
    assert!(!figures("keep", &kept, &run).0, "figures of two devices in one file");
}

#[test]
fn the_figures_that_are_kept_are_those_of_the_table() {
    let read = |file: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        std::fs::read_to_string(file).unwrap()
    };
    let kept: Value = serde_json::from_str(&read("tests/gpu/figures.json")).unwrap();
    let page = read("BENCHMARKS.md");
    let cells = |line: &str| Vec::from_iter(line.split('|').map(|cell| cell.trim().to_owned()));
    let table = |head: &str| {
        let rows = page.lines().skip_while(|line| !line.starts_with(head));
        Vec::from_iter(rows.take_while(|line| line.starts_with('|')).map(cells))
    };
    let [decodes, prompts] = ["| `full`, `--tune off` |", "| `full`, one prompt of |"].map(table);
    let figures = kept["rows"].as_array().unwrap();
    let mut in_tables = 0;
    for row in figures {
        let tokens = row["tokens"].as_u64().unwrap();
        let (table, column) = match row["kind"].as_str().unwrap() {
            "decode" => (&decodes, row["batch"].to_string()),
            "prefill" => (&prompts, tokens.to_string()),
            _ => (&prompts, format!("{}+32", tokens - 32)),
        };
        let at = table[0].iter().position(|cell| *cell == column);
        let Some(at) = at.filter(|_| row["mode"] == "full") else {
            // A step that the tables have no column for stands in the text.
            let ms = format!("{:.3}", row["gpu_ms"].as_f64().unwrap());
            assert!(page.contains(&ms), "{row}");
            continue;
        };
        in_tables += 1;
        let of = table.iter().find(|cells| row["model"] == cells[1].as_str()).unwrap();
        assert_eq!(of[at], format!("{:.3}", row["gpu_ms"].as_f64().unwrap()), "{row}");
    }
    let numbers = [&decodes, &prompts].into_iter().flat_map(|table| table.iter().skip(2));
    let numbers = numbers.flat_map(|cells| cells.iter().skip(2)).filter(|cell| !cell.is_empty());
    assert_eq!(in_tables, numbers.count());
}

#[test]
fn decodes_of_several_tokens_replay_graphs_of_their_own() {
    let flags = ["--batch", "2x4,3", "--graph-mode", "full,piecewise", "--launches", "--json"];
    let report: Value = serde_json::from_str(&bench(&flags)).unwrap();
    for mode in report["modes"].as_array().unwrap() {
        for (row, tokens) in mode["rows"].as_array().unwrap().iter().zip([8, 3]) {
            assert_eq!(row["failures"], serde_json::json!([]), "{row}");
            assert_eq!((&row["tokens"], &row["size"]), (&tokens.into(), &tokens.into()), "{row}");
        }
    }
    let full = &report["modes"][0]["rows"][0];
    assert_eq!((&full["graph_launches"], &full["plain_launches"]), (&1.into(), &0.into()));
    assert!(bench(&["--batch", "2x4", "--graph-mode", "full"]).contains("decode 2x4 x 24"));
    assert!(error_of(&["bench", "--preset", "qwen3-8b", "--batch", "2y4"]).contains("NxM"));
}

/// What each captures is less than what both of its parts do: decodes whole, and the rest in pieces or
/// not at all.
#[test]
fn modes_of_two_parts_are_measured_as_such() {
    let modes = "full_decode_only,full_and_piecewise";
    let flags = ["--batch", "1,3", "--mixed", "24", "--graph-mode", modes, "--json"];
    let report: Value = serde_json::from_str(&bench(&flags)).unwrap();
    let expected = [
        ("full_decode_only", 2, [(1, false), (1, false), (0, true)]),
        ("full_and_piecewise", 2 + 3 + 2, [(1, false), (1, false), (2, false)]),
    ];
    for (mode, (name, graphs, launches)) in report["modes"].as_array().unwrap().iter().zip(expected)
    {
        assert_eq!((&mode["mode"], &mode["captured"]["graphs"]), (&name.into(), &graphs.into()));
        for (row, (graphs, launched)) in mode["rows"].as_array().unwrap().iter().zip(launches) {
            assert_eq!(row["failures"], serde_json::json!([]), "{row}");
            assert_eq!(row["mode"], name);
            assert_eq!(row["graph_launches"], graphs, "{row}");
            assert_eq!(row["plain_launches"].as_u64().unwrap() > 0, launched, "{row}");
        }
    }
}

#[test]
fn prompts_are_measured_alone_and_steps_without_some_launches() {
    let flags = ["--prefill", "24,3x8", "--mixed-steps", "5", "--launches", "--json"];
    let whole: Value = serde_json::from_str(&bench(&flags)).unwrap();
    let rows_of = |report: &Value, mode: usize| report["modes"][mode]["rows"].clone();
    let kernels = |row: &Value| -> Vec<(String, u64)> {
        let all = row["kernels"].as_array().unwrap();
        let count = |kernel: &Value| {
            let name = kernel["kernel"].as_str().unwrap().to_owned();
            (name, kernel["launches"].as_u64().unwrap())
        };
        all.iter().map(count).collect()
    };
    let rows = rows_of(&whole, 2);
    let shapes: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            assert_eq!(row["failures"], serde_json::json!([]), "{row}");
            assert_eq!(row["kind"], "prefill");
            let launches: u64 = kernels(row).iter().map(|(_, launches)| launches).sum();
            assert_eq!(Some(launches), row["nodes"].as_u64(), "every launch is listed");
            (row["batch"].as_u64().unwrap(), row["tokens"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(shapes, [(1, 24), (3, 24)]);

    let flags = ["--without", "*@mlp,*sampl*", "--batch", "2", "--launches", "--json"];
    let rest: Value = serde_json::from_str(&bench(&flags)).unwrap();
    assert_eq!(rest["without"], serde_json::json!(["*@mlp", "*sampl*"]));
    assert_eq!(rest["modes"].as_array().unwrap().len(), 1, "mode full alone");
    let left = rows_of(&rest, 0)[0].clone();
    assert!(left["nodes"].as_u64() < rows[0]["nodes"].as_u64(), "{left}");
    assert!(kernels(&left).iter().all(|(name, _)| !name.contains("sampl")), "{left}");
    assert!(!left["kernels"].to_string().contains("mlp"), "{left}");
    let shown = bench(&["--without", "*@mlp", "--batch", "2"]);
    assert!(shown.contains("what the steps compute is not held"), "{shown}");
    assert!(shown.contains("not held\n"), "{shown}");
}

/// Each launch writes what the next one reads, so that none can end before the one before it.
#[test]
fn a_timeline_has_every_launch_in_the_order_of_the_step() {
    if !device_flags().iter().any(|flag| flag.starts_with("cuda")) {
        return skipped("PIECEWISE_REQUIRE_GPU", "PIECEWISE_TEST_DEVICE names no CUDA device");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.pftrace");
    let step = ["--batch", "2", "--graph-mode", "full", "--launches", "--json"];
    let flags = [&step[..], &["--timeline", file.to_str().unwrap()]].concat();
    let report: Value = serde_json::from_str(&bench(&flags)).unwrap();
    let row = &report["modes"][0]["rows"][0];
    assert_eq!(row["failures"], serde_json::json!([]), "{row}");
    let timeline = &report["timeline"];
    let launches = timeline["launches"].as_array().unwrap();
    assert_eq!(Some(launches.len() as u64), row["nodes"].as_u64(), "every launch is listed");
    let multiprocessors = timeline["multiprocessors"].as_u64().unwrap();
    let mut ended = 0.0;
    for launch in launches {
        let times = &launch["times"];
        let is_own = !launch["kernel"].as_str().unwrap().starts_with("cublasLt");
        assert_eq!(times.is_object(), is_own, "{launch}");
        if is_own {
            let [start, released, end] =
                ["start_us", "released_us", "end_us"].map(|time| times[time].as_f64().unwrap());
            assert!(start <= released && released <= end && ended <= end, "{ended} {launch}");
            let on = times["multiprocessors"].as_u64().unwrap();
            assert!((1..=multiprocessors).contains(&on), "{launch}");
            ended = end;
        }
    }
    assert!(ended > 0.0, "{timeline}");
    assert!(std::fs::metadata(&file).unwrap().len() > 0);
}

#[test]
fn the_planner_reads_the_costs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (costs, log) = (path("costs.jsonl"), path("log.jsonl"));
    bench(&["--batch", "1,2,4", "--mixed", "1,2,4,8,16,32", "--costs", &costs]);
    let steps = [(3, 10), (9, 5), (30, 1)]
        .map(|(tokens, steps)| format!("{{\"tokens\":{tokens}}}\n").repeat(steps));
    std::fs::write(&log, steps.concat()).unwrap();
    let flags = ["--max-num-tokens", "32", "--max-graphs", "3", "--launched", "never", "--json"];
    let text = stdout_of(&[&["plan", "--log", &log, "--costs", &costs][..], &flags].concat());
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert!(plan["costs"].as_str().unwrap().starts_with("measured, "), "{text}");
    assert!(!plan["capture_num_tokens"].as_array().unwrap().is_empty(), "{text}");
}

#[test]
fn below_piecewise_a_level_is_launched() {
    let launches = ["eager", "compile"].map(|level| {
        let report: Value =
            serde_json::from_str(&bench(&["--batch", "1", "--level", level, "--json"])).unwrap();
        assert_eq!(report["level"], level);
        let modes = report["modes"].as_array().unwrap();
        assert_eq!((modes.len(), &modes[0]["mode"]), (1, &Value::from("none")));
        let row = &modes[0]["rows"][0];
        assert_eq!(row["failures"], serde_json::json!([]), "{row}");
        row["plain_launches"].as_u64().unwrap()
    });
    assert!(launches[0] > 2 * launches[1], "{launches:?}");
    assert!(bench(&["--batch", "1", "--level", "trace"]).contains("level            trace"));
}

#[test]
fn a_start_alone_counts_its_graphs() {
    let text = bench(&["--startup", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let captured = &report["captured"]["captured"];
    // What is over tokens at 14 sizes, the head at 8 batches, and 8 whole decode steps.
    assert_eq!(captured["graphs"], 14 + 8 + 8);
    assert!(captured["nodes"].as_u64().unwrap() >= captured["launches"].as_u64().unwrap());
    assert!(report["start_without_load_s"].as_f64().unwrap() > 0.0);
}

/// Settings of a file go below the flags, and what the rows choose on top of both.
#[test]
fn a_file_configures_it_below_its_flags_and_what_the_rows_choose() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    let text = "strict = true\ntune = \"off\"\nmax_num_tokens = 256\nmax_num_rows = 64\n\
                graph_mode = \"piecewise\"\ncapture_num_tokens = [1, 4]\nchecks.addresses = true";
    std::fs::write(&path, text).unwrap();
    let file = path.to_str().unwrap();
    let shared = ["--config", file, "--check", "poison", "--memory-budget", "1GiB", "--no-cache"];
    let flags = [&["--batch", "1,3", "--json"][..], &shared].concat();
    let shown = stdout_of(&[&QUICK[..], &flags, &["--print-config"]].concat());
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let of = |key: &str| (shown[key]["value"].clone(), shown[key]["source"].clone());
    let pair = |value: Value, source: &str| (value, Value::from(source));
    assert_eq!(of("strict"), pair(true.into(), file));
    assert_eq!(of("checks.addresses"), pair(true.into(), file));
    assert_eq!(of("tune"), pair("off".into(), file));
    assert_eq!(of("checks.poison"), pair(true.into(), "--check"));
    assert_eq!(of("memory_budget"), pair((1u64 << 30).into(), "--memory-budget"));
    assert_eq!(of("cache.enabled"), pair(false.into(), "--no-cache"));
    assert_eq!(of("max_num_seqs"), pair(64.into(), "set by the program"));
    assert_eq!(of("tune_seconds"), pair(60.into(), "from what bench does"));
    let report: Value = serde_json::from_str(&bench_alone(&flags)).unwrap();
    let modes = report["modes"].as_array().unwrap();
    assert_eq!((modes.len(), &modes[0]["mode"]), (1, &Value::from("piecewise")));
    for (row, size) in modes[0]["rows"].as_array().unwrap().iter().zip([1, 3]) {
        assert_eq!((&row["failures"], &row["size"]), (&serde_json::json!([]), &size.into()));
    }
    // A list of its own is measured as it is, strictly too.
    let modes = ["--graph-mode", "none,full", "--batch", "1", "--config", file];
    assert!(bench_alone(&modes).contains("full"));
    let tight = ["--batch", "1", "--memory-budget", "1MiB"];
    assert!(error_of(&[&QUICK[..], &tight].concat()).contains("memory_budget"));
    let wrong = ["--batch", "1", "--config", "no/such.toml"];
    assert!(error_of(&[&QUICK[..], &wrong].concat()).contains("no/such.toml"));
    let stopped = ["--batch", "1", "--stop-after", "fuse"];
    assert!(error_of(&[&QUICK[..], &stopped].concat()).contains("nothing to measure"));
}

/// Without the flags that choose a device.
fn bench_alone(flags: &[&str]) -> String {
    stdout_of(&[&QUICK[..], flags].concat())
}

/// That lists end below the bounds is news to whoever chose them alone.
#[test]
fn sizes_that_the_rows_chose_are_not_warned_about() {
    let said = |flags: &[&str]| {
        let output = piecewise(&[&QUICK[..], flags].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let below = "capture_num_tokens is below max_num_tokens";
    let of_rows = said(&["--batch", "1,3", "--mixed", "24"]);
    assert!(!of_rows.contains("below") && !of_rows.contains("WARN"), "{of_rows}");
    let chosen = said(&["--batch", "1", "--capture-num-tokens", "1,4"]);
    assert!(chosen.contains(below), "{chosen}");
}

#[test]
fn what_can_not_be_measured_is_named() {
    let error = error_of(&["bench"]);
    assert!(error.contains("--preset"), "{error}");
    let error = error_of(&["bench", "--preset", "qwen3-9b"]);
    assert!(error.contains("qwen3-0.6b"), "{error}");
    let error = error_of(&[&QUICK[..], &["--batch", "1", "--without", "nothing"]].concat());
    assert!(
        error.contains("--without nothing names no launch") && error.contains("matmul"),
        "{error}"
    );
    let error = error_of(&[&QUICK[..], &["--timeline", "step.json"]].concat());
    assert!(error.contains("--timeline takes one row"), "{error}");
    let flags = ["--batch", "1", "--timeline", "step.json"];
    let error = error_of(&[&QUICK[..], &flags].concat());
    assert!(error.contains("--timeline needs a CUDA device"), "{error}");
    let error = error_of(&[&QUICK[..], &["--prefill", "4x"]].concat());
    assert!(error.contains("NxM"), "{error}");
    let error = error_of(&[&QUICK[..], &["--batch", "0"]].concat());
    assert!(error.contains("--batch has 0"), "{error}");
    let error = error_of(&[&QUICK[..], &["--context", "100000"]].concat());
    assert!(error.contains("lower") && error.contains("--context"), "{error}");
}
