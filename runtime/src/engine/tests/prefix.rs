//! The prefix cache: what is found, what is not, and that nobody notices.

use super::*;
use crate::batch::TokenValues;
use crate::memory::{KvEvent, Page, PageHash};
use crate::words::{PrefixCounts, SuspendedWeights, Usage};
use std::collections::{BTreeMap, BTreeSet};

const ROWS: usize = 16;

/// Ids of a text, one of several.
fn text(number: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (7 * i + i * i + 31 * number) % VOCAB as u32).collect()
}

fn run(engine: &mut Engine, request: &Request) -> (Vec<u32>, Usage) {
    let id = engine.add(request.clone()).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let usage = events.iter().find_map(|event| match event {
        RequestEvent::Finished { usage, .. } => Some(*usage),
        _ => None,
    });
    (assert_answer(engine, &events, id, &request.prompt, request), usage.unwrap())
}

/// Who watches the events: what can be found by what they say.
#[derive(Clone, Default)]
struct Follower(Arc<Mutex<BTreeMap<[u8; 32], Vec<u32>>>>);

impl Follower {
    fn of(engine: &mut Engine) -> Self {
        let follower = Self::default();
        let found = follower.0.clone();
        engine.observe_kv(Box::new(move |event| {
            let mut found = found.lock().unwrap();
            match event {
                KvEvent::BlockStored { hashes, parent, ids, block_size, salt } => {
                    assert_eq!(*block_size, ROWS as u64);
                    let mut parent = parent.or(salt.as_deref().map(PageHash::of_salt));
                    for (hash, ids) in hashes.iter().zip(ids.chunks_exact(ROWS)) {
                        assert_eq!(*hash, PageHash::of(parent, ids));
                        assert_eq!(found.insert(hash.0, ids.to_vec()), None, "stored twice");
                        parent = Some(*hash);
                    }
                    assert_eq!(ids.len(), hashes.len() * ROWS);
                }
                KvEvent::BlockRemoved { hashes } => hashes.iter().for_each(|hash| {
                    assert!(found.remove(&hash.0).is_some(), "removed, but never stored");
                }),
                KvEvent::AllBlocksCleared => found.clear(),
            }
        }));
        follower
    }

    fn check(&self, engine: &Engine) {
        let found = self.0.lock().unwrap();
        assert_eq!(found.len(), engine.pool.cached_pages());
        assert!(found.keys().all(|hash| engine.pool.find(&[PageHash(*hash)]).0 == 1));
    }
}

/// Every page is blank, found or used, as often as tables say, and what several use is computed.
fn check_pages(engine: &Engine) {
    let mut uses: BTreeMap<u32, u32> = BTreeMap::new();
    let tables = engine.sequences.values().map(|sequence| (&sequence.table, sequence.computed));
    for (table, computed) in tables {
        for (i, page) in table.pages().iter().enumerate() {
            *uses.entry(page.number()).or_default() += 1;
            let is_full = (i + 1) * ROWS <= computed as usize;
            assert!(is_full || engine.pool.users(page) == 1, "shared while it is written");
        }
    }
    let pages = engine.sequences.values().flat_map(|sequence| sequence.table.pages());
    assert!(pages.into_iter().all(|page| engine.pool.users(page) == uses[&page.number()]));
    let blank: BTreeSet<u32> = engine.pool.blank().map(Page::number).collect();
    assert_eq!(blank.len(), engine.pool.blank().len());
    assert!(blank.iter().all(|page| !uses.contains_key(page)));
    assert_eq!(engine.pool.free_pages() + uses.len(), engine.pool.pages(), "a page has leaked");
}

#[derive(Clone, Debug)]
enum Act {
    Add(Request),
    /// The ones added before, by a number that wraps around.
    Remove(usize),
    Extend(usize, Request),
    Step(usize),
    Lose,
    Suspend,
}

