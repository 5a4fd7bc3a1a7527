//! Models of one's own by their `model_type`, and the settings that their graphs follow.

use super::*;
use crate::models::ConfigError as ModelConfigError;
use piecewise_backend::weights::NormalWeights;
use piecewise_runtime::words::SymbolClass;
use std::path::Path;

/// Paged attention under a table of ids, as far as the bounds go that it is told.
fn graph_of(vocab: u64, bounds: &DecoderBounds) -> Result<Graph, BuildErrors> {
    let b = Builder::new("own").weight_dtype(DType::F32);
    let step = StepInputs::declare(&b, &bounds.step());
    let table = b.weight("table", [vocab, 16]);
    let x = table.gather(step.ids).cast(bounds.activations);
    let kv = b.kv_state(step.kv_rows, 1, 16, bounds.activations);
    let heads = x.heads(16);
    kv.write(step.kv_slots, heads, heads);
    let spec = AttentionSpec { scale: 0.25, causal: true };
    let x = x + heads.paged_attention(kv, &step.attention, spec);
    let logits = x.gather(step.logit_rows).matmul_transposed(table, DType::F32);
    b.finish(step.outputs(&b, logits, bounds.sampling_controls))
}

fn read(fields: &Fields<'_>) -> Result<impl DecoderModel + use<>, ModelConfigError> {
    let vocab = fields.required_count("vocab_size", 1..=1 << 10)? as u64;
    Ok(move |bounds: &DecoderBounds| graph_of(vocab, bounds))
}

fn folder(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

const CONFIG: &str = r#"{"model_type": "own", "vocab_size": 24, "num_hidden_layers": 1, "dtype": "float32",
    "max_position_embeddings": 96, "eos_token_id": [3, 5]}"#;

fn registries() -> Registries {
    Registries::standard().model("own", read)
}

fn assembly(folder: &Path) -> Assembly {
    let weights = NormalWeights { std: 1.0, seed: 3 };
    registries().folder(folder).unwrap().weights(weights).set("cache.enabled", false).threads(1)
}

fn bound(planned: &Planned, class: SymbolClass) -> u64 {
    planned.symbols().count(class, planned.symbols().bounds())
}

#[test]
fn a_model_of_ones_own_is_read_by_its_type_and_follows_the_settings() {
    let folder = folder(CONFIG);
    let assembly = || assembly(folder.path());
    let facts = assembly().facts().unwrap().clone();
    assert_eq!((facts.vocab_size, facts.num_layers), (24, Some(1)));
    assert_eq!((facts.dtype, facts.eos_token_ids), (Some(DType::F32), vec![3, 5]));
    let small = assembly().max_num_tokens(16).max_num_seqs(2).max_seq_len(64).plan().unwrap();
    let of_graph = [SymbolClass::Tokens, SymbolClass::Sequences].map(|class| bound(&small, class));
    assert_eq!(of_graph, [16, 2]);
    // Above what the keys of the folder allow.
    let settings = assembly().settings().unwrap();
    assert_eq!(settings.configured().unwrap().config.max_seq_len, 96);
    let error = assembly().max_seq_len(97).plan().unwrap_err().to_string();
    assert!(error.contains("max_position_embeddings = 96"), "{error}");
    // Rows of keys and values are what memory leaves.
    small.artifacts().unwrap();
    let ledger = small.ledger().unwrap();
    let row_bytes = 2 * 16 * DType::F32.size() as u64;
    let budget = ledger.total() - 64 * row_bytes;
    let of_budget = |bytes| {
        let assembly = assembly().max_num_tokens(16).max_num_seqs(2).max_seq_len(64);
        assembly.memory_budget(bytes).plan().map(|planned| planned.ledger().unwrap().states)
    };
    assert_eq!(of_budget(budget).unwrap(), ledger.states - 64 * row_bytes);
    let error = of_budget(ledger.weights).unwrap_err().to_string();
    assert!(error.contains("memory_budget"), "{error}");
    // Two dtypes, and both ways to sample.
    for (dtype, controls) in [(DType::F32, true), (DType::BF16, false)] {
        let assembly = assembly().activations(dtype).sampling_controls(controls);
        let planned = assembly.max_num_tokens(16).max_num_seqs(2).plan().unwrap();
        assert_eq!(planned.module().graph().outputs().len(), if controls { 3 } else { 2 });
        let mut engine = planned.engine().unwrap();
        assert_eq!(generated_by(&mut engine, &[1, 2]).len(), 4);
    }
}

fn generated_by(engine: &mut Engine, prompt: &[u32]) -> Vec<u32> {
    let request = Request { keep: true, ..Request::new(prompt.to_vec(), 4) };
    let request = engine.add(request).unwrap();
    engine.run(&mut Vec::new()).unwrap();
    engine.ids(request).unwrap()[prompt.len()..].to_vec()
}

