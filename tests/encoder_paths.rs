//! Paths of an encoder: budgets and zero sizes of their own, caps, what is named when a model is
//! wrong, and that the others of a call are served.

use piecewise::encoding::{
    Encoder, EncoderBounds, EncoderPath, ItemEncoder, ItemError, ItemOutputs, OutputRows, PathSize,
    TokenRange, Values,
};
use piecewise::prelude::*;
use std::sync::{Arc, Mutex};

const WIDTH: usize = 4;

/// What an item brings to each of two paths, and its frames on the second.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    sizes: [u64; 2],
    frames: u64,
    value: f32,
}

/// How a model may be wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    /// Brings a row less of items of value 9 than it says.
    FewRows,
    /// Says that segments of items of value 9 begin a row too late.
    LateStart,
    /// Says that the last segment of a step is a row longer than it is.
    LongSegment,
    /// Announces one output too few.
    FewOutputs,
    /// Announces rows for items where the graph has one for each token.
    OtherRows,
    /// Gives rows of items of value 9 places that the items do not have.
    BadOrder,
    /// Sizes for one path of two.
    FewSizes,
}

/// The mean of the rows of an item on each path, and the rows.
struct Means {
    fault: Fault,
    prunes: bool,
    /// Whether items have their rows the other way round than the graph.
    turns: bool,
}

impl ItemEncoder for Means {
    type Item = Item;

    fn sizes(&self, item: &Item) -> Result<Vec<PathSize>, ItemError> {
        let size = |(i, &tokens): (usize, &u64)| {
            let frames = if i == 1 { item.frames } else { 0 };
            PathSize { rows: tokens, tokens, frames }
        };
        let paths = if self.fault == Fault::FewSizes { 1 } else { 2 };
        Ok(item.sizes.iter().enumerate().map(size).take(paths).collect())
    }

    fn range(&self, path: usize) -> TokenRange {
        if path == 0 { TokenRange::always(6) } else { TokenRange::up_to(20) }
    }

    fn prunes_videos(&self, path: usize) -> bool {
        self.prunes && path == 1
    }

    fn fill<'a>(&self, path: usize, items: &[&'a Item]) -> Vec<(&'static str, Values<'a>)> {
        let (mut x, mut starts, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let is_wrong = path == 1 && item.value == 9.0;
            let mut rows = item.sizes[path] as usize;
            if is_wrong && self.fault == Fault::FewRows {
                rows -= 1;
            }
            starts.push((x.len() / WIDTH) as i32);
            if is_wrong && self.fault == Fault::LateStart {
                *starts.last_mut().unwrap() += 1;
            }
            lengths.push(rows as i32);
            x.extend((0..rows * WIDTH).map(|i| item.value + i as f32));
        }
        if path == 1 && self.fault == Fault::LongSegment {
            *lengths.last_mut().unwrap() += 1;
        }
        vec![
            ("x", Values::F32(x)),
            ("starts", Values::I32(starts)),
            ("lengths", Values::I32(lengths)),
        ]
    }

    fn order(&self, path: usize, item: &Item) -> Option<Vec<u32>> {
        let places = 0..item.sizes[path] as u32;
        match self.fault {
            Fault::BadOrder if item.value == 9.0 => Some(places.map(|place| place + 1).collect()),
            _ if self.turns => Some(places.rev().collect()),
            _ => None,
        }
    }

    fn outputs(&self, _path: usize) -> Vec<OutputRows> {
        match self.fault {
            Fault::FewOutputs => vec![OutputRows::PerItem(WIDTH)],
            Fault::OtherRows => vec![OutputRows::PerItem(WIDTH); 2],
            _ => vec![OutputRows::PerItem(WIDTH), OutputRows::PerRow(WIDTH)],
        }
    }

    fn assemble(&self, item: &Item, paths: Vec<ItemOutputs>) -> Result<ItemOutputs, ItemError> {
        assert_eq!(paths.len(), 2);
        for (outputs, tokens) in paths.iter().zip(item.sizes) {
            let lengths = outputs.iter().map(Vec::len);
            let expected = [if tokens == 0 { 0 } else { WIDTH }, tokens as usize * WIDTH];
            assert!(lengths.eq(expected), "{item:?}");
        }
        Ok(paths.concat())
    }
}

