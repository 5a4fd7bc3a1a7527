//! The guide to families, the table of the README and the sources say the same of each other.

use crate::support::tree::root;
use piecewise::models::ModelRegistry;
use std::collections::BTreeSet;

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The first cells of the rows of the table under a heading, without their marks of code.
fn first_cells(page: &str, heading: &str) -> Vec<String> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with("|---") && !line.starts_with("| ---"));
    let rows = rows.filter(|line| line.starts_with("| `"));
    rows.map(|row| row.split('|').nth(1).unwrap().trim().to_owned()).collect()
}

#[test]
fn the_readme_has_a_row_for_every_model_type_that_is_read() {
    let cells = first_cells(&read("README.md"), "Models");
    let named = cells.iter().flat_map(|cell| cell.split(", "));
    let named: BTreeSet<String> = named.map(|name| name.trim_matches('`').to_owned()).collect();
    let read: BTreeSet<String> = ModelRegistry::standard().names().map(str::to_owned).collect();
    assert_eq!(named, read);
}

#[test]
fn the_guide_has_every_field_of_a_description() {
    let source = read("src/models/families/description.rs");
    let (_, fields) = source.split_once("struct Description {").unwrap();
    let fields = fields.split("\n}").next().unwrap().lines();
    let fields = fields.filter_map(|line| line.trim().strip_prefix("pub(")?.split_once(") "));
    let fields: Vec<&str> = fields.map(|(_, field)| field.split(':').next().unwrap()).collect();
    let told = first_cells(&read("docs/adding-a-family.md"), "The file");
    let told: Vec<&str> = told.iter().map(|cell| cell.trim_matches('`')).collect();
    assert_eq!(told, fields);
    assert!(fields.len() > 5, "{fields:?}");
}

#[test]
fn a_family_is_described_in_under_200_lines() {
    let folder = root().join("src/models/families");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let shared = ["mod.rs", "description.rs", "reader.rs"];
    let is_family =
        |path: &std::path::PathBuf| !shared.contains(&path.file_name().unwrap().to_str().unwrap());
    let mut count = 0;
    for file in files.filter(is_family) {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines < 200, "{} has {lines} lines", file.display());
        count += 1;
    }
    assert!(count >= 6, "{count}");
}

/// What the guide names is there.
#[test]
fn the_guide_names_parts_that_there_are() {
    let guide = read("docs/adding-a-family.md");
    for (name, file) in [
        ("FAMILIES", "cli/tests/program/model_families.rs"),
        ("TEETH", "tests/fixtures/make_decoder_fixtures.py"),
        ("LayerAttention", "src/models/config/layers.rs"),
        ("LayerRope", "src/models/config/layers.rs"),
        ("linear_rows", "src/models/layers.rs"),
        ("sliding_rope", "src/models/config.rs"),
        ("score_scale", "src/models/config.rs"),
        ("score_softcap", "src/models/config.rs"),
        ("PLAIN", "src/models/families/description.rs"),
    ] {
        assert!(guide.contains(name), "{name}");
        assert!(read(file).contains(name), "{file} has no {name}");
    }
    let paths = guide.split('`').filter(|part| part.ends_with(".rs") && part.contains('/'));
    for path in paths {
        assert!(root().join(path).is_file(), "{path}");
    }
}