fn request_of_texts() -> impl Strategy<Value = Request> {
    (0u32..3, 1usize..70, prop::collection::vec(0u32..VOCAB as u32, 0..9), request(), -1i32..2)
        .prop_map(|(number, length, more, request, priority)| Request {
            prompt: [text(number, length), more].concat().into(),
            priority,
            ..request
        })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => request_of_texts().prop_map(Act::Add),
        1 => any::<usize>().prop_map(Act::Remove),
        2 => (any::<usize>(), request_of_texts()).prop_map(|(at, request)| Act::Extend(at, request)),
        6 => (1usize..12).prop_map(Act::Step),
        1 => Just(Act::Lose),
        1 => Just(Act::Suspend),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(300)))]
    #[test]
    fn nobody_notices_that_pages_are_shared(
        setup in setup(),
        run_ahead in any::<bool>(),
        acts in prop::collection::vec(act(), 1..30),
    ) {
        let mut engine = engine(&setup, run_ahead);
        let follower = Follower::of(&mut engine);
        let (mut events, mut asked) = (Vec::new(), Vec::new());
        for act in acts {
            let (before, tokens) = (engine.prefix_counts, engine.model().statistics().real_tokens);
            match act {
                Act::Add(request) => {
                    let whole = request.prompt.to_vec();
                    if let Ok(id) = engine.add(request.clone()) {
                        asked.push((id, whole, request, 0));
                    }
                }
                Act::Remove(at) if !asked.is_empty() => {
                    let id = asked[at % asked.len()].0;
                    asked.retain(|turn| turn.0 != id);
                    let _ = engine.remove(id);
                }
                Act::Extend(at, request) if !asked.is_empty() => {
                    let id = asked[at % asked.len()].0;
                    let whole = engine.ids(id).map(|ids| [ids, &request.prompt[..]].concat());
                    if engine.extend(id, request.clone()).is_ok() {
                        asked.push((id, whole.unwrap(), request, events.len()));
                    }
                }
                Act::Step(steps) => for _ in 0..steps {
                    // A third loss in a row is the caller's, whose next step goes on.
                    if let Err(error) = engine.step(&mut events) {
                        prop_assert!(error.is_lost(), "{error}");
                    }
                    check_pages(&engine);
                },
                Act::Lose => setup.faults.losing_wait.store(1, Ordering::Relaxed),
                Act::Suspend => {
                    setup.faults.losing_wait.store(0, Ordering::Relaxed);
                    engine.suspend(SuspendedWeights::Keep, &mut events).unwrap();
                    prop_assert_eq!(engine.pool.cached_pages(), 0);
                    engine.resume(None).unwrap();
                }
                _ => {}
            }
            check_pages(&engine);
            follower.check(&engine);
            prop_assert!(engine.prefix_counts.hits - before.hits <= engine.prefix_counts.queries);
            prop_assert!(engine.model().statistics().real_tokens >= tokens);
        }
        setup.faults.losing_wait.store(0, Ordering::Relaxed);
        engine.run(&mut events).unwrap();
        follower.check(&engine);
        for (at, (id, whole, request, from)) in asked.iter().enumerate() {
            let until = asked[at + 1..].iter().find(|later| later.0 == *id);
            let events = &events[*from..until.map_or(events.len(), |later| later.3)];
            assert_answer(&engine, events, *id, whole, request);
            if until.is_none() && request.keep {
                engine.remove(*id).unwrap();
            }
        }
        check_pages(&engine);
        prop_assert_eq!(engine.pool.free_pages(), engine.pool.pages());
    }
}

