use super::super::testing;
use super::*;

#[test]
fn the_table_reads_well() {
    insta::assert_snapshot!(report(&testing::report()));
}

#[test]
fn json_has_the_same_figures() {
    let report = testing::report();
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    assert!(report.has_failed());
}
