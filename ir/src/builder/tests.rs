use super::*;
use crate::dim::Dim;
use crate::text::print_graph;

#[test]
fn a_shape_is_an_array_a_tuple_or_a_list() {
    let b = Builder::new("shapes");
    let rows = b.symbol("T", 1, 8);
    let of = |tensor: Tensor<'_>| tensor.shape().into_vec();
    let expected = vec![Dim::from(rows), Dim::constant(4), Dim::constant(2)];
    assert_eq!(of(b.input("tuple", DType::F32, (rows, 4, 2u64))), expected);
    assert_eq!(of(b.input("list", DType::F32, expected.clone())), expected);
    assert_eq!(of(b.input("slice", DType::F32, &expected[..])), expected);
    assert_eq!(of(b.input("row", DType::F32, [rows])), expected[..1]);
    assert_eq!(of(b.weight("w", [4, 2])), expected[1..]);
    let flat = b.input("x", DType::F32, (rows, 8)).reshape((rows, 4, 2));
    assert_eq!(of(flat), expected);
    assert!(of(b.scalar(DType::F32, 1.0)).is_empty());
}

#[test]
fn roles_and_padding_are_part_of_the_declaration() {
    let b = Builder::new("roles");
    let rows = b.symbol_with_role("T", 1, 8, "rows");
    let at = b.input("at", DType::I32, [rows]).padding(-1).role("slots");
    let kept = b.state("kept", DType::F32, (16, 4)).role("memory");
    kept.scatter(at, b.input("x", DType::F32, (rows, 4)));
    let text = print_graph(&b.finish([kept.gather(at)]).unwrap());
    let declared: Vec<_> = text.lines().skip(1).take(4).map(str::trim).collect();
    assert_eq!(
        declared,
        [
            "dim T in [1..8] role \"rows\"",
            "input %at: i32[T] pad -1 role \"slots\"",
            "input %x: f32[T,4]",
            "state s0: f32[16,4] = \"kept\" role \"memory\"",
        ]
    );
}

#[test]
fn what_is_no_input_takes_no_role_and_no_padding() {
    let b = Builder::new("wrong");
    let x = b.input("x", DType::F32, [4]);
    let role = line!() + 1;
    let sum = (x + 1.0).role("rows");
    let padding = line!() + 1;
    let weight = b.weight("w", [4]).padding(0);
    let errors = b.finish([sum, weight]).unwrap_err().to_string();
    for (line, what) in [(role, "role rows"), (padding, "padding")] {
        let place = format!("tests.rs:{line}");
        assert!(errors.lines().any(|e| e.contains(&place) && e.contains(what)), "{errors}");
    }
}

#[test]
fn a_number_takes_the_dtype_of_the_tensor_beside_it() {
    let b = Builder::new("numbers");
    let x = b.input("x", DType::F32, [4]);
    let at = b.input("at", DType::I32, [4]).padding(0);
    let is_less = at.less(0);
    let outputs =
        [x * 2, 2 * x, x.maximum(1), is_less.select(0, at), is_less.select(x, 0.5), 7 - at];
    let text = print_graph(&b.finish(outputs).unwrap());
    for constant in ["f32 2", "f32 1", "i32 0", "f32 0.5", "i32 7"] {
        let (dtype, value) = constant.split_once(' ').unwrap();
        let is_there =
            |line: &str| line.contains(dtype) && line.contains(&format!("literal [{value}"));
        assert!(text.lines().any(is_there), "{constant} in {text}");
    }
}

#[test]
fn a_scope_that_is_dropped_at_once_is_named() {
    let b = Builder::new("wrong");
    let x = b.input("x", DType::F32, [4]);
    let line = line!() + 1;
    let _ = b.scope("mlp");
    let errors = b.finish([x + 1]).unwrap_err().to_string();
    assert!(errors.contains(&format!("tests.rs:{line}")), "{errors}");
    assert!(errors.contains("scope `mlp`") && errors.contains("`_scope`"), "{errors}");
}

/// A mistake is told once: neither the ops that swallow its tensor nor the scopes around them are
/// further ones.
#[test]
fn a_mistake_before_a_scope_is_the_only_error() {
    type Layer = for<'b> fn(Tensor<'b>) -> Tensor<'b>;
    let layers: [(&str, Layer); 9] = [
        ("sum", |x| x + x),
        ("number", |x| 1.0 - x * 2),
        ("cast", |x| x.cast(DType::BF16)),
        ("slice", |x| x.slice(1, 0..2)),
        ("norm", |x| x.layer_norm(x, x, 1e-5)),
        ("heads", |x| x.heads(2).merge_heads()),
        ("rope", |x| x.rope(x, x).rotate(x, x)),
        ("largest", |x| x.top_k(1, 2).0),
        ("role", |x| x.padding(0).role("rows")),
    ];
    for (name, layer) in layers {
        let b = Builder::new("wrong");
        let mistake = b.input("x", DType::F32, [4]) + b.input("y", DType::F32, [3]);
        let x = {
            let _scope = b.scope(name);
            layer(mistake)
        };
        let BuildErrors(errors) = b.finish([x]).unwrap_err();
        assert_eq!(errors.len(), 1, "{name}: {errors:?}");
        assert!(errors[0].message.contains("don't broadcast"), "{name}: {errors:?}");
    }
}

#[test]
fn a_scope_may_declare_alone_or_leave_a_tensor_as_it_is() {
    let b = Builder::new("declared");
    let rows = {
        let _scope = b.scope("symbols");
        b.symbol("T", 1, 8)
    };
    let x = {
        let _scope = b.scope("inputs");
        b.input("x", DType::F32, (rows, 4))
    };
    let x = {
        let _scope = b.scope("precision");
        x.cast(DType::F32)
    };
    let table = {
        let _scope = b.scope("table");
        b.rope_table(&[1.0, 0.5], 16)
    };
    let graph = b.finish([x + table.slice(0, 0..1)]).unwrap();
    assert_eq!(graph.inputs().len(), 1);
}

#[test]
fn a_select_between_two_numbers_is_named() {
    let b = Builder::new("wrong");
    let x = b.input("x", DType::F32, [4]);
    let line = line!() + 1;
    let step = x.greater(0).select(1.0, 0);
    let errors = b.finish([step + x]).unwrap_err().to_string();
    assert!(errors.contains(&format!("tests.rs:{line}")), "{errors}");
    assert!(errors.contains("two numbers has no dtype") && errors.contains("scalar"), "{errors}");
}
