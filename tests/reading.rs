//! What a newcomer reads stays readable: short sentences, words that the glossary has and pages link, walks
//! whose files are there, and figures apart from how they came about.

use crate::support::tree::root;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// What is read first.
const FIRST: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/from-pytorch.md"];

/// The paragraphs and points of a page, each on one line: no code, tables, headings or comments.
fn paragraphs(page: &str) -> Vec<String> {
    let (mut found, mut is_code) = (vec![String::new()], false);
    for line in page.lines().map(str::trim) {
        is_code ^= line.starts_with("```");
        let is_of_prose = !is_code && !line.starts_with(['#', '|', '<', '`', '!']);
        let is_code_word = !is_code && line.starts_with('`') && !line.starts_with("```");
        let is_point = line.starts_with("- ")
            || line.split_once(". ").is_some_and(|(number, _)| {
                !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
            });
        if line.is_empty() || is_point || !(is_of_prose || is_code_word) {
            found.push(String::new());
        }
        if is_of_prose || is_code_word {
            let last = found.last_mut().unwrap();
            last.push_str(line);
            last.push(' ');
        }
    }
    found.retain(|paragraph| !paragraph.trim().is_empty());
    found
}

/// A paragraph with a word for each piece of code, and the text of each link.
fn plain(paragraph: &str) -> String {
    let code =
        |(i, part): (usize, &str)| if i % 2 == 1 { "code".to_owned() } else { part.to_owned() };
    let text: String = paragraph.split('`').enumerate().map(code).collect();
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The sentences of a page that have more words than `most`.
fn long_sentences(page: &str, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    for paragraph in paragraphs(page) {
        let text = plain(&paragraph);
        let mut sentence = Vec::new();
        for word in text.split_whitespace() {
            if word.chars().any(char::is_alphanumeric) {
                sentence.push(word.to_owned());
            }
            if word.trim_end_matches(['*', ')', '"', '_']).ends_with(['.', '!', '?']) {
                found.push(std::mem::take(&mut sentence));
            }
        }
        found.push(sentence);
    }
    found.retain(|sentence| sentence.len() > most);
    found.iter().map(|sentence| sentence.join(" ")).collect()
}

#[test]
fn sentences_of_what_is_read_first_have_at_most_thirty_words() {
    for page in FIRST {
        let found = long_sentences(&read(page), 30);
        assert!(found.is_empty(), "{page}:\n{}", found.join("\n"));
    }
    let page = "A `b c` [d e](f g). H i\nj k.\n\n- L m n.\n- O\n\n| a b c d e |\n```\na b c d e\n```\nP q r s";
    assert_eq!(long_sentences(page, 3), ["A code [d e.", "H i j k.", "P q r s"]);
}

/// Words that mean something here which a reader can't guess, and the forms that they are met in.
const WORDS: [(&str, &[&str]); 10] = [
    ("region", &["region", "regions"]),
    ("piece", &["piece", "pieces"]),
    ("split-op", &["split op", "split ops"]),
    ("slot", &["slot", "slots"]),
    ("arena", &["arena", "arenas"]),
    ("absorb", &["absorb", "absorbs", "absorbed"]),
    ("ledger", &["ledger"]),
    ("captured", &["captured"]),
    ("replayed", &["replayed"]),
    ("programmatic-launch", &["programmatic launch", "programmatic edge", "programmatic edges"]),
];

/// Whether prose has one of `forms` as a word.
fn has_word(text: &str, forms: &[&str]) -> bool {
    let text = format!(" {} ", text.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " "));
    forms.iter().any(|form| text.contains(&format!(" {form} ")))
}

