//! Every recipe, made by the device.

use crate::harness;
use crate::harness::{decode, encode, pattern, registry};
use piecewise_backend::cpu::CpuDevice;
use piecewise_backend::device::{Device, DeviceError};
use piecewise_backend::weights::{
    NormalWeights, TensorSource, TensorSpec, WeightError, WeightLayout, WeightSource,
};
use piecewise_ir::dim::Dim;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::{Graph, Loc};
use piecewise_ir::op::{BinaryOp, Op, UnaryOp};
use piecewise_ir::types::TensorType;
use piecewise_ir::weight::Recipe;
use std::borrow::Cow;

/// Tensors whose elements are the pattern of a seed that their name says.
struct Patterns;

impl WeightSource for Patterns {
    fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
        let TensorSpec { name, dtype, shape } = spec;
        let Ok(seed) = name.parse() else {
            return Err(WeightError::Missing { name: name.to_owned() });
        };
        let bytes = encode(&pattern(dtype, shape, seed));
        Ok(TensorSource::Bytes(Cow::Owned(bytes)))
    }
}

fn stored(name: &str, dtype: DType, shape: &[u64]) -> Recipe {
    Recipe::Checkpoint { name: name.into(), ty: TensorType::new(dtype, shape) }
}

fn made(recipe: &Recipe, source: &dyn WeightSource) -> Result<Vec<f64>, DeviceError> {
    let ty = recipe.ty().unwrap();
    let mut device = CpuDevice::new(registry(), 4).unwrap();
    let region = device.reserve("weight", ty.bytes(&[])).unwrap();
    device.back(region).unwrap();
    device.materialize(recipe, WeightLayout::RowMajor, source, region.base)?;
    let mut bytes = vec![0; ty.bytes(&[]) as usize];
    device.read(region.base, &mut bytes).unwrap();
    Ok(decode(ty.dtype, &bytes))
}

/// The recipe's value, element by element.
fn expected(recipe: &Recipe) -> Array {
    let ty = recipe.ty().unwrap();
    let shape: Vec<usize> = ty.static_shape().unwrap().iter().map(|&d| d as usize).collect();
    let at = |array: &Array, index: &[usize]| {
        let flat = index.iter().zip(&array.shape).fold(0, |n, (i, d)| n * d + i);
        array.data[flat]
    };
    let index = |mut flat: usize| {
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        index
    };
    let parts: Vec<Array> = match recipe {
        Recipe::Concat { parts, .. } => parts.iter().map(expected).collect(),
        Recipe::Slice { of, .. }
        | Recipe::Transpose { of, .. }
        | Recipe::Cast { of, .. }
        | Recipe::Reshape { of, .. } => vec![expected(of)],
        _ => vec![],
    };
    match recipe {
        Recipe::Checkpoint { name, ty } => {
            pattern(ty.dtype, &ty.static_shape().unwrap(), name.parse().unwrap())
        }
        Recipe::Concat { axis, .. } => Array::from_fn(ty.dtype, shape.clone(), |flat| {
            let mut i = index(flat);
            let mut part = 0;
            while i[*axis] >= parts[part].shape[*axis] {
                i[*axis] -= parts[part].shape[*axis];
                part += 1;
            }
            at(&parts[part], &i)
        }),
        Recipe::Slice { axis, start, .. } => Array::from_fn(ty.dtype, shape.clone(), |flat| {
            let mut i = index(flat);
            i[*axis] += *start as usize;
            at(&parts[0], &i)
        }),
        Recipe::Transpose { perm, .. } => Array::from_fn(ty.dtype, shape.clone(), |flat| {
            let i = index(flat);
            let mut from = vec![0; perm.len()];
            perm.iter().zip(&i).for_each(|(&axis, &i)| from[axis] = i);
            at(&parts[0], &from)
        }),
        Recipe::Cast { to, .. } => Array { dtype: *to, ..parts[0].clone() }.rounded(),
        Recipe::Reshape { .. } => Array { shape, ..parts[0].clone() },
        Recipe::Graph(graph) => piecewise_ir::eval::evaluate_constant(graph).unwrap(),
        Recipe::Broadcast { .. } | Recipe::Unpack { .. } => {
            unreachable!("these have tests of their own")
        }
    }
}

