use super::*;
use crate::words::{CompileLevel, GraphMode};
use proptest::prelude::*;
use std::time::Duration;

fn config(text: &str) -> Result<RuntimeConfig, ConfigError> {
    Ok(ConfigLayers::new().file("piecewise.toml", text)?.finish()?.config)
}

#[test]
fn later_layers_win_and_each_value_knows_its_layer() {
    let text = "max_num_tokens = 256\ncapture_num_tokens = [1, 8, 64]\n[checks]\npoison = true\n\
                [cache]\ndir = \"/tmp/c\"\n";
    let configured = ConfigLayers::new()
        .file("piecewise.toml", text)
        .unwrap()
        .flag("graph_mode", "piecewise", "--graph-mode")
        .unwrap()
        .flag("max_num_tokens", 128, "--max-num-tokens")
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(configured.config.graph_mode, GraphMode::Piecewise);
    assert_eq!(configured.source("checks.poison"), Source::File("piecewise.toml".to_owned()));
    insta::assert_snapshot!(configured.to_string());
    let again = ConfigLayers::new().file("again", &configured.to_string()).unwrap();
    assert_eq!(again.finish().unwrap().config, configured.config);
}

#[test]
fn what_follows_from_something_else_yields_to_what_is_set_unless_it_is_imposed() {
    let layers = ConfigLayers::new().file("f", "max_num_seqs = 3").unwrap();
    let layers = layers.derived("max_num_seqs", 1, "the prompts").unwrap();
    let layers = layers.derived("max_seq_len", 7, "the model").unwrap();
    let configured = layers.clone().finish().unwrap();
    assert_eq!((configured.config.max_num_seqs(), configured.config.max_seq_len), (3, 7));
    assert_eq!(configured.config.max_num_rows(), 3);
    assert_eq!(configured.source("max_seq_len").to_string(), "from the model");
    let imposed = layers.imposed("max_num_seqs", 5, "the graph").unwrap().finish().unwrap();
    assert_eq!(imposed.config.max_num_seqs(), 5);
    assert_eq!(imposed.source("max_num_seqs"), Source::Derived("the graph".to_owned()));
}

#[test]
fn activations_are_floats() {
    let error = config("dtype = \"i32\"").unwrap().dispatcher().unwrap_err().to_string();
    assert!(error.contains("dtype = i32") && error.contains("bf16"), "{error}");
}

#[test]
fn what_is_wrong_is_named() {
    let file = |text: &str| config(text).unwrap_err().to_string();
    let resolved = |text: &str| config(text).unwrap().dispatcher().unwrap_err().to_string();
    // Lists of files, flags and programs are put in order; a configuration of one's own holds what it holds.
    let sizes = Some(Sizes::List(vec![4, 2]));
    let own = RuntimeConfig { capture_num_tokens: sizes, ..RuntimeConfig::default() };
    let in_no_order = own.dispatcher().unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            file("max_num_token = 4"),
            file("[checks]\nposion = true"),
            file("max_num_tokens = \"many\""),
            file("graph_mode = \"fast\""),
            file("on_capture_failure = \"eager\""),
            file("capture_num_tokens = [1, \"2\"]"),
            file("checks = 3"),
            file("max_num_tokens = "),
            file("[cache]\nremote_url = \"https://user:secret@host/path?sig=secret\""),
            file("[cache]\nremote_timeout_ms = 0"),
            resolved("cache.max_bytes = 0"),
            resolved("memory_fraction = 0.0"),
            resolved("memory_fraction = nan"),
            resolved("max_num_tokens = 0"),
            resolved("capture_num_tokens = []"),
            resolved("capture_num_tokens = [0, 1]"),
            in_no_order,
            resolved("capture_num_tokens = [1, 1024]"),
            resolved("capture_num_tokens = 1024"),
            resolved("decode_batch_sizes = [65]"),
            resolved("decode_batch_sizes = 0"),
            resolved("capture_query_lengths = [513]"),
            resolved("compile_sizes = [0]"),
            resolved("compile_sizes = [600]"),
            resolved("lazy_sizes = [513]"),
            file("lazy_sizes = -1"),
            file("stats_interval_seconds = -1"),
            file("capture_attempts = -1"),
            file("capture_attempts = \"few\""),
            file("memory_budget = -5"),
            file("capture = \"never\""),
            file("level = \"slow\""),
            file("capture_exclude = 3"),
            file("padding = \"yes\""),
            file("tune = \"hard\""),
            resolved("max_num_seqs = 600"),
            resolved("max_num_rows = 600"),
        ]
        .join("\n")
    );
}

#[test]
fn all_that_is_wrong_with_a_file_is_said_with_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    let text = "# what a server had\nmax_num_token = 4\nmemory_fraction = 2.0\n\n[checks]\nposion = true\n\
                [cache]\nmax_bytes = 0\n";
    std::fs::write(&path, format!("graph_mode = \"fast\"\nmax_num_seqs = 600\n{text}")).unwrap();
    let (configured, wrong) = ConfigLayers::check(&path).unwrap();
    assert_eq!(configured.config.max_num_seqs(), 600);
    let shown: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    let folder = folder.path().display().to_string();
    insta::assert_snapshot!(shown.join("\n").replace(&folder, "DIR"));
    let error = ConfigLayers::new().read(&path).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 3, "what the file says and no key takes: {error}");
    let fine = ConfigLayers::new().file("f", "max_num_seqs = 600").unwrap();
    let error = fine.finish().unwrap().dispatcher().unwrap_err().to_string();
    assert!(error.starts_with("f:1: max_num_seqs = 600 does not go with"), "{error}");
    let flag = ConfigLayers::new().flag("max_num_tokens", 0, "--max-num-tokens").unwrap();
    let error = flag.finish().unwrap().dispatcher().unwrap_err().to_string();
    assert!(error.starts_with("--max-num-tokens: max_num_tokens = 0 is out of range"), "{error}");
}