#[test]
fn pages_link_the_words_that_the_glossary_has() {
    let glossary = read("docs/glossary.md");
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    // One is made from the settings, one is a register, and one is the glossary.
    let left_out = ["docs/settings.md", "docs/faults.md", "docs/glossary.md"];
    let is_page = |page: &String| page.ends_with(".md") && !left_out.contains(&page.as_str());
    let first = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "BENCHMARKS.md"];
    let mut links = 0;
    for page in docs.filter(is_page).chain(first.map(str::to_owned)) {
        let text = read(&page);
        let prose = paragraphs(&text).iter().map(|paragraph| plain(paragraph)).collect::<String>();
        for (anchor, _) in WORDS.iter().filter(|(_, forms)| has_word(&prose, forms)) {
            let is_linked = text.contains(&format!("glossary.md#{anchor})"));
            assert!(is_linked, "{page} has the word `{anchor}` and does not link the glossary");
            links += 1;
        }
    }
    assert!(links > 40, "{links}");
    for (anchor, _) in WORDS {
        let heading = format!("\n### {}\n", anchor.replace('-', " "));
        assert!(glossary.contains(&heading), "docs/glossary.md lacks {anchor}");
    }
}

#[test]
fn the_glossary_says_each_word_in_one_to_three_sentences() {
    let glossary = read("docs/glossary.md");
    let entries = Vec::from_iter(glossary.split("\n### ").skip(1));
    assert!(entries.len() > 20, "{}", entries.len());
    for entry in entries {
        let (word, text) = entry.split_once('\n').unwrap();
        let text = text.split("\n## ").next().unwrap();
        let ends = plain(&text.replace('\n', " "))
            .split_whitespace()
            .filter(|word| word.ends_with('.'))
            .count();
        assert!((1..=3).contains(&ends), "{word}: {ends} sentences");
    }
}

/// The port from PyTorch says what the two programs say.
#[test]
fn what_is_ported_stands_in_both_programs() {
    let page = read("docs/from-pytorch.md");
    let programs = ["examples/from_pytorch.py", "examples/from_pytorch.rs"].map(read);
    let blocks = Vec::from_iter(page.split("```python\n# examples/from_pytorch.py\n").skip(1));
    assert!(blocks.len() >= 2);
    for block in blocks {
        let code = block.split("```").next().unwrap();
        assert!(programs[0].contains(code), "examples/from_pytorch.py does not hold\n{code}");
    }
    let table = page.split("| `examples/from_pytorch.py` |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut found = 0;
    for row in rows {
        let cells = row.split('|').skip(1).zip(&programs);
        for (quoted, program) in cells.flat_map(|(cell, program)| {
            cell.split('`').skip(1).step_by(2).map(move |quoted| (quoted, program))
        }) {
            assert!(program.contains(quoted), "the programs lack `{quoted}`");
            found += 1;
        }
    }
    assert!(found > 25, "{found}");
}

/// The pages of experiments.
fn lab() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("docs/lab")).unwrap();
    let mut pages = Vec::from_iter(entries.map(|entry| entry.unwrap().path()));
    pages
        .retain(|path| path.extension().is_some_and(|e| e == "md") && !path.ends_with("README.md"));
    pages
}

#[test]
fn how_figures_came_about_is_in_the_lab() {
    assert!(read("BENCHMARKS.md").lines().count() <= 200);
    let (index, pages) = (read("docs/lab/README.md"), lab());
    assert!(pages.len() > 30, "{}", pages.len());
    for path in pages {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        let lines = Vec::from_iter(page.lines().take(12));
        assert!(lines[0].starts_with("# "), "{name} has no title");
        assert!(lines[2].contains(" 20"), "{name} says no year");
        assert!(lines.iter().any(|line| line.starts_with("**Answer.** ")), "{name} has no answer");
        assert!(index.contains(&format!("]({name})")), "docs/lab/README.md lacks {name}");
    }
}

/// An entry is a line, so that two changes never meet in one.
#[test]
fn an_entry_of_the_changelog_is_a_line() {
    let page = read("CHANGELOG.md");
    let lines = page.split("### On the way to it\n").nth(1).unwrap().lines().skip(3);
    let entries = Vec::from_iter(lines.filter(|line| !line.is_empty()));
    assert!(entries.len() > 100, "{}", entries.len());
    let other = entries.iter().find(|line| !line.starts_with("- "));
    assert!(other.is_none(), "{other:?}");
    // Merges keep the lines of both sides: what one side has shortened would stand there twice.
    let mut begun = BTreeSet::new();
    let begins = |line: &str| line.chars().take(45).collect::<String>();
    let twice = entries.iter().find(|line| !begun.insert(begins(line)));
    assert!(twice.is_none(), "{twice:?}");
}