/// A graph of bounds that are its own has less room than somebody asks for.
#[test]
fn what_a_graph_does_not_follow_is_refused_by_name() {
    let stubborn = |bounds: &DecoderBounds| {
        let own = DecoderBounds {
            activations: DType::F32,
            max_tokens: 8,
            max_rows: 2,
            max_sequences: 2,
            max_length: 32,
            sampling_controls: false,
            ..*bounds
        };
        graph_of(24, &own)
    };
    let assembly = || Assembly::model(stubborn).set("cache.enabled", false).threads(1);
    // What nobody asked for is as the graph says.
    let planned = assembly().plan().unwrap();
    let config = &planned.settings().config;
    assert_eq!((config.max_num_tokens, config.max_num_seqs(), config.max_seq_len), (8, 2, 32));
    assert!(!config.sampling_controls);
    let asked = [
        ("max_num_tokens", assembly().max_num_tokens(16)),
        ("max_num_rows", assembly().max_num_rows(4)),
        ("max_num_seqs", assembly().max_num_seqs(4)),
        ("max_seq_len", assembly().max_seq_len(64)),
        ("sampling_controls", assembly().sampling_controls(true)),
        ("dtype", assembly().activations(DType::F16)),
    ];
    for (key, assembly) in asked {
        let error = assembly.plan().unwrap_err().to_string();
        assert!(error.contains(&format!("{key} can't be")), "{key}: {error}");
        assert!(error.contains("the graph @own says"), "{key}: {error}");
    }
    // What it has room for is no matter.
    assembly().max_num_tokens(4).max_num_seqs(1).max_seq_len(16).plan().unwrap();
}

#[test]
fn a_type_that_nobody_registered_is_named_with_those_that_are_there() {
    let error = |config: &str| {
        let error = registries().folder(folder(config).path()).err().unwrap();
        // As a `main` that returns it prints it.
        format!("{error:?}")
    };
    let unknown = error(&CONFIG.replace("\"own\"", "\"owm\""));
    let known = "\n  because: ";
    assert!(unknown.contains(known) && !unknown.contains("Folder {"), "{unknown}");
    let said = "`model_type` is \"owm\", which is not supported: the models are ";
    assert!(unknown.contains(said) && unknown.contains(", own, "), "{unknown}");
    let untyped = error(&CONFIG.replace("\"model_type\": \"own\",", ""));
    assert!(untyped.contains("`model_type` is missing"), "{untyped}");
    let sizeless = error(&CONFIG.replace("\"vocab_size\": 24,", ""));
    assert!(sizeless.contains("`vocab_size` is missing"), "{sizeless}");
    let wrong = error(&CONFIG.replace("24", "\"24\""));
    assert!(wrong.contains("`vocab_size` is \"24\", expected a whole number"), "{wrong}");
}

/// One way for all: what is registered under the name of a ready family takes its place.
#[test]
fn a_family_can_be_replaced() {
    let of = |family: &str| folder(&CONFIG.replace("\"own\"", &format!("{family:?}")));
    // Some have a size for whatever is not stated.
    let refuses = |family: &&str| {
        let error = Registries::standard().folder(of(family).path()).err();
        error.is_some_and(|error| format!("{error:?}").contains("`num_attention_heads` is missing"))
    };
    let family = Registries::standard().models.names().find(refuses).unwrap().to_owned();
    let config = of(&family);
    let planned = Registries::standard().model(family, read).folder(config.path()).unwrap();
    let planned = planned.set("cache.enabled", false).max_num_tokens(8).plan().unwrap();
    assert_eq!(planned.module().graph().name, "own");
}

#[test]
fn a_pass_runs_after_another_wherever_that_stands() {
    let with = |assembly: Assembly, after: &str| {
        assembly.pass_after(after, "own.count", &["breaks"], |options| {
            let breaks = options.flag("breaks")?;
            Ok(Box::new(Own { name: "own.count".to_owned(), seen: Arc::default(), breaks }))
        })
    };
    let names = |planned: &Planned| {
        Vec::from_iter(planned.passes().passes.iter().map(|run| run.name.clone()))
    };
    let planned = with(graph(), "dce").plan().unwrap();
    let names_of_all = names(&planned);
    let at = names_of_all.iter().position(|name| name == "own.count").unwrap();
    assert_eq!((&*names_of_all[at - 1], &*names_of_all[at + 1]), ("dce", "fuse"));
    assert_eq!(names_of_all.len(), DEFAULT_PIPELINE.split(',').count() + 1);
    let text = "dce,split,destination,plan";
    let planned = with(graph().pipeline(text), "dce").plan().unwrap();
    assert_eq!(names(&planned)[..3], ["dce", "own.count", "split"]);
    let error = with(graph(), "dec").plan().unwrap_err().to_string();
    let said = "pass `own.count` is to run after `dec`, which the pipeline does not have, did you mean `dce`?";
    assert!(error.contains(said), "{error}");
}
