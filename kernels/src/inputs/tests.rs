use super::*;
use crate::op::OpRegistry;
use crate::roles;

fn counts(n: usize) -> StepInput {
    StepInput::new("my.counts", DType::I32, [Extent::of(roles::SEQUENCES)], 0.0).filled(
        move |batch, out| {
            out.extend(batch.sequences().take(n).map(|sequence| sequence.tokens() as i32));
            if n == 9 {
                out.repeat(7, 9);
            }
            Ok(())
        },
    )
}

fn filled(input: &StepInput) -> Result<Vec<u8>, String> {
    let sequence = |tokens| SequenceInStep { tokens, ..SequenceInStep::default() };
    let sequences = [sequence(3), sequence(1)];
    let mut bytes = vec![1, 2, 3];
    let batch = BatchView::new(&sequences, &[0; 4], &[]);
    let filled = input.fill(&batch, &[2], &mut bytes);
    let mut place = [0xee; 12];
    assert_eq!(input.fill_place(&batch, &[2], &mut place[..8]), filled);
    assert_eq!(place[8..], [0xee; 4]);
    assert!(filled.is_err() || place[..8] == bytes);
    filled.map(|_| bytes)
}

#[test]
fn an_input_takes_exactly_its_elements() {
    assert_eq!(filled(&counts(2)), Ok(vec![3, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(filled(&counts(1)), Err("writes 1 of the 2 elements of its buffer [2]".to_owned()));
    let error = Err("writes 9 elements past the 2 of its buffer [2]".to_owned());
    assert_eq!(filled(&counts(9)), error);
    let floats = StepInput::new("my.counts", DType::I32, [Extent::of("rows")], 0.0);
    assert_eq!(filled(&floats), Err("nothing fills it".to_owned()));
    let floats = floats.filled(|_, out| {
        out.repeat(1.0f32, 2);
        Ok(())
    });
    assert_eq!(filled(&floats), Err("writes f32, but the input holds i32".to_owned()));
}

#[test]
fn an_input_of_more_bytes_than_there_are_is_an_error() {
    let sequences = [SequenceInStep::default()];
    let batch = BatchView::new(&sequences, &[], &[]);
    for dims in [[u64::MAX], [u64::MAX / 8]] {
        let error = counts(1).fill(&batch, &dims, &mut Vec::new()).unwrap_err();
        assert!(error.contains("no memory for its buffer") && error.contains("fewer"), "{error}");
    }
    for bytes in [7, 9] {
        let error = counts(1).fill_place(&batch, &[2], &mut vec![0; bytes]).unwrap_err();
        let expected = format!("a place of {bytes} bytes, and its buffer [2] of i32 takes 8");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn rows_that_are_shortened_behind_what_is_written_are_an_error() {
    let shape = [Extent::of(roles::SEQUENCES), Extent::AnyConstant];
    let table = StepInput::new("my.table", DType::I32, shape, 0.0).filled(|_, out| {
        out.repeat(7, 6);
        out.shorten_rows(2);
        out.repeat(8, 1);
        Ok(())
    });
    let sequences = [SequenceInStep::default(); 2];
    let batch = BatchView::new(&sequences, &[], &[]);
    let filled = table.fill(&batch, &[2, 3], &mut Vec::new());
    assert_eq!(table.fill_place(&batch, &[2, 3], &mut [0; 24]), filled);
    assert_eq!(filled, Err("writes 3 elements past the 4 of its buffer [2, 3]".to_owned()));
}

#[test]
fn a_role_has_one_declaration() {
    let mut registry = OpRegistry::builtin();
    let declared = counts(2);
    registry.declare_inputs("a", [declared.clone()]);
    registry.declare_inputs("b", [declared]);
    let (op, input) = registry.step_input("my.counts").unwrap().unwrap();
    assert_eq!((op, input.to_string().as_str()), ("a", "i32[sequences] padded with 0"));
    registry.declare_inputs("b", [counts(2)]);
    let error = registry.step_input("my.counts").unwrap_err();
    assert_eq!((error.first.as_str(), error.second.as_str()), ("a", "b"));
    registry.declare_inputs("a", [counts(1)]);
    registry.declare_inputs("b", []);
    assert!(registry.step_input("my.counts").is_err());
    assert!(registry.step_input("my.other").unwrap().is_none());
}

#[test]
fn shapes_are_told_by_the_roles_of_symbols() {
    use piecewise_ir::dim::SymbolDecl;
    let mut symbols = Symbols::default();
    let mut symbol = |role: Option<&str>| {
        let (name, role) = ("X".to_owned(), role.map(str::to_owned));
        symbols.push(SymbolDecl { name, min: 0, max: 8, role })
    };
    let (s, t) = (symbol(Some(roles::SEQUENCES)), symbol(None));
    let ends = Extent::Symbolic { of: roles::SEQUENCES.into(), times: 1, plus: 1 };
    let input = StepInput::new("my.ends", DType::I32, [ends, Extent::Constant(2)], 0.0);
    assert_eq!(input.to_string(), "i32[sequences+1,2] padded with 0");
    let ty = |dim: Dim, last: u64| TensorType::new(DType::I32, [dim, last.into()]);
    assert!(input.fits(&ty(Dim::affine(1, [(s, 1)]), 2), &symbols));
    assert!(!input.fits(&ty(s.into(), 2), &symbols));
    assert!(!input.fits(&ty(Dim::affine(1, [(t, 1)]), 2), &symbols));
    assert!(!input.fits(&ty(Dim::affine(1, [(s, 1)]), 3), &symbols));
    let ids = StepInput::new("ids", DType::I32, [Extent::of(roles::TOKENS)], 0.0);
    assert!(ids.fits(&TensorType::new(DType::I32, [t]), &symbols));
}
