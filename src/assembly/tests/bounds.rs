//! What a graph says of itself, and what settings say of it.

use super::*;
use piecewise_ir::text::print_graph;

/// Tokens up to 8 in sequences up to 4.
fn of_sequences() -> Graph {
    let b = Builder::new("of_sequences");
    let t = b.symbol("T", 1, 8);
    let s = b.symbol_with_role("S", 1, 4, roles::SEQUENCES);
    let x = b.input("x", DType::F32, (t, 2));
    let starts = b.input("starts", DType::I32, [s]).padding(0.0);
    b.finish([x * 2.0, starts]).unwrap()
}

#[test]
fn a_setting_that_differs_from_the_graphs_own_bound_is_refused_by_its_name() {
    let file = |text: &str| ConfigLayers::new().file("a.toml", text).unwrap();
    for (text, own) in [
        ("max_num_tokens = 16", "says 8"),
        ("max_num_seqs = 2", "says 4"),
        ("max_num_rows = 2", "says 4"),
        ("dtype = \"bf16\"", "a dtype of each value"),
    ] {
        let assembly = Assembly::graph(of_sequences()).configure(file(text));
        let error = assembly.plan().unwrap_err();
        let AssemblyError::BoundOfGraph(found) = &error else { panic!("{error}") };
        assert_eq!(found.from, Source::File("a.toml".to_owned()));
        assert!(text.starts_with(found.key), "{error}");
        let error = error.to_string();
        for part in ["a.toml: ", text.split(" = ").nth(1).unwrap(), "@of_sequences", own] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    let error = graph().set("capture_query_lengths", [1u64]).session().unwrap_err();
    assert!(error.to_string().contains("capture_query_lengths can't be [1]"), "{error}");
    let text = print_graph(&of_sequences());
    let error = Assembly::text("a text", &text).unwrap().max_num_tokens(4).plan().unwrap_err();
    let AssemblyError::BoundOfGraph(found) = &error else { panic!("{error}") };
    assert_eq!((found.key, &found.from), ("max_num_tokens", &Source::Program));
}

#[test]
fn a_setting_that_says_what_the_graph_says_keeps_its_origin() {
    let assembly = Assembly::graph(of_sequences()).max_num_tokens(8).max_num_seqs(4);
    let settings = assembly.settings().unwrap().configured().unwrap();
    assert_eq!(settings.source("max_num_tokens"), Source::Program);
    assert_eq!(settings.source("max_num_seqs"), Source::Program);
    assert!(matches!(settings.source("max_num_rows"), Source::Derived(_)));
    // What is printed is a configuration that gives itself.
    let printed = Assembly::graph(of_sequences()).settings().unwrap().configured().unwrap();
    let again = ConfigLayers::new().file("printed.toml", &printed.to_string()).unwrap();
    let again = Assembly::graph(of_sequences()).configure(again).settings().unwrap();
    assert_eq!(again.configured().unwrap().config, printed.config);
}

#[test]
fn the_key_of_the_device_is_the_device_that_was_given() {
    let device = DeviceSpec::Cpu.open(1).unwrap();
    let assembly = graph().device(DeviceSpec::Cuda(3)).on(&device);
    let planned = assembly.plan().unwrap();
    let settings = planned.settings();
    assert_eq!((settings.device, settings.config.device.as_str()), (DeviceSpec::Cpu, "cpu"));
    let source = settings.configured().unwrap().source("device");
    assert_eq!(source.to_string(), "from the open device that was given");
    let arch: DeviceSpec = "cuda:sm_90a".parse().unwrap();
    let settings = graph().on(&arch.open(1).unwrap()).settings().unwrap();
    assert_eq!(settings.device.to_string(), "cuda:sm_90a");
    let renamed = graph().set("target", "cpu").plan().unwrap_err().to_string();
    assert!(renamed.contains("`target`") && renamed.contains("called `device`"), "{renamed}");
}

#[test]
fn a_layer_has_a_window_where_a_sequence_can_outgrow_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(Path::new(TINY).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["sliding_window"] = 32.into();
    config["use_sliding_window"] = true.into();
    config["layer_types"][1] = "sliding_attention".into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let windows = |length: u64| {
        let assembly = Assembly::folder(folder.path()).unwrap().threads(1).max_seq_len(length);
        let text = print_graph(assembly.plan().unwrap().module().graph());
        let calls = text.lines().filter(|line| line.contains("paged_attention"));
        calls.map(|line| line.contains("window=32")).collect::<Vec<_>>()
    };
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    assert_eq!(windows(33), (0..layers).map(|layer| layer == 1).collect::<Vec<_>>());
    assert_eq!(windows(32), vec![false; layers as usize]);
    // The model was made for longer sequences than its windows.
    let settings = Assembly::folder(folder.path()).unwrap().settings().unwrap();
    assert!(settings.config.max_seq_len > 32);
}
