//! Random bytes from the other side of a socket, and messages that are damaged in some places.

use crate::fuzzing::fuzz;
use crate::kv_events::Wishes;
use crate::requests::Asked;
use crate::wire::{Added, Call, Init, call_id, read, request_id};
use crate::zmtp::{Decoder, Item, command, encode};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

/// What happens to bytes on their way.
#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    // Beginnings of values that are longer than all that is there, among them.
    let head = select(vec![
        vec![0xdd, 0xff, 0xff, 0xff, 0xff],
        vec![0xdf, 0x7f, 0xff, 0xff, 0xff],
        vec![0xdb, 0xff, 0xff, 0xff, 0xff],
        vec![0xc6, 0x40, 0, 0, 0],
        vec![0x91; 300],
        vec![0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
        vec![0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        vec![2, 0, 0, 0, 0, 3, 0xff, 0xff, 0xff],
        vec![0xc0],
    ]);
    let damage = prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), head).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), prop::collection::vec(any::<u8>(), 1..5))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), 1..6_usize).prop_map(|(at, count)| Damage::Remove(at, count)),
        (any::<Index>(), 1..30_usize).prop_map(|(at, count)| Damage::Repeat(at, count)),
        any::<Index>().prop_map(Damage::Cut),
    ];
    prop::collection::vec(damage, 0..4)
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let place = |at: &Index| at.index(bytes.len() + 1);
        match damage {
            Damage::Set(at, byte) => {
                let at = place(at);
                bytes.iter_mut().skip(at).take(1).for_each(|there| *there = *byte);
            }
            Damage::Insert(at, more) => {
                let at = place(at);
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = place(at);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Damage::Repeat(at, count) => {
                let at = place(at);
                let again = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, again);
            }
            Damage::Cut(at) => bytes.truncate(place(at)),
        }
    }
    bytes
}

#[test]
fn all_bytes_are_frames_or_refused_and_alike_however_they_are_cut() {
    let frame = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 250..300),
    ];
    let messages = prop::collection::vec(prop::collection::vec(frame, 1..4), 0..4);
    let strategy = (messages, damages(), 1..400_usize);
    fuzz("frames", &strategy, |(messages, damages, cut)| {
        let mut wire = Vec::new();
        for message in &messages {
            encode(&Vec::from_iter(message.iter().map(Vec::as_slice)), &mut wire);
            command("PING", b"\0\0x", &mut wire);
        }
        let wire = damaged(wire, &damages);
        let read = |cut: usize| {
            let (mut decoder, mut items) = (Decoder::default(), Vec::<Item>::new());
            for bytes in wire.chunks(cut) {
                decoder.push(bytes);
                loop {
                    match decoder.next() {
                        Ok(Some(item)) => items.push(item),
                        Ok(None) => break,
                        Err(error) => return (items, Some(error.to_string())),
                    }
                }
            }
            (items, None)
        };
        assert_eq!(read(cut), read(wire.len().max(1)));
    });
}

#[test]
fn all_that_subscribers_say_is_a_wish_or_nothing() {
    let topic = b"kv@tiny";
    let wish = (0..4_u8, 0..=topic.len(), prop::collection::vec(any::<u8>(), 0..3));
    let said =
        wish.prop_map(|(kind, length, more)| [&[kind][..], &topic[..length], &more].concat());
    let said = prop_oneof![said, prop::collection::vec(any::<u8>(), 0..30)];
    let messages = prop::collection::vec(prop::collection::vec(said, 0..3), 0..20);
    fuzz("wishes", &messages, |messages| {
        let (mut wishes, mut wanted) = (Wishes::default(), Vec::<Vec<u8>>::new());
        for message in &messages {
            wishes.hear(message, topic);
            // As a publisher of every topic keeps them.
            if let Some((kind, wish)) = message.first().and_then(|frame| frame.split_first()) {
                wanted.retain(|other| *kind > 1 || other != wish);
                wanted.extend((*kind == 1).then(|| wish.to_vec()));
            }
            let is_wanted = wanted.iter().any(|wish| topic.starts_with(wish));
            assert_eq!(wishes.is_some(), is_wanted, "{message:?}");
        }
    });
}

/// What front ends send, as they do.
fn messages() -> Vec<Value> {
    let request = |sampling: Value| json!(["r-1", [1, 2, 3], null, sampling, null, 1.5, null, null, null, null, null, 0, 0, 1, {"traceparent": "x"}]);
    vec![
        request(
            json!({"max_tokens": 5, "temperature": 0.5, "top_k": -1, "seed": 7, "stop_token_ids": [7], "logprobs": 3}),
        ),
        request(
            json!({"_eos_token_id": 2, "_all_stop_token_ids": [2, 7], "logit_bias": {"5": 1.5}, "allowed_token_ids": [1, 2]}),
        ),
        request(
            json!({"_bad_words_token_ids": [[1, 2], [3]], "min_tokens": 2, "prompt_logprobs": 1, "min_p": 0.1}),
        ),
        request(
            json!({"structured_outputs": {"json": {"type": "integer"}}, "repetition_penalty": 1.1}),
        ),
        request(json!({"structured_outputs": {"regex": "a+"}})),
        json!([0, 17, "get_supported_tasks", [1, "x", {"a": null}]]),
        json!(["r-1", "r-2"]),
        json!({"addresses": {"inputs": ["tcp://127.0.0.1:1"], "outputs": ["tcp://127.0.0.1:2"], "coordinator_input": null, "coordinator_output": null, "frontend_stats_publish_address": null}, "parallel_config": {}}),
    ]
}

#[test]
fn all_messages_are_read_or_refused() {
    let strategy = (select(messages()), damages());
    fuzz("messages", &strategy, |(message, damages)| {
        let Ok(packed) = rmp_serde::to_vec_named(&message) else { return };
        let bytes = damaged(packed, &damages);
        // What is not as it should be is refused with a reason; nothing more is said of it.
        match Added::read(&bytes).and_then(Asked::of) {
            Ok(asked) => assert!(asked.request.prompt.len() <= bytes.len()),
            Err(why) => assert!(!why.is_empty()),
        }
        if let Ok(call) = read::<Call>(&bytes) {
            assert_eq!(call_id(&bytes), Some(call.id));
        }
        let _ = request_id(&bytes);
        let _ = read::<Vec<String>>(&bytes);
        if let Ok(init) = Init::read(&bytes) {
            assert!(init.addresses.inputs.len() <= bytes.len());
        }
    });
}
