//! An encoder on a thread of its own: what becomes of calls that come together, and at its end.

use crate::text_encoders::folder;
use piecewise::encoding::{
    CallOutputs, CallTicket, EncoderHandle, EncoderThread, TextEncoder, TextItem, TextModel,
};
use piecewise::models::encoder::TextOutput;
use piecewise_runtime::config::ConfigLayers;
use piecewise_runtime::engine::Client;
use piecewise_runtime::engine_thread::{Phase, SubmitError};
use piecewise_testing::Rng;
use std::sync::mpsc::{self, Receiver};

fn encoder() -> TextEncoder {
    let layers = ConfigLayers::new()
        .set("dtype", "f32")
        .and_then(|layers| layers.set("max_num_tokens", 128))
        .and_then(|layers| layers.set("cache.enabled", false))
        .unwrap();
    TextEncoder::load(&folder("bert"), layers, &[TextOutput::Embedding], |_| {}).unwrap()
}

fn text(rng: &mut Rng) -> TextItem {
    let ids = (0..1 + rng.below(40)).map(|_| rng.below(300) as u32).collect();
    TextItem { ids, token_types: Vec::new() }
}

/// Hands in a call whose outputs come to a channel.
fn submit(
    handle: &EncoderHandle<TextModel>,
    items: &[TextItem],
) -> Result<(CallTicket, Receiver<CallOutputs>), SubmitError> {
    let (sender, outputs) = mpsc::channel();
    let sink = Box::new(move |outputs| drop(sender.send(outputs)));
    Ok((handle.submit(Client::default(), items.to_vec(), sink)?, outputs))
}

#[test]
fn calls_from_many_threads_have_the_bits_that_they_have_alone() {
    let mut alone = encoder();
    let thread = EncoderThread::start(encoder(), 64, "bert").unwrap();
    let mut rng = Rng::new(21);
    let call = |rng: &mut Rng| Vec::from_iter((0..1 + rng.below(9)).map(|_| text(rng)));
    let mut calls = Vec::from_iter((0..40).map(|_| call(&mut rng)));
    // One that is longer than a round, an empty one, and one with a text that is refused.
    calls.push(Vec::from_iter((0..300).map(|_| text(&mut rng))));
    calls.push(Vec::new());
    calls.push(vec![text(&mut rng), TextItem::default(), text(&mut rng)]);
    let expected = Vec::from_iter(calls.iter().map(|call| alone.encode(call)));
    std::thread::scope(|scope| {
        for (call, expected) in calls.iter().zip(&expected) {
            let handle = thread.handle().clone();
            scope.spawn(move || {
                let (_ticket, outputs) = submit(&handle, call).unwrap();
                let outputs = outputs.recv().unwrap();
                assert_eq!(outputs.len(), expected.len());
                for (found, expected) in outputs.iter().zip(expected) {
                    match (found, expected) {
                        (Ok(found), Ok(expected)) => assert!(found == expected),
                        (Err(found), Err(expected)) => {
                            assert_eq!(found.to_string(), expected.to_string());
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let text = thread.handle().metrics().text().unwrap();
    let items: usize = calls.iter().map(Vec::len).sum();
    let hits =
        format!("piecewise_encoder_items_total{{outcome=\"hit\",path=\"items\"}} {}", items - 1);
    assert!(text.contains(&hits), "{text}");
    let ended = |reason: &str, count: usize| {
        let labels = format!("engine=\"0\",finished_reason=\"{reason}\",model_name=\"bert\"");
        let line = format!("vllm:request_success_total{{{labels}}} {count}");
        assert!(text.contains(&line), "{line}: {text}");
    };
    ended("stop", calls.len() - 1);
    ended("error", 1);
    assert!(text.contains("vllm:num_requests_running{engine=\"0\",model_name=\"bert\"} 0"));
    let steps = thread.finish().unwrap().statistics().steps();
    assert!(steps < items as u64 / 2, "{steps} steps for {items} items");
}

/// However many calls of one client are there, another's one takes part in the next round.
#[test]
fn a_client_with_many_calls_keeps_no_other_waiting() {
    let thread = EncoderThread::start(encoder(), 400, "bert").unwrap();
    let mut rng = Rng::new(24);
    let items = Vec::from_iter((0..20).map(|_| text(&mut rng)));
    let (ended, ends) = mpsc::channel();
    let submit = |id, items: &[TextItem]| {
        let ended = ended.clone();
        // The order in which calls end is that of the encoder's thread.
        let sink = Box::new(move |_| {
            let _ = ended.send(id);
        });
        let client = Client { id, ..Client::default() };
        thread.handle().submit(client, items.to_vec(), sink).unwrap()
    };
    let tickets = Vec::from_iter((0..200).map(|_| submit(1, &items)));
    let other = submit(2, &items[..1]);
    let before = ends.iter().take_while(|id| *id == 1).count();
    assert!(before < 100, "{before} calls ended before another client's one");
    drop((tickets, other));
}

#[test]
fn a_call_that_nobody_waits_for_is_left_out_and_the_bound_holds() {
    let thread = EncoderThread::start(encoder(), 2, "bert").unwrap();
    let handle = thread.handle().clone();
    let mut rng = Rng::new(22);
    let many = Vec::from_iter((0..4000).map(|_| text(&mut rng)));
    let (gone, outputs) = submit(&handle, &many).unwrap();
    let (_waiting, answer) = submit(&handle, &many[..1]).unwrap();
    let full = submit(&handle, &many[..1]).unwrap_err();
    assert!(matches!(full, SubmitError::Full { bound: 2, .. }), "{full}");
    drop(gone);
    assert!(answer.recv().unwrap()[0].is_ok());
    // The sink was dropped without outputs.
    assert!(outputs.recv().is_err());
    assert_eq!(handle.live_calls(), 0);
    let encoder = thread.finish().unwrap();
    assert!(encoder.statistics().paths[0].hits < 4000);
    assert_eq!(handle.phase(), Phase::Stopped);
}

#[test]
fn a_thread_that_drains_answers_who_is_there_and_refuses_others() {
    let thread = EncoderThread::start(encoder(), 8, "bert").unwrap();
    let handle = thread.handle().clone();
    let mut rng = Rng::new(23);
    let many = Vec::from_iter((0..500).map(|_| text(&mut rng)));
    let (_ticket, outputs) = submit(&handle, &many).unwrap();
    assert!(thread.finish().is_some());
    assert!(outputs.recv().unwrap().iter().all(Result::is_ok));
    assert_eq!(submit(&handle, &many).unwrap_err(), SubmitError::ShuttingDown);
    // One that is dropped ends after its round, and who waits is told by the end of the sink.
    let thread = EncoderThread::start(encoder(), 8, "bert").unwrap();
    let (_ticket, outputs) = submit(thread.handle(), &many).unwrap();
    drop(thread);
    assert!(outputs.recv().is_err());
}
