//! Every rule has a planted fault: the rules' own lists, the page of faults and the tests agree.

use std::collections::BTreeSet;
use std::path::Path;

/// Where rules are listed.
const RULES: [&str; 2] = ["ir/src/verify/mod.rs", "passes/src/check/mod.rs"];
/// Where faults are planted, by the first letter of the code.
const TESTS: [(char, &str); 3] = [
    ('V', "ir/src/verify/graph_tests.rs"),
    ('P', "ir/src/verify/module_tests.rs"),
    ('B', "passes/tests/check.rs"),
];

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The code at the start of a list item or table row, in backticks.
fn code(line: &str) -> Option<&str> {
    let line = line.strip_prefix("//! ").unwrap_or(line);
    let item = line.strip_prefix("- `").or_else(|| line.strip_prefix("| `"))?;
    let (code, _) = item.split_once('`')?;
    let digits = code.get(1..).is_some_and(|d| d.len() == 4 && d.parse::<u32>().is_ok());
    digits.then_some(code)
}

fn rules() -> BTreeSet<String> {
    let text = RULES.map(read).concat();
    text.lines().filter(|l| l.starts_with("//!")).filter_map(code).map(str::to_owned).collect()
}

/// The text of a test function of a file.
fn function<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = text.find(&format!("\nfn {name}("))?;
    let length = text[start..].find("\n}\n")?;
    Some(&text[start..start + length])
}

#[test]
fn every_rule_is_on_the_page_with_a_test_that_names_its_code() {
    let rules = rules();
    assert!(rules.len() > 70, "only {} rules were found", rules.len());
    let page = read("docs/faults.md");
    let mut found = BTreeSet::new();
    for line in page.lines() {
        let Some(code) = code(line) else { continue };
        assert!(found.insert(code.to_owned()), "{code} is on the page twice");
        let letter = code.chars().next().unwrap();
        let (_, file) = TESTS.iter().find(|(of, _)| *of == letter).unwrap();
        let text = read(file);
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let [_, planted, tests] = cells[..] else { panic!("three cells in {line}") };
        assert!(!planted.trim().is_empty(), "{code} says nothing of its fault");
        for test in tests.split(',').map(str::trim) {
            let (test, elsewhere) = test.split_once(" in ").unwrap_or((test, ""));
            let (test, elsewhere) = (test.trim_matches('`'), elsewhere.trim_matches('`'));
            let (file, text) = match elsewhere {
                "" => (*file, &text),
                file => (file, &read(file)),
            };
            let body = function(text, test);
            let body = body.unwrap_or_else(|| panic!("{code}: {file} has no test `{test}`"));
            assert!(body.contains(&format!("\"{code}\"")), "`{test}` does not name {code}");
        }
    }
    assert_eq!(found, rules);
}

#[test]
fn tests_that_the_page_names_by_file_are_there() {
    for line in read("docs/faults.md").lines() {
        let Some((before, after)) = line.split_once("` in `") else { continue };
        let test = before.rsplit_once('`').unwrap().1;
        let file = after.split_once('`').unwrap().0;
        assert!(read(file).contains(&format!("fn {test}")), "{file} has no `{test}`");
    }
}
