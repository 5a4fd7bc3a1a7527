//! What a graph returns, held against what an engine reads of it.

use super::*;
use piecewise_backend::weights::NormalWeights;

const VOCAB: u64 = 24;
const BOUNDS: StepBounds = StepBounds {
    max_tokens: 8,
    max_rows: 2,
    max_sequences: 2,
    max_length: 64,
    kv_rows: 0,
    state_slots: 0,
};

type Outputs<'b> = Vec<Tensor<'b>>;

/// A model that looks at the last id alone and returns what it is told to.
fn returning(
    outputs: impl for<'b> FnOnce(&'b Builder, &StepInputs<'b>, Tensor<'b>) -> Outputs<'b>,
) -> Assembly {
    let b = Builder::new("bigram").weight_dtype(DType::F32);
    let step = StepInputs::declare(&b, &BOUNDS);
    let table = b.weight("table", [VOCAB, VOCAB]);
    let logits = table.gather(step.ids).gather(step.logit_rows);
    let outputs = outputs(&b, &step, logits);
    let assembly = Assembly::graph(b.finish(outputs).unwrap()).set("cache.enabled", false);
    assembly.threads(1).weights(NormalWeights { std: 1.0, seed: 3 })
}

fn error_of(assembly: Assembly) -> String {
    assembly.engine().unwrap_err().to_string()
}

#[test]
fn a_graph_that_does_not_return_the_ids_that_it_keeps_is_no_engine() {
    for level in [CompileLevel::Eager, CompileLevel::Piecewise] {
        let at = |assembly: Assembly| assembly.level(level);
        let argmax = error_of(at(returning(|_, _, logits| vec![logits, logits.argmax(1)])));
        assert!(argmax.contains("no node writes the state of role \"sampled\""), "{argmax}");
        let others = error_of(at(returning(|_, step, logits| {
            step.sample(logits);
            vec![logits, logits.argmax(1)]
        })));
        assert!(others.contains("others are written into the state"), "{others}");
        let none = error_of(at(returning(|_, _, logits| vec![logits])));
        assert!(none.contains("the graph returns no sampled ids"), "{none}");
        for said in [argmax, others, none] {
            assert!(said.contains("`StepInputs::sample(logits)`"), "{said}");
        }
        let sampled = at(returning(|_, step, logits| vec![logits, step.sample(logits)]));
        let only_ids = at(returning(|_, step, logits| vec![step.sample(logits)]));
        let mut engines = [sampled, only_ids].map(|assembly| assembly.engine().unwrap());
        let [first, second] = engines.each_mut().map(|engine| {
            let request = engine.add(Request { keep: true, ..Request::new(vec![3], 6) }).unwrap();
            engine.run(&mut Vec::new()).unwrap();
            engine.ids(request).unwrap().to_vec()
        });
        assert!(first.len() == 7 && first == second, "{first:?} {second:?}");
    }
}

#[test]
fn of_outputs_that_could_be_logits_those_are_that_ids_are_sampled_from() {
    fn wide<'b>(b: &'b Builder, logits: Tensor<'b>) -> Tensor<'b> {
        b.concat(&[logits, logits], 1)
    }
    let several = returning(|b, step, logits| vec![wide(b, logits), logits, step.sample(logits)]);
    let engine = several.engine().unwrap();
    assert_eq!(engine.options().vocab, VOCAB);
    let error = error_of(returning(|b, step, logits| {
        step.sample(logits);
        vec![wide(b, logits), logits]
    }));
    assert!(error.contains("outputs [0, 1] could all be the logits"), "{error}");
}

