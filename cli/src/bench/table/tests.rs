use super::super::testing;
use super::*;
use piecewise_planner::CostPath;
use piecewise_runtime::words::GraphMode;

#[test]
fn the_table_reads_well() {
    insta::assert_snapshot!(report(&testing::report()));
}

#[test]
fn a_row_that_ran_another_way_by_choice_says_so_in_and_below_the_table() {
    let mut row = testing::row(GraphMode::Piecewise, 1, 1, 8.0);
    let figures = row.figures.as_mut().unwrap();
    (figures.path, figures.chosen) = (CostPath::Launched, Some("launches_faster"));
    let pieces = testing::row(GraphMode::Piecewise, 8, 8, 8.0);
    let mode = ModeReport::new(GraphMode::Piecewise, None, vec![row, pieces]);
    let shown = report(&Report { modes: vec![mode], ..testing::report() });
    let rows = shown.lines().map(str::trim_start).filter(|line| line.starts_with("decode "));
    let rows: Vec<Vec<_>> = rows.map(|row| row.split("  ").map(str::trim).collect()).collect();
    assert_eq!(rows[0][..2], ["decode 1 x 512", "piecewise, launched"], "{shown}");
    assert_eq!(rows[1][..2], ["decode 8 x 512", "piecewise"], "{shown}");
    let said: Vec<_> = shown.lines().filter(|line| line.starts_with("chosen ")).collect();
    assert_eq!(said, ["chosen decode 1 x 512 piecewise, launched: launches_faster"]);
}

#[test]
fn json_has_the_same_figures() {
    let report = testing::report();
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    assert!(report.has_failed());
}