const BOUNDS: EncoderBounds = EncoderBounds { max_rows: 40, max_items: 4, max_frames: 5 };

fn encoder_of(
    model: Means,
    configure: impl Fn(usize, Assembly) -> Assembly,
) -> (Encoder<Means>, Arc<Mutex<Vec<String>>>) {
    encoder_within(model, BOUNDS, configure)
}

fn encoder_within(
    model: Means,
    bounds: EncoderBounds,
    configure: impl Fn(usize, Assembly) -> Assembly,
) -> (Encoder<Means>, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let path = |at: usize| {
        let b = Builder::new("means");
        let rows = b.symbol_with_role("T", 1, BOUNDS.max_rows, roles::TOKENS);
        let items = b.symbol_with_role("S", 1, BOUNDS.max_items, "rows.items");
        let index = |name| b.input(name, DType::I32, [items]).padding(0.0);
        let segments = Segments { starts: index("starts"), lengths: index("lengths") };
        let x = b.input("x", DType::F32, (rows, WIDTH as u64));
        let heads = x.heads(WIDTH as u64);
        let spec = AttentionSpec { scale: 0.5, causal: false };
        let mixed = heads.segment_attention(heads, heads, [segments; 2], spec);
        let graph = b.finish([x.segment_mean(segments), mixed]).unwrap();
        let heard = Arc::clone(&warnings);
        let assembly = Assembly::graph(graph).set("cache.enabled", false).watch(move |notice| {
            if let Notice::Warning(text) = notice {
                heard.lock().unwrap().push(text.to_owned());
            }
        });
        let name = ["whole", "parts"][at].to_owned();
        EncoderPath { name, assembly: configure(at, assembly), bounds }
    };
    let encoder = Encoder::of_paths(model, vec![path(0), path(1)]).unwrap();
    (encoder, warnings)
}

fn encoder(fault: Fault) -> Encoder<Means> {
    let model = Means { fault, prunes: false, turns: false };
    encoder_of(
        model,
        |at, assembly| if at == 1 { assembly.capture_sizes([8, 24]) } else { assembly },
    )
    .0
}

fn item(sizes: [u64; 2], value: f32) -> Item {
    Item { sizes, frames: 0, value }
}

#[test]
fn each_path_is_dumped_apart() {
    let folder = tempfile::tempdir().unwrap();
    let model = Means { fault: Fault::None, prunes: false, turns: false };
    drop(encoder_of(model, |_, assembly| assembly.set("dump.dir", folder.path())));
    for path in ["whole", "parts"] {
        assert!(folder.path().join(path).join("plan.pw").is_file(), "{path}");
    }
    assert!(!folder.path().join("plan.pw").exists());
}

/// Beside others that have theirs.
#[test]
fn an_item_whose_outputs_are_no_numbers_has_none_and_is_counted() {
    let mut encoder = encoder(Fault::None);
    let items =
        [item([6, 0], 1.0), item([6, 3], f32::NAN), item([6, 3], f32::INFINITY), item([3, 3], 2.0)];
    let mut found = encoder.encode(&items).into_iter();
    assert!(found.next().unwrap().is_ok());
    for _ in 0..2 {
        let error = found.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("in f32 holds NaN") && error.contains("checks.poison"), "{error}");
    }
    assert!(found.next().unwrap().is_ok());
    assert_eq!(encoder.statistics().paths[0].failed["not_finite"], 2);
}

