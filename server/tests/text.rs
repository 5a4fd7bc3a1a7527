//! The text of replies: streaming, stop strings, offsets.

use piecewise::models::TextTokenizer;
use piecewise_server::text::{OutputText, StopFilter, StopStrings, TextPiece};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

fn cut(text: &str, stops: &StopStrings, borders: &[usize]) -> (Vec<String>, Option<String>) {
    let mut filter = StopFilter::new(stops.clone());
    let (mut pieces, mut stop) = (Vec::new(), None);
    let mut start = 0;
    for &border in borders.iter().chain([&text.len()]) {
        let (piece, ended) = filter.push(&text[start..border]);
        assert!(stop.is_none() || (piece.is_empty() && ended.is_none()), "text after the end");
        stop = stop.or(ended);
        pieces.push(piece);
        start = border;
    }
    pieces.push(filter.finish());
    (pieces, stop)
}

/// The first end of a stop string in the whole text, and the longest that ends there.
fn oracle<'a>(text: &'a str, strings: &'a [String], keeps: bool) -> (&'a str, Option<&'a str>) {
    for end in 0..=text.len() {
        let ended = strings.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
        if let Some(stop) = ended.max_by_key(|stop| stop.len()) {
            return (&text[..if keeps { end } else { end - stop.len() }], Some(stop));
        }
    }
    (text, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn however_it_comes_a_text_ends_where_its_first_stop_string_begins(
        text in "[abé🦀]{0,24}",
        strings in prop::collection::vec("[abé🦀]{1,5}", 0..4),
        cuts in prop::collection::vec(0..100_usize, 0..12),
        keeps in any::<bool>(),
    ) {
        let mut borders: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        borders.retain(|border| text.is_char_boundary(*border));
        borders.sort_unstable();
        let stops = StopStrings::new(strings.clone(), keeps).unwrap();
        let (pieces, stop) = cut(&text, &stops, &borders);
        let (expected, by) = oracle(&text, &strings, keeps);
        prop_assert_eq!(pieces.concat(), expected);
        prop_assert_eq!(stop.as_deref(), by);
    }

    #[test]
    fn no_more_is_held_back_than_a_stop_string_could_begin_with(
        text in "[ab]{0,24}",
        strings in prop::collection::vec("[ab]{1,5}", 1..4),
    ) {
        let mut filter = StopFilter::new(StopStrings::new(strings.clone(), false).unwrap());
        let mut given = 0;
        for (end, character) in text.char_indices().map(|(i, c)| (i + 1, c)) {
            let (certain, stop) = filter.push(&character.to_string());
            given += certain.len();
            let needed = |n: &usize| strings.iter().any(|s| s.len() > *n && s.starts_with(&text[end - n..end]));
            let needed = (0..=end).rev().find(needed).unwrap_or(0);
            if stop.is_some() {
                break;
            }
            prop_assert_eq!(given, end - needed);
        }
    }
}

#[test]
fn an_empty_stop_string_is_refused_by_its_place() {
    let error = StopStrings::new(vec!["a".to_owned(), String::new()], false).unwrap_err();
    assert_eq!(error.place, 1);
    assert!(error.to_string().contains("stop string 1 is empty"), "{error}");
}

fn tokenizer() -> Arc<TextTokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiny-qwen3");
    Arc::new(TextTokenizer::load(&folder, 2048).unwrap())
}

fn replied(ids: &[u32], stops: &[&str]) -> (Vec<TextPiece>, String) {
    let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
    let stops = StopStrings::new(stops, false).unwrap();
    let mut output = OutputText::new(tokenizer(), &[], stops, false).unwrap();
    let mut pieces: Vec<_> = ids.iter().map(|id| output.push(*id).unwrap()).collect();
    pieces.push(output.finish().unwrap());
    let text = pieces.iter().map(|piece| piece.text.as_str()).collect();
    (pieces, text)
}

#[test]
fn a_stop_string_over_token_borders_is_never_shown() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("return value # 🦀 end").unwrap();
    for stop in ["turn val", " # ", "🦀", "🦀 e", "d", "return value # 🦀 end"] {
        let (pieces, text) = replied(&ids, &[stop]);
        assert_eq!(text, "return value # 🦀 end".split(stop).next().unwrap());
        assert!(pieces.iter().any(|piece| piece.stop.as_deref() == Some(stop)), "{stop}");
    }
    // A beginning that came to nothing is given at the end.
    let (pieces, text) = replied(&ids, &[" end."]);
    assert_eq!(text, "return value # 🦀 end");
    assert_eq!(pieces.last().unwrap().text, " end");
}

#[test]
fn offsets_say_where_the_text_of_an_id_begins() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("aé🦀b c").unwrap();
    let (pieces, text) = replied(&ids, &["zzz"]);
    let offsets: Vec<_> = pieces.iter().map(|piece| piece.offset).collect();
    assert_eq!((offsets[0], *offsets.last().unwrap()), (0, text.chars().count()));
    assert!(offsets.is_sorted());
    let spelled: String = offsets
        .windows(2)
        .map(|range| text.chars().skip(range[0]).take(range[1] - range[0]).collect::<String>())
        .collect();
    assert_eq!(spelled, text);
}

proptest! {
    #[test]
    fn the_text_of_any_ids_ends_at_the_first_stop_string(
        ids in prop::collection::vec(prop_oneof![0_u32..2048, 95_u32..260], 0..40),
        from in 0..40_usize,
        length in 1..6_usize,
    ) {
        let whole = tokenizer().decode(&ids).unwrap();
        let stop: String = whole.chars().skip(from % (ids.len() + 1)).take(length).collect();
        prop_assume!(!stop.is_empty());
        let (pieces, text) = replied(&ids, &[&stop]);
        prop_assert_eq!(text.as_str(), whole.split(&stop).next().unwrap());
        prop_assert_eq!(pieces.iter().filter(|piece| piece.stop.is_some()).count(), 1);
    }
}
