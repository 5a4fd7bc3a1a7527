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

/// The messages of a refused graph, each of which names a line of this file.
fn messages(finished: Result<Graph, BuildErrors>) -> Vec<(u32, String)> {
    let of_line = |error: BuildError| {
        let (file, line) = error.loc.source.rsplit_once(':').unwrap();
        assert!(file.ends_with("builder/tests.rs"), "{file}");
        (line.parse().unwrap(), error.message)
    };
    finished.unwrap_err().0.into_iter().map(of_line).collect()
}

#[test]
fn what_is_used_after_finish_is_named_once() {
    type Use = for<'b> fn(&'b Builder, Tensor<'b>) -> Tensor<'b>;
    let uses: [(u32, Use); 14] = [
        (line!(), |_, x| x + 1),
        (line!(), |_, x| x.broadcast_to(x.shape())),
        (line!(), |_, x| x.cast(DType::BF16)),
        (line!(), |_, x| x.softmax(0)),
        (line!(), |b, x| x.linear(b.weight("w", [4, 4]))),
        (line!(), |_, x| x.role("rows")),
        (line!(), |b, x| b.concat(&[x, x], 0)),
        (line!(), |b, _| b.weight("w", [4, 4])),
        (line!(), |b, _| b.input("y", DType::F32, [4])),
        (line!(), |b, _| b.input("y", DType::F32, [b.symbol("N", 1, 2)])),
        (line!(), |b, _| b.state("s", DType::F32, [4])),
        (line!(), |b, _| b.scope("layer").state("s", DType::F32, [4])),
        (line!(), |b, _| b.scalar(DType::F32, 1.0)),
        (line!(), |b, _| b.derived_weight("d", |_| unreachable!())),
    ];
    for (line, use_it) in uses {
        let b = Builder::new("once");
        let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
        let w = b.weight("w", [4, 4]);
        b.finish([x.linear(w)]).unwrap();
        let errors = messages(b.finish([use_it(&b, x) + 1]));
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].0 == line && errors[0].1.contains("after `finish`"),
            "{line}: {errors:?}"
        );
    }
}

#[test]
fn a_builder_finishes_once_even_in_vain() {
    let b = Builder::new("once");
    let x = b.input("x", DType::F32, [4]);
    b.finish([x]).unwrap();
    for _ in 0..2 {
        let line = line!() + 1;
        let errors = messages(b.finish([x]));
        assert!(errors.len() == 1 && errors[0].0 == line, "{errors:?}");
    }
    let b = Builder::new("vain");
    let sum = b.input("x", DType::F32, [4]) + b.input("y", DType::F32, [3]);
    assert!(messages(b.finish([sum]))[0].1.contains("don't broadcast"));
    assert!(messages(b.finish([sum]))[0].1.contains("after `finish`"));
}

#[test]
fn tensors_of_two_builders_do_not_mix() {
    type Mix = for<'b> fn(&'b Builder, Tensor<'b>, Tensor<'b>) -> Tensor<'b>;
    let mixes: [(u32, Mix); 7] = [
        (line!(), |_, x, y| x + y),
        (line!(), |_, x, y| x.greater(0).select(x, y)),
        (line!(), |_, x, y| x.linear(y)),
        (line!(), |_, x, y| x.gather(y)),
        (line!(), |b, x, y| b.concat(&[x, y], 0)),
        (line!(), |b, _, y| b.concat(&[y], 0)),
        (line!(), |b, _, y| b.concat(&[b.scalar(DType::F32, 1.0), y + y], 0)),
    ];
    let other = Builder::new("other");
    // As many values and symbols as the first lacks: an index of one is none of the other's.
    let y = (0..9).map(|i| other.symbol(&format!("S{i}"), 1, 8)).last().unwrap();
    let y = other.input("y", DType::F32, (y, 8)).cast(DType::BF16).exp().exp();
    for (line, mix) in mixes {
        let b = Builder::new("one");
        let x = b.input("x", DType::F32, (b.symbol("T", 1, 8), 4));
        let errors = messages(b.finish([mix(&b, x, y)]));
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (at, message) = &errors[0];
        assert!(
            *at == line && message.contains("\"other\" is used in \"one\""),
            "{line}: {errors:?}"
        );
    }
    let b = Builder::new("one");
    let line = line!() + 1;
    let errors = messages(b.finish([y]));
    assert!(errors.len() == 1 && errors[0].0 == line, "{errors:?}");
}

#[test]
fn a_scope_that_ends_before_one_inside_it_renames_nothing_in_silence() {
    let b = Builder::new("crossed");
    let line = line!() + 1;
    let outer = b.scope("outer");
    let inner = b.scope("inner");
    let mut x = b.weight("a", [4]);
    drop(outer);
    x = x + b.weight("b", [4]) + b.weight("c", [4]);
    drop(inner);
    x = x + b.weight("d", [4]);
    let errors = messages(b.finish([x]));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].0, line);
    assert!(errors[0].1.contains("`outer` ended before `inner`"), "{errors:?}");
}

/// As fields of a struct do, and the elements of a list.
#[test]
fn scopes_that_end_together_end_in_any_order() {
    let b = Builder::new("together");
    let scopes = vec![b.scope("a"), b.scope("b"), b.scope("c")];
    let mut x = b.weight("w", [4]);
    drop(scopes);
    {
        let _scope = b.scope("d");
        x = x + b.weight("w", [4]);
    }
    let text = print_graph(&b.finish([x + b.weight("w", [4])]).unwrap());
    for path in ["\"a.b.c.w\"", "\"d.w\"", "\"w\""] {
        assert!(text.contains(path), "{path} in {text}");
    }
}

#[test]
fn files_of_the_library_are_told_from_its_crates_on() {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/src/builder/composites.rs");
    let told = told_file(own);
    assert!(told.ends_with("/src/builder/composites.rs") && !told.starts_with('/'), "{told}");
    for other in ["src/model.rs", "/elsewhere/src/model.rs"] {
        assert_eq!(told_file(other), other);
    }
}