#[test]
fn every_recipe_makes_its_elements() {
    let boxed = |recipe: Recipe| Box::new(recipe);
    let a = stored("1", DType::BF16, &[5, 6]);
    let b = stored("2", DType::BF16, &[3, 6]);
    let c = stored("3", DType::BF16, &[5, 2]);
    let deep = stored("4", DType::I64, &[2, 3, 4]);
    let mut table = Graph::new("table");
    let ty = TensorType::new(DType::F32, [4u64, 6]);
    let i = table.push(Op::Iota { axis: 0 }, vec![], ty.clone(), Loc::default());
    let j = table.push(Op::Iota { axis: 1 }, vec![], ty.clone(), Loc::default());
    let s = table.push(Op::Binary(BinaryOp::Mul), vec![i, j], ty.clone(), Loc::default());
    let s = table.push(Op::Unary(UnaryOp::Sin), vec![s], ty.clone(), Loc::default());
    let s = table.push(Op::Cast, vec![s], ty.with_dtype(DType::BF16), Loc::default());
    table.set_outputs(vec![s]);
    let graph = Recipe::Graph(Box::new(table));
    let recipes = [
        a.clone(),
        graph.clone(),
        Recipe::Concat { axis: 0, parts: vec![a.clone(), b.clone(), graph] },
        Recipe::Concat { axis: 1, parts: vec![a.clone(), c] },
        Recipe::Slice { axis: 0, start: 2, len: 3, of: boxed(a.clone()) },
        Recipe::Slice { axis: 1, start: 4, len: 2, of: boxed(a.clone()) },
        Recipe::Slice { axis: 1, start: 1, len: 2, of: boxed(deep.clone()) },
        Recipe::Transpose { perm: vec![1, 0], of: boxed(a.clone()) },
        Recipe::Transpose { perm: vec![2, 0, 1], of: boxed(deep.clone()) },
        Recipe::Cast { to: DType::F32, of: boxed(a.clone()) },
        Recipe::Cast { to: DType::F16, of: boxed(deep.clone()) },
        Recipe::Cast { to: DType::U8, of: boxed(deep.clone()) },
        Recipe::Reshape { shape: vec![6, 4], of: boxed(deep.clone()) },
        Recipe::Transpose {
            perm: vec![1, 0],
            of: boxed(Recipe::Reshape { shape: vec![2, 12], of: boxed(deep.clone()) }),
        },
        Recipe::Concat {
            axis: 1,
            parts: vec![
                Recipe::Reshape { shape: vec![6, 4], of: boxed(deep) },
                stored("5", DType::I64, &[6, 1]),
            ],
        },
        Recipe::Transpose {
            perm: vec![1, 0],
            of: boxed(Recipe::Cast {
                to: DType::F16,
                of: boxed(Recipe::Concat {
                    axis: 0,
                    parts: vec![b, Recipe::Slice { axis: 0, start: 1, len: 4, of: boxed(a) }],
                }),
            }),
        },
    ];
    for recipe in &recipes {
        assert_eq!(made(recipe, &Patterns).unwrap(), expected(recipe).data, "{recipe:?}");
    }
}

#[test]
fn random_weights_depend_on_name_and_seed_alone() {
    let whole = stored("w", DType::BF16, &[300, 701]);
    let source = NormalWeights { std: 0.02, seed: 7 };
    let values = made(&whole, &source).unwrap();
    assert_eq!(values, made(&whole, &source).unwrap());
    let flat = made(&stored("w", DType::F32, &[300 * 701]), &source).unwrap();
    let rounded: Vec<f64> = flat.iter().map(|&x| DType::BF16.round(x)).collect();
    assert_eq!(values, rounded, "elements follow their flat index");
    let parts = vec![whole.clone(), stored("v", DType::BF16, &[2, 701])];
    let both = made(&Recipe::Concat { axis: 0, parts }, &source).unwrap();
    assert_eq!(both[..values.len()], values);
    assert_ne!(both[values.len()..][..701], values[..701]);
}

#[test]
fn what_the_checkpoint_does_not_have_is_named() {
    let missing = made(&stored("nothing", DType::F32, &[2]), &Patterns);
    assert!(matches!(
        missing,
        Err(DeviceError::Weight(WeightError::Missing { ref name })) if name == "nothing"
    ));
    struct Short;
    impl WeightSource for Short {
        fn tensor(&self, _: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
            Ok(TensorSource::Bytes(Cow::Borrowed(&[0; 3])))
        }
    }
    let short = made(&stored("w", DType::F32, &[2]), &Short);
    assert!(matches!(short, Err(DeviceError::Weight(WeightError::Mismatch { .. }))));
    let symbolic = TensorType::new(DType::F32, [Dim::from(harness::symbol(0))]);
    let recipe = Recipe::Checkpoint { name: "1".into(), ty: symbolic };
    let mut device = CpuDevice::new(registry(), 1).unwrap();
    let region = device.reserve("weight", 64).unwrap();
    device.back(region).unwrap();
    let made = device.materialize(&recipe, WeightLayout::RowMajor, &Patterns, region.base);
    assert!(matches!(made, Err(DeviceError::Weight(WeightError::Recipe { .. }))));
}