#[test]
fn a_prompt_is_computed_from_where_it_parts_from_another() {
    let bounds = Bounds { tokens: 8, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let cached = |engine: &mut _, prompt: &[u32]| run(engine, &Request::new(prompt, 3)).1.cached;
    let whole = text(0, 64);
    assert_eq!(cached(&mut engine, &whole[..50]), 0);
    assert_eq!(cached(&mut engine, &[&whole[..40], &[3; 20][..]].concat()), 32);
    // A token is always left to compute.
    assert_eq!(cached(&mut engine, &whole[..48]), 32);
    assert_eq!(cached(&mut engine, &whole[..49]), 48);
    // The same ids after others are other rows.
    assert_eq!(cached(&mut engine, &[&[9][..], &whole[..40]].concat()), 0);
    assert_eq!(cached(&mut engine, &whole[16..60]), 0);
    let expected = PrefixCounts { queries: 50 + 60 + 48 + 49 + 41 + 44, hits: 32 + 32 + 48 };
    assert_eq!(engine.snapshot().load.prefix, expected);
    let tokens = expected.queries - expected.hits + 6 * 2;
    assert_eq!(engine.model().statistics().real_tokens, tokens, "what was found is not computed");
}

#[test]
fn a_salt_has_pages_of_its_own() {
    let mut engine = engine(&Setup::default(), true);
    let begun: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let told = Arc::clone(&begun);
    engine.observe_kv(Box::new(move |event| {
        let KvEvent::BlockStored { hashes, parent, ids, salt, .. } = event else { return };
        if parent.is_none() {
            let root = salt.as_deref().map(PageHash::of_salt);
            assert_eq!(hashes[0], PageHash::of(root, &ids[..ROWS]));
            told.lock().unwrap().push(salt.clone());
        }
    }));
    let mut cached = |salt: Option<&str>| {
        let cache_salt = salt.map(Arc::from);
        run(&mut engine, &Request { cache_salt, ..Request::new(text(0, 40), 2) }).1.cached
    };
    let salts = [Some("a"), None, Some("b"), Some("a"), None, Some("b"), Some("A")];
    assert_eq!(salts.map(&mut cached), [0, 0, 0, 32, 32, 32, 0]);
    let begun = begun.lock().unwrap();
    let begun = Vec::from_iter(begun.iter().map(Option::as_deref));
    assert_eq!(begun, [Some("a"), None, Some("b"), Some("A")]);
}

/// Of a request that goes on, whatever salt its later turn has.
#[test]
fn a_turn_has_the_salt_of_the_first() {
    let mut engine = engine(&Setup::default(), true);
    let with = |salt: &str, ids: &[u32]| Request {
        cache_salt: Some(salt.into()),
        keep: true,
        ..Request::new(ids, 1)
    };
    let id = engine.add(with("a", &text(0, 20))).unwrap();
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    engine.extend(id, with("b", &text(1, 20))).unwrap();
    engine.run(&mut events).unwrap();
    let whole = engine.ids(id).unwrap().to_vec();
    engine.remove(id).unwrap();
    let cached = ["b", "a"].map(|salt| {
        let request = Request { keep: false, ..with(salt, &whole) };
        run(&mut engine, &request).1.cached
    });
    assert_eq!(cached, [0, 32]);
}

#[test]
fn a_conversation_is_found_but_for_its_new_turn() {
    let bounds = Bounds { table_pages: 64, kv_rows: 1024, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let (mut ids, mut cached, mut known, mut prompts) = (text(0, 20), 0, 0, 0);
    for turn in 0..10u32 {
        let (reply, usage) = run(&mut engine, &Request::new(ids.clone(), 90));
        assert_eq!(usage.prompt, ids.len() as u64);
        (cached, prompts) = (cached + usage.cached, prompts + usage.prompt);
        known += if turn == 0 { 0 } else { usage.prompt - 4 };
        ids.extend(reply);
        ids.extend([turn + 1, 2, 3, 4]);
    }
    assert!(cached * 100 >= known * 95, "{cached} of {known}");
    assert!(cached * 100 >= prompts * 95, "{cached} of {prompts}, new turns among them");
    assert_eq!(engine.pool.free_pages(), engine.pool.pages());
}

/// One of them is computed, and the others begin with its pages, in the next step.
#[test]
fn equal_prompts_are_computed_once() {
    let bounds = Bounds { tokens: 128, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let request = Request::new(text(0, 40), 12);
    let ids = [0; 3].map(|_| engine.add(request.clone()).unwrap());
    let other = Request::new(text(1, 40), 12);
    let other_id = engine.add(other.clone()).unwrap();
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    check_pages(&engine);
    assert_eq!((engine.running.len(), engine.waiting.len()), (2, 2), "others do not wait");
    assert_eq!((engine.prefix_counts.hits, engine.pool.cached_pages()), (0, 4));
    engine.run(&mut events).unwrap();
    for (id, request) in ids.iter().map(|id| (*id, &request)).chain([(other_id, &other)]) {
        assert_answer(&engine, &events, id, &request.prompt, request);
    }
    assert_eq!(engine.prefix_counts.hits, 2 * 32);
    assert_eq!(engine.model().statistics().real_tokens, 4 * (40 + 11) - 2 * 32);
    assert_eq!(engine.pool.free_pages(), engine.pool.pages());
    // Nobody waits for who matters less.
    let late = Request { priority: -1, ..Request::new(text(2, 40), 1) };
    engine.add(Request::new(text(2, 40), 1)).unwrap();
    let bounds = engine.options.max_num_tokens;
    engine.options.max_num_tokens = 8;
    engine.step(&mut events).unwrap();
    engine.options.max_num_tokens = bounds;
    engine.add(late).unwrap();
    engine.step(&mut events).unwrap();
    assert!(engine.waiting.is_empty());
    engine.run(&mut events).unwrap();
}

#[test]
fn what_is_unused_for_longest_makes_room() {
    let bounds = Bounds { kv_rows: 96, table_pages: 6, tokens: 64, ..Bounds::default() };
    let mut engine = engine(&Setup { bounds, ..Setup::default() }, true);
    let mut cached =
        |number, length| run(&mut engine, &Request::new(text(number, length), 1)).1.cached;
    assert_eq!([cached(0, 33), cached(1, 33), cached(0, 33)], [0, 0, 32]);
    // Two pages hold nothing; one more comes from the end of what is unused for longest.
    assert_eq!([cached(2, 40), cached(0, 33), cached(1, 33)], [0, 32, 16]);
}

#[test]
fn a_preempted_sequence_finds_its_own_pages() {
    let bounds = Bounds { kv_rows: 96, table_pages: 6, tokens: 64, ..Bounds::default() };
    let setup = Setup { bounds, ..Setup::default() };
    let computed = [true, false].map(|prefix_cache| {
        let mut engine = engine(&setup, true);
        engine.options.prefix_cache = prefix_cache;
        let requests = [0, 1].map(|i| Request::new(text(i, 20), 45));
        let ids = requests.each_ref().map(|request| engine.add(request.clone()).unwrap());
        let mut events = Vec::new();
        engine.run(&mut events).unwrap();
        assert!(engine.preemptions > 0);
        for (id, request) in ids.iter().zip(&requests) {
            assert_answer(&engine, &events, *id, &request.prompt, request);
        }
        engine.model().statistics().real_tokens
    });
    assert!(computed[0] < computed[1], "{computed:?}");
}

#[test]
fn only_pages_that_ids_tell_of_are_shared() {
    let mut with_cache = engine(&Setup::default(), true);
    let (name, values) = ("of.mine".into(), vec![5; 40]);
    let brought = Request {
        values: vec![TokenValues { name, width: 1, values, rest: 0 }],
        ..Request::new(text(0, 40), 2)
    };
    let plain = Request::new(text(0, 40), 2);
    let cached = [&brought, &plain, &brought, &plain].map(|r| run(&mut with_cache, r).1.cached);
    assert_eq!(cached, [0, 0, 0, 32]);
    // And none where nobody wants it.
    let model = Setup::default().build().unwrap();
    let roles = Setup::roles_of(&model);
    let options = EngineOptions { prefix_cache: false, ..EngineOptions::of(&model, &roles) };
    let mut without = Engine::new(model, roles, options).unwrap();
    assert_eq!([&plain; 2].map(|request| run(&mut without, request).1.cached), [0, 0]);
    assert_eq!((without.pool.cached_pages(), without.prefix_counts), (0, PrefixCounts::default()));
}

#[test]
fn a_lost_device_and_a_suspension_empty_it() {
    let setup = Setup::default();
    let mut engine = engine(&setup, true);
    let follower = Follower::of(&mut engine);
    let request = Request::new(text(0, 40), 2);
    assert_eq!([(); 2].map(|()| run(&mut engine, &request).1.cached), [0, 32]);
    setup.faults.losing_wait.store(1, Ordering::Relaxed);
    run(&mut engine, &Request::new([1], 2));
    follower.check(&engine);
    assert_eq!(engine.model().statistics().recoveries, 1);
    assert_eq!([(); 2].map(|()| run(&mut engine, &request).1.cached), [0, 32]);
    engine.suspend(SuspendedWeights::Keep, &mut Vec::new()).unwrap();
    follower.check(&engine);
    engine.resume(None).unwrap();
    assert_eq!([(); 2].map(|()| run(&mut engine, &request).1.cached), [0, 32]);
}

/// A step that could not be submitted leaves rows that nobody may find.
#[test]
fn a_failed_step_publishes_nothing() {
    let setup = Setup { mode: GraphMode::None, ..Setup::default() };
    let mut engine = engine(&setup, true);
    setup.faults.failing_launch.store(1, Ordering::Relaxed);
    let id = engine.add(Request::new(text(0, 33), 2)).unwrap();
    let bounds = engine.options().max_num_tokens;
    assert!(bounds >= 16);
    engine.step(&mut Vec::new()).unwrap();
    assert_eq!((engine.retried_steps(), engine.pool.cached_pages()), (1, 0));
    engine.step(&mut Vec::new()).unwrap();
    assert_eq!(engine.pool.cached_pages(), 1);
    engine.remove(id).unwrap();
    assert_eq!(run(&mut engine, &Request::new(text(0, 33), 2)).1.cached, 16);
}