#[test]
fn each_path_packs_replays_launches_and_skips_apart() {
    let mut encoder = encoder(Fault::None);
    let budgets =
        Vec::from_iter(encoder.budgets().map(|(name, list)| (name.to_owned(), list.to_vec())));
    // Of six tokens each, four items have at most 24.
    assert_eq!(budgets, [("whole".to_owned(), vec![6, 12, 24]), ("parts".to_owned(), vec![8, 24])]);
    let items = [
        item([6, 0], 1.0),
        item([0, 3], 2.0),
        item([6, 20], 3.0),
        item([0, 0], 4.0),
        item([6, 30], 5.0),
        item([6, 4], 6.0),
    ];
    let together = encoder.encode(&items).into_iter().map(Result::unwrap);
    let together = Vec::from_iter(together);
    let statistics = encoder.statistics();
    insta::assert_snapshot!(statistics, @r"
    whole: 1 steps, 1 replayed; items: 4 hits, 0 misses, 2 skipped; 0.0% of tokens padding
      compiled 12 pieces; reused nothing; missed pieces: 12 absent
      budget 24: 1 replays
    parts: 3 steps, 2 replayed; items: 3 hits, 1 misses, 2 skipped; 8.1% of tokens padding
      compiled 10 pieces; reused nothing; missed pieces: 10 absent
      budget 8: 1 replays
      budget 24: 1 replays
      launched: 1 items, above_largest_size
    ");
    encoder.one_by_one(true);
    for ((one, together), item) in items.iter().zip(&together).zip(&items) {
        let alone = encoder.encode(std::slice::from_ref(one)).pop().unwrap().unwrap();
        assert!(alone == *together, "{item:?}");
        // The mean of value, value + 1, .. of one column.
        for (path, &tokens) in item.sizes.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
            let mean = item.value + (tokens - 1) as f32 * WIDTH as f32 / 2.0;
            assert!((together[2 * path][0] - mean).abs() < 1e-4);
        }
    }
    assert!(encoder.encode(&[]).is_empty());
}

#[test]
fn frames_are_capped_and_videos_that_are_pruned_are_launched() {
    let video = |tokens, frames| Item { sizes: [0, tokens], frames, value: 1.0 };
    let items =
        [video(4, 1), video(3, 3), video(2, 2), video(4, 1), video(6, 6), video(5, 3), video(2, 1)];
    let run = |prunes| {
        let model = Means { fault: Fault::None, prunes, turns: false };
        let (mut encoder, _) = encoder_of(model, |_, assembly| assembly);
        let outputs = encoder.encode(&items);
        assert!(outputs.iter().all(Result::is_ok));
        encoder.statistics().paths.swap_remove(1)
    };
    let images_and_videos = run(false);
    assert_eq!(images_and_videos.misses, [("too_many_frames", 1)].into());
    assert_eq!(images_and_videos.hits, 6);
    // 11 frames at most 5 a step.
    assert_eq!(images_and_videos.replayed_steps(), 3);
    let pruned = run(true);
    assert_eq!(pruned.misses, [("pruned_by_data", 4)].into());
    assert_eq!(pruned.hits, 3);
}

#[test]
fn with_no_frames_videos_are_launched_and_images_share_steps() {
    let video = |tokens, frames| Item { sizes: [0, tokens], frames, value: 1.0 };
    let items = [video(4, 1), video(3, 3), video(6, 1), video(5, 2), video(2, 1)];
    let run = |max_frames| {
        let model = Means { fault: Fault::None, prunes: false, turns: false };
        let bounds = EncoderBounds { max_frames, ..BOUNDS };
        let (mut encoder, _) = encoder_within(model, bounds, |_, assembly| assembly);
        let outputs = encoder.encode(&items).into_iter().map(Result::unwrap);
        (Vec::from_iter(outputs), encoder.statistics().paths.swap_remove(1))
    };
    let (outputs, statistics) = run(0);
    assert_eq!(statistics.misses, [("too_many_frames", 2)].into());
    assert_eq!((statistics.hits, statistics.replayed_steps(), statistics.steps), (3, 1, 2));
    let (any, statistics) = run(u64::MAX);
    assert!(statistics.misses.is_empty());
    assert!(outputs == any);
}

