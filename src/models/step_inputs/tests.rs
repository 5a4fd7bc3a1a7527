use super::*;

const BOUNDS: StepBounds = StepBounds {
    max_tokens: 8,
    max_rows: 4,
    max_sequences: 4,
    max_length: 32,
    kv_rows: 0,
    state_slots: 2,
};

#[test]
fn an_input_of_ones_own_takes_the_symbol_of_its_role() {
    let b = Builder::new("own");
    let step = StepInputs::declare(&b, &BOUNDS);
    let slots = step.slot_rows.unwrap();
    let windows = b.symbol_with_role("W", 1, 8, "rows.windows");
    let patches = b.symbol_with_role("X", 4, 32, "4*rows.windows");
    for (role, symbol) in [
        ("rows.windows", windows),
        ("4*rows.windows", patches),
        (roles::KV_ROWS, step.kv_rows),
        (roles::SLOT_ROWS, slots),
        (roles::TOKENS, step.tokens),
    ] {
        let ends = Extent::Symbolic { of: role.into(), times: 2, plus: 1 };
        let input = StepInput::new("own.ends", DType::I32, [ends], 0.0);
        let shape = step.input(&b, role, &input).shape();
        assert_eq!(shape.into_vec(), [Dim::affine(1, [(symbol, 2)])], "{role}");
    }
}

#[test]
fn an_input_over_rows_that_no_symbol_counts_yet_is_named() {
    let b = Builder::new("own");
    let step = StepInputs::declare(&b, &BOUNDS);
    let input = StepInput::new("own.taken", DType::I32, [Extent::of("rows.windows")], 0.0);
    let line = line!() + 1;
    let taken = step.input(&b, "taken", &input);
    b.symbol_with_role("W", 1, 8, "rows.windows");
    let error = b.finish([taken]).unwrap_err().to_string();
    assert!(error.starts_with("1 mistake"), "{error}");
    for part in [
        &*format!("tests.rs:{line}"),
        "input \"taken\"",
        "\"own.taken\"",
        "\"rows.windows\"",
        "declare it first",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
}
