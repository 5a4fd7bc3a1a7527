//! What this program does as a child of one of its tests: it is killed or confined meanwhile.

use crate::{archives, children, fuzz, processes};
use std::path::Path;

/// What a child does; an ordinary run of the tests has no task.
#[test]
fn does_its_task() {
    let Some(words) = children::task() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [task, dir, arguments @ ..] = &words[..] else { panic!("no task {words:?}") };
    let dir = Path::new(dir);
    match (*task, arguments) {
        ("little-memory", []) => archives::read_huge_lengths_in_little_memory(dir),
        ("damaged", []) => fuzz::read_damaged_entries(dir),
        ("forged", []) => fuzz::read_forged_entries(dir),
        ("write", [number]) => processes::write_with_others(dir, number.parse().unwrap()),
        ("die", [point, nth]) => processes::die(dir, point, nth.parse().unwrap()),
        ("claim", []) => processes::hold_claim(dir),
        ("make", []) => processes::make_with_others(dir),
        ("fill", [seed]) => processes::fill_forever(dir, seed.parse().unwrap()),
        ("full-disk", []) => processes::fill_the_disk(dir),
        ("file-limit", []) => processes::write_past_the_limit(dir),
        ("read-only", []) => processes::use_a_read_only_disk(dir),
        _ => panic!("no task {words:?}"),
    }
}