#[test]
fn rows_come_back_in_the_order_of_their_item() {
    let items = [item([0, 3], 1.0), item([0, 1], 2.0), item([0, 30], 3.0)];
    let run = |turns| {
        let model = Means { fault: Fault::None, prunes: false, turns };
        let outputs = encoder_of(model, |_, assembly| assembly).0.encode(&items);
        Vec::from_iter(outputs.into_iter().map(Result::unwrap))
    };
    for (turned, given) in run(true).iter().zip(run(false)) {
        let rows = given[3].chunks(WIDTH).rev();
        assert_eq!(turned[3], Vec::from_iter(rows.flatten().copied()));
        assert_eq!(turned[2], given[2]);
    }
}

#[test]
fn what_a_model_gets_wrong_is_named_and_the_others_are_served() {
    let said = |fault| {
        let items = [item([6, 3], 1.0), item([6, 4], 9.0), item([0, 5], 2.0)];
        let mut encoder = encoder(fault);
        let outputs = encoder.encode(&items);
        let outputs = outputs.iter().map(|output| match output {
            Ok(_) => "served".to_owned(),
            Err(error) => error.to_string(),
        });
        format!("{fault:?}\n  {}", Vec::from_iter(outputs).join("\n  "))
    };
    let faults = [
        Fault::None,
        Fault::FewRows,
        Fault::LateStart,
        Fault::LongSegment,
        Fault::FewOutputs,
        Fault::OtherRows,
        Fault::BadOrder,
        Fault::FewSizes,
    ];
    let said = Vec::from_iter(faults.map(said)).join("\n");
    insta::assert_snapshot!(said, @r"
    None
      served
      served
      served
    FewRows
      served
      on the path `parts`: the model breaks the protocol of encoders: output 1 of 1 item has 3 rows, but 4 of 4 elements are announced
      served
    LateStart
      served
      on the path `parts`: the model breaks the protocol of encoders: segment 0 of `starts` has 4 rows from row 1 on, but there are 4
      served
    LongSegment
      on the path `parts`: the model breaks the protocol of encoders: segment 0 of `starts` has 4 rows from row 0 on, but there are 3
      on the path `parts`: the model breaks the protocol of encoders: segment 0 of `starts` has 5 rows from row 0 on, but there are 4
      on the path `parts`: the model breaks the protocol of encoders: segment 0 of `starts` has 6 rows from row 0 on, but there are 5
    FewOutputs
      on the path `whole`: the model breaks the protocol of encoders: it announces 1 of the 2 outputs that the graph has
      on the path `whole`: the model breaks the protocol of encoders: it announces 1 of the 2 outputs that the graph has
      on the path `parts`: the model breaks the protocol of encoders: it announces 1 of the 2 outputs that the graph has
    OtherRows
      on the path `whole`: the model breaks the protocol of encoders: output 1 of 1 item has 6 rows, but 1 of 4 elements are announced
      on the path `whole`: the model breaks the protocol of encoders: output 1 of 1 item has 6 rows, but 1 of 4 elements are announced
      on the path `parts`: the model breaks the protocol of encoders: output 1 of 1 item has 5 rows, but 1 of 4 elements are announced
    BadOrder
      served
      on the path `whole`: the model breaks the protocol of encoders: an order of 6 places for an item of 6 tokens
      served
    FewSizes
      the model breaks the protocol of encoders: 1 sizes for 2 paths
      the model breaks the protocol of encoders: 1 sizes for 2 paths
      the model breaks the protocol of encoders: 1 sizes for 2 paths
    ");
}

#[test]
fn an_item_that_no_step_takes_is_named_with_its_path() {
    let mut encoder = encoder(Fault::None);
    let outputs = encoder.encode(&[item([6, 41], 1.0), item([6, 40], 1.0), item([6, 1], 1.0)]);
    let error = outputs[0].as_ref().unwrap_err().to_string();
    assert_eq!(
        error,
        "on the path `parts`: 41 rows, but a step has at most 40 (max_num_tokens); raise it or give \
         a smaller item"
    );
    assert!(outputs[1].is_ok() && outputs[2].is_ok());
    let parts = encoder.statistics().paths.swap_remove(1);
    assert_eq!(parts.failed, [("larger_than_a_step", 1)].into());
    assert_eq!(parts.hits + parts.misses.values().sum::<u64>(), 2);
    // What would be launched is an error where launches are.
    let model = Means { fault: Fault::None, prunes: false, turns: false };
    let (mut strict, _) = encoder_of(model, |_, a| a.capture_sizes([24]).set("strict", true));
    let outputs = strict.encode(&[item([6, 30], 1.0), item([6, 24], 1.0)]);
    let error = outputs[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("no graph takes it (above_largest_size)"), "{error}");
    assert!(outputs[1].is_ok());
    let parts = strict.statistics().paths.swap_remove(1);
    assert_eq!(parts.failed, [("above_largest_size", 1)].into());
    assert_eq!((parts.hits, parts.misses.len()), (1, 0));
    // So is one whose step fails, which shares it with others at first.
    let mut wrong = self::encoder(Fault::FewRows);
    wrong.encode(&[item([6, 3], 1.0), item([6, 4], 9.0), item([6, 5], 2.0)]);
    let [whole, parts] = <[_; 2]>::try_from(wrong.statistics().paths).unwrap();
    assert_eq!((whole.hits, whole.failed.len()), (3, 0));
    assert_eq!((parts.hits, parts.failed), (2, [("protocol", 1)].into()));
}

#[test]
fn a_budget_that_no_step_reaches_is_named_at_start_and_in_statistics() {
    let model = Means { fault: Fault::None, prunes: false, turns: false };
    let (encoder, warnings) = encoder_of(model, |_, assembly| assembly.capture_sizes([6, 10, 40]));
    let warnings = warnings.lock().unwrap();
    let named = warnings.iter().filter(|text| text.contains("never reached"));
    let named = Vec::from_iter(named.map(String::as_str));
    assert_eq!(
        named,
        ["the budget 10 of `whole` is never reached: up to 4 items of 6 to 6 tokens each never \
          have from 7 to 10 together"]
    );
    let shown = encoder.statistics().to_string();
    assert!(shown.contains("budget 10 is never reached"), "{shown}");
    assert_eq!(encoder.statistics().paths[0].unreachable[0].0, 10);
}

/// What a logged run wrote plans budgets at which the same calls are padded less.
#[test]
fn budgets_are_planned_by_a_log_of_items() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("items.jsonl");
    let calls = [vec![item([6, 5], 1.0)], vec![item([6, 13], 1.0), item([0, 14], 2.0)]];
    let run = |planned: bool| {
        let model = Means { fault: Fault::None, prunes: false, turns: false };
        let (mut encoder, _) = encoder_of(model, |_, assembly| match planned {
            true => assembly.set("capture_item_log", &file),
            false => assembly,
        });
        if !planned {
            encoder.log_items(std::fs::File::create(&file).unwrap());
        }
        for call in &calls {
            encoder.encode(call).into_iter().for_each(|outputs| drop(outputs.unwrap()));
        }
        encoder.finish_log().unwrap();
        let parts = encoder.statistics().paths.swap_remove(1);
        assert_eq!(parts.hits, 3);
        (encoder.budgets().nth(1).unwrap().1.to_vec(), parts.padded_tokens - parts.tokens)
    };
    let (default, padding) = run(false);
    assert_eq!((default, padding), (vec![40], 35 + 13));
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        written,
        "{\"path\":\"whole\",\"tokens\":[6]}\n{\"path\":\"parts\",\"tokens\":[5]}\n\
         {\"path\":\"whole\",\"tokens\":[6]}\n{\"path\":\"parts\",\"tokens\":[13,14]}\n"
    );
    let (_, padding) = run(true);
    assert!(padding < 48, "{padding}");
}