/// What the README says of speed is what was measured.
#[test]
fn figures_of_the_readme_are_those_of_the_benchmarks() {
    let (readme, benchmarks) = (read("README.md"), read("BENCHMARKS.md"));
    let section = readme.split("## How fast\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split(|c: char| c.is_whitespace() || c == '|'));
    let is_figure = |word: &&str| word.contains('.') && word.parse::<f64>().is_ok();
    let figures = Vec::from_iter(words.filter(is_figure));
    assert!(figures.len() > 15, "{figures:?}");
    let known = |figure: &&&str| {
        let parts = benchmarks.split(|c: char| !(c.is_ascii_digit() || c == '.'));
        parts.into_iter().any(|part| part == **figure)
    };
    let unknown = Vec::from_iter(figures.iter().filter(|figure| !known(figure)));
    assert!(unknown.is_empty(), "BENCHMARKS.md lacks {unknown:?}");
}

/// What the map points at is there.
#[test]
fn files_that_the_map_names_are_there() {
    let page = read("ARCHITECTURE.md");
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |quoted: &&str| {
        let is_plain = quoted.chars().all(|c| c.is_alphanumeric() || "_./".contains(c));
        is_plain && (quoted.contains('/') || quoted.ends_with(".rs"))
    };
    let sources = crate::support::tree::files(root(), &["rs"]);
    let mut found = 0;
    for path in quoted.filter(is_path) {
        let is_there = match path.contains('/') {
            true => root().join(path).exists(),
            false => sources.iter().any(|source| source.ends_with(path)),
        };
        assert!(is_there, "ARCHITECTURE.md names {path}, which is not there");
        found += 1;
    }
    assert!(found > 30, "{found}");
}

/// The rows of a walk in the map: a file, and what in it does the work.
fn walk(page: &str, heading: &str) -> Vec<(String, Vec<String>)> {
    let section = page.split(&format!("## {heading}\n")).nth(1);
    let section = section.unwrap_or_else(|| panic!("no walk {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let quoted = |cell: &str| Vec::from_iter(cell.split('`').skip(1).step_by(2).map(str::to_owned));
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells = Vec::from_iter(line.split('|'));
        (quoted(cells[1]).concat(), quoted(cells[2]))
    };
    rows.map(row).collect()
}

/// Whether a source defines a type or a function of this name.
fn defines(source: &str, name: &str) -> bool {
    let words = ["struct ", "enum ", "trait ", "type ", "fn "];
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let of = |word: &&str| source.split(&format!("{word}{name}")).skip(1).any(is_end);
    words.iter().any(of)
}

#[test]
fn the_walks_name_files_and_types_that_are_there() {
    let page = read("ARCHITECTURE.md");
    let sources = crate::support::tree::files(root(), &["rs"]);
    for (heading, least) in [("A token step, file by file", 15), ("A compile, file by file", 25)] {
        let rows = walk(&page, heading);
        assert!(rows.len() >= least, "{heading}: {}", rows.len());
        for (file, names) in rows {
            assert!(!names.is_empty(), "{heading}: {file} has no type");
            let path = root().join(&file);
            let source = std::fs::read_to_string(path).unwrap_or_default();
            for name in names.iter().map(|name| name.rsplit("::").next().unwrap()) {
                let has_it = |path: &&PathBuf| {
                    let text = std::fs::read_to_string(path).unwrap();
                    !path.to_string_lossy().contains("/tests") && defines(&text, name)
                };
                let is_there = defines(&source, name);
                let elsewhere = || Vec::from_iter(sources.iter().filter(has_it));
                assert!(is_there, "{heading}: {file} has no `{name}`; see {:?}", elsewhere());
            }
        }
    }
    assert!(defines("pub fn split(", "split") && !defines("pub fn splits(", "split"));
}