#[test]
fn words_of_other_servers_are_taken_or_answered_with_ours() {
    let text = "level = 3\ngraph_mode = \"FULL_AND_PIECEWISE\"\nmax_model_len = 64\n\
                max-num-batched-tokens = 32\ncapture_num_tokens = [8, 1, 8, 32]\ndtype = \"bfloat16\"\n\
                [cuda_graph_config]\nbatch_sizes = [4, 1]\n\
                [capture_own_rows]\n\"rows.windows\" = [4, 2]\n";
    let taken = config(text).unwrap();
    assert_eq!(
        (taken.level, taken.graph_mode),
        (CompileLevel::Piecewise, GraphMode::FullAndPiecewise)
    );
    assert_eq!((taken.max_seq_len, taken.max_num_tokens), (64, 32));
    assert_eq!(taken.capture_num_tokens, Some(Sizes::List(vec![1, 8, 32])));
    assert_eq!(taken.decode_batch_sizes, Some(Sizes::List(vec![1, 4])));
    assert_eq!(taken.capture_own_rows["rows.windows"], Sizes::List(vec![2, 4]));
    assert_eq!(taken.dtype.map(|dtype| dtype.name()), Some("bf16"));
    let levels =
        ["0", "1", "2", "\"3\"", "\"Eager\""].map(|level| config(&format!("level = {level}")));
    let levels = levels.map(|config| config.unwrap().level.name());
    assert_eq!(levels, ["eager", "trace", "compile", "piecewise", "eager"]);
    let answered = |text: &str| config(text).unwrap_err().to_string();
    insta::assert_snapshot!(
        [
            answered("level = 4"),
            answered("enforce_eager = true"),
            answered("gpu_memory_utilization = 0.9"),
            answered("tensor-parallel-size = 2"),
            answered("[compilation_config]\ncudagraph_capture_sizes = [1, 2]"),
            answered("compile_sizes = [\"cudagraph_capture_sizes\"]"),
            answered("max_seq_len = 4\nmax_model_len = 8"),
            answered("dtype = \"auto\""),
        ]
        .join("\n")
    );
}

#[test]
fn no_seconds_between_lines_are_no_lines() {
    let interval = |text| config(text).unwrap().stats_interval();
    assert_eq!(interval(""), None);
    assert_eq!(interval("stats_interval_seconds = 0"), None);
    assert_eq!(interval("stats_interval_seconds = 3"), Some(Duration::from_secs(3)));
}

#[test]
fn sizes_that_miss_the_bound_or_that_nothing_reaches_are_warned_about() {
    let warnings = |text: &str| {
        let config = config(text).unwrap();
        let warnings = config.warnings(&config.dispatcher().unwrap());
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(warnings(""), "");
    assert_eq!(warnings("max_num_tokens = 8"), "");
    insta::assert_snapshot!(
        [
            warnings("capture_num_tokens = [1, 64]"),
            warnings("decode_batch_sizes = [1, 2]"),
            warnings("graph_mode = \"full_decode_only\"\ncapture_num_tokens = [8, 512]"),
            warnings("max_num_rows = 8\ndecode_batch_sizes = [8, 64]"),
            warnings("capture_query_lengths = [1, 512]\ndecode_batch_sizes = [4, 64]"),
            warnings("level = \"compile\"\ngraph_mode = \"full\""),
            warnings("measure_padding = true\ncapture = \"lazy\""),
            warnings("launched_sizes = [1, 6, 511]\nlazy_sizes = [100, 256]\ncompile_sizes = [8]"),
        ]
        .join("\n")
    );
}

#[test]
fn lists_that_end_below_their_bounds_are_extended_where_that_is_asked_for() {
    let sizes = |text: &str| {
        let config = config(text).unwrap();
        let dispatcher = config.dispatcher().unwrap();
        let is_warned = !config.warnings(&dispatcher).is_empty();
        (dispatcher.tokens.sizes().to_vec(), dispatcher.batches.sizes().to_vec(), is_warned)
    };
    let lists = "capture_num_tokens = [1, 64]\ndecode_batch_sizes = [2]\nmax_num_seqs = 4\n";
    assert_eq!(sizes(lists), (vec![1, 64], vec![2], true));
    let extended = format!("{lists}short_size_lists = \"extend\"");
    assert_eq!(sizes(&extended), (vec![1, 64, 512], vec![2, 4], false));
    // Whoever asks for a pattern up to a number gets it.
    let pattern = "capture_num_tokens = 64\nshort_size_lists = \"extend\"";
    assert!(sizes(pattern).0.last() == Some(&64) && sizes(pattern).2);
}

#[test]
fn sizes_are_read_from_flags() {
    assert_eq!("64".parse(), Ok(Sizes::UpTo(64)));
    assert_eq!("1, 2,4".parse(), Ok(Sizes::List(vec![1, 2, 4])));
    assert_eq!("7,".parse(), Ok(Sizes::List(vec![7])));
    assert!("1,,2".parse::<Sizes>().is_err() && "-1".parse::<Sizes>().is_err());
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,60}|[a-z_.]{1,20} = [0-9a-z\"\\[\\],]{0,20}") {
        if let Ok(config) = config(&text)
            && let Ok(dispatcher) = config.dispatcher()
        {
            config.warnings(&dispatcher);
        }
    }
}