#[test]
fn sampling_controls_are_there_as_a_whole_or_an_error() {
    let ids_alone = error_of(returning(|b, step, logits| {
        let [ids, _] = step.sample_controlled(b, logits);
        vec![logits, ids]
    }));
    assert!(ids_alone.contains("numbers that log-probabilities are made from"), "{ids_alone}");
    let no_logits =
        error_of(returning(|b, step, logits| step.sample_controlled(b, logits).to_vec()));
    assert!(no_logits.contains("returns no logits"), "{no_logits}");
    let twice = returning(|b, step, logits| {
        let [ids, details] = step.sample_controlled(b, logits);
        let wide = b.concat(&[logits, logits], 1);
        vec![wide, ids, details]
    });
    let other_logits = error_of(twice);
    assert!(
        other_logits.contains("no state of role \"sample.masks\" has 2 rows of 2 i32"),
        "{other_logits}"
    );
    for said in [ids_alone, no_logits] {
        assert!(said.contains("`StepInputs::sample_controlled` gives"), "{said}");
    }
    let plain = || returning(|_, step, logits| vec![logits, step.sample(logits)]);
    let asked = plain().set("sampling_controls", true).plan().unwrap_err().to_string();
    assert!(asked.contains("sampling_controls can't be true"), "{asked}");
    assert!(asked.contains("StepInputs::sample_controlled"), "{asked}");
    plain().set("sampling_controls", false).plan().unwrap();
    let in_force = |assembly: &Assembly| assembly.settings().unwrap().config.sampling_controls;
    assert!(!in_force(&plain()), "nobody asked, and the graph has none");
    let whole = returning(|b, step, logits| {
        let [ids, details] = step.sample_controlled(b, logits);
        vec![logits, ids, details]
    });
    assert!(in_force(&whole), "the graph has them, and nobody asked");
    let mut engine = whole.set("sampling_controls", true).engine().unwrap();
    let request = Request { logprobs: Some(2), ..Request::new(vec![3], 4) };
    engine.add(request).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let told =
        |event: &RequestEvent| matches!(event, RequestEvent::Token { logprobs: Some(_), .. });
    assert_eq!(events.iter().filter(|event| told(event)).count(), 4);
}

/// A page is rows of every state of the pool.
#[test]
fn kv_states_of_two_pools_are_no_engine() {
    let two_pools = returning(|b, step, logits| {
        let [many, few] = [("M", 64), ("F", 16)]
            .map(|(name, rows)| b.symbol_with_role(name, 1, rows, roles::KV_ROWS));
        for (name, rows) in [("keys", many), ("values", few)] {
            let state = b.state(name, DType::F32, (rows, 1, 1)).role(roles::KV_CACHE);
            state.scatter(step.kv_slots, step.ids.cast(DType::F32).reshape((step.tokens, 1, 1)));
        }
        vec![logits, step.sample(logits)]
    });
    let error = error_of(two_pools);
    assert!(error.contains("\"values\" has other pool rows than \"keys\""), "{error}");
}

/// What is read back is what the purpose says; who asks for something else is told.
#[test]
fn an_engine_for_another_purpose_than_ids_says_what_it_can_not_do() {
    let logits_alone = || returning(|_, _, logits| vec![logits]);
    let mut engine = logits_alone().purpose(Purpose::Logits).engine().unwrap();
    let (request, mut rows) = (Request::new(vec![3, 5, 7], 1), 0);
    engine.logits(&request, &mut |_, bytes| rows += bytes.len() as u64 / (4 * VOCAB)).unwrap();
    assert_eq!(rows, 3);
    let error = engine.add(request).unwrap_err().to_string();
    assert!(error.contains("returns no sampled ids"), "{error}");
    let ids_alone = returning(|_, step, logits| vec![step.sample(logits)]);
    let error = error_of(ids_alone.purpose(Purpose::Logits));
    assert!(error.contains("returns no logits"), "{error}");
    let error = error_of(logits_alone().purpose(Purpose::Rows));
    assert!(error.contains("the purpose is `Rows`"), "{error}");
}

/// A program that nobody watches finds it in its log.
#[test]
fn tensors_that_the_graph_does_not_read_are_told() {
    let assembly = || {
        let b = Builder::new("norms").weight_dtype(DType::BF16);
        let t = b.symbol("T", 1, 4);
        let x = b.input("x", DType::F32, (t, 256));
        let norm = b.weight("model.norm.weight", [256]).cast(DType::F32);
        let graph = b.finish([x + norm.broadcast_to((t, 256))]).unwrap();
        let assembly = Assembly::graph(graph).set("cache.enabled", false).threads(1);
        assembly.checkpoint(Checkpoint::open(Path::new(TINY)).unwrap())
    };
    let said = probes::Said::default();
    let writer = said.clone();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let log = log.with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(log, || assembly().session()).unwrap();
    let logged = said.text();
    let told = "reads nothing of these tensors of the checkpoint: \"model.embed_tokens.weight\", ";
    assert!(logged.contains(told) && logged.contains(", 57 more"), "{logged}");
    // One who watches is told in the place of the log.
    let (heard, said) = (Arc::new(Mutex::new(String::new())), probes::Said::default());
    let (hears, writer) = (Arc::clone(&heard), said.clone());
    let watched = assembly().watch(move |notice| {
        if let Notice::Warning(text) = notice {
            hears.lock().unwrap().push_str(text);
        }
    });
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(log, || watched.session()).unwrap();
    assert!(heard.lock().unwrap().contains(told));
    assert!(!said.text().contains("reads nothing"));
}