#[test]
fn packed_integers_are_what_the_recipe_means() {
    use piecewise_ir::eval::evaluate_recipe;
    let random = |shape: [u64; 2], seed: u64| {
        let words = (0..shape[0] * shape[1]).map(|i| {
            let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xbf58_476d);
            f64::from((x >> 17) as u32 as i32)
        });
        let shape = shape.map(|extent| extent as usize).to_vec();
        Array { dtype: DType::I32, shape, data: words.collect() }
    };
    struct Words<F>(F);
    impl<F: Fn(&str, &[u64]) -> Array + Send + Sync> WeightSource for Words<F> {
        fn tensor(&self, spec: TensorSpec<'_>) -> Result<TensorSource<'_>, WeightError> {
            Ok(TensorSource::Bytes(Cow::Owned(encode(&(self.0)(spec.name, spec.shape)))))
        }
    }
    let of = move |name: &str, shape: &[u64]| random([shape[0], shape[1]], name.parse().unwrap());
    let plain = [0, 1, 2, 3, 4, 5, 6, 7];
    let interleaved = [0, 2, 4, 6, 1, 3, 5, 7];
    let unpack = |axis, order, less, len, of| Recipe::Unpack { axis, order, less, len, of };
    let words = |name: &str, shape: [u64; 2]| Box::new(stored(name, DType::I32, &shape));
    let turned = |of| Box::new(Recipe::Transpose { perm: vec![1, 0], of });
    let recipes = [
        unpack(1, plain, 8, 24, words("1", [5, 3])),
        // Lines of an odd number of integers end in half a byte.
        unpack(1, plain, 8, 21, words("2", [5, 3])),
        unpack(0, interleaved, 8, 40, turned(words("3", [6, 5]))),
        unpack(1, plain, 7, 16, turned(words("4", [2, 9]))),
        Recipe::Concat {
            axis: 0,
            parts: vec![
                unpack(1, plain, 8, 5, words("5", [3, 1])),
                unpack(0, interleaved, 0, 16, words("6", [2, 5])),
            ],
        },
        Recipe::Slice {
            axis: 0,
            start: 3,
            len: 4,
            of: Box::new(unpack(1, interleaved, 15, 7, words("7", [9, 1]))),
        },
    ];
    for recipe in recipes {
        let ty = recipe.ty().unwrap();
        let want =
            evaluate_recipe(&recipe, &mut |name, ty| Ok(of(name, &ty.static_shape().unwrap())));
        let mut device = CpuDevice::new(registry(), 4).unwrap();
        let region = device.reserve("weight", ty.bytes(&[])).unwrap();
        device.back(region).unwrap();
        device.materialize(&recipe, WeightLayout::RowMajor, &Words(of), region.base).unwrap();
        let mut bytes = vec![0; ty.bytes(&[]) as usize];
        device.read(region.base, &mut bytes).unwrap();
        let line = ty.static_shape().unwrap()[1] as usize;
        let lines = bytes.chunks_exact(line.div_ceil(2)).map(|bytes| {
            let nibbles = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.take(line).map(|code| f64::from((code << 4).cast_signed() >> 4))
        });
        assert_eq!(lines.flatten().collect::<Vec<_>>(), want.unwrap().data, "{recipe:?}");
    }
}

#[test]
fn a_scale_of_a_tensor_becomes_one_of_each_row() {
    let scale =
        Box::new(Recipe::Cast { to: DType::F32, of: Box::new(stored("3", DType::BF16, &[1])) });
    for shape in [vec![4, 1], vec![4, 3]] {
        let rows = Recipe::Broadcast { shape: shape.clone(), of: scale.clone() };
        let parts = vec![rows, stored("5", DType::F32, &[2, shape[1]])];
        let made = made(&Recipe::Concat { axis: 0, parts }, &Patterns).unwrap();
        let one = pattern(DType::BF16, &[1], 3).data[0];
        assert_eq!(made[..4 * shape[1] as usize], vec![one; 4 * shape[1] as usize]);
    }
}
