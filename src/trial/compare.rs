//! How far two runs of a graph are apart, and where first.

use super::Outputs;
use super::error::TrialError;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;
use piecewise_ir::graph::Graph;
use serde::Serialize;

/// An element that two runs disagree about.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Place {
    /// Where it lies, a number for each axis.
    pub index: Vec<usize>,
    /// What it should be.
    pub expected: f64,
    /// The element of the run that is held against the other.
    pub found: f64,
}

/// Two arrays that are further apart than a tolerance.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// What the array is called.
    pub name: String,
    /// The largest distance of two elements, in units of the largest element that is expected; infinite
    /// where one is NaN and the other is not.
    pub error: f64,
    /// Of all elements, those that are further apart than the tolerance.
    pub wrong: usize,
    /// How many there are, wrong or right.
    pub elements: usize,
    /// The first that is, in row-major order.
    pub first: Place,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, error, wrong, elements, first } = self;
        let Place { index, expected, found } = first;
        write!(
            f,
            "{name} is wrong by {error:.3e} of its largest element, in {wrong} of {elements} elements, \
             first at {index:?}: {found} in place of {expected}"
        )
    }
}

/// The tolerance for what is computed in the narrowest float type of a graph: what the order of sums may
/// change of a few layers, with some room.
pub fn tolerance_of(graph: &Graph) -> f64 {
    let nodes = graph.nodes().flat_map(|node| &graph.node(node).results);
    let dtypes = Vec::from_iter(nodes.map(|&value| graph.ty(value).dtype));
    let has = |dtype| dtypes.contains(&dtype);
    match (has(DType::BF16), has(DType::F16)) {
        (true, _) => 5e-2,
        (false, true) => 1e-2,
        (false, false) => 1e-4,
    }
}

/// Where two runs differ by more than `tolerance`, which [`Difference::error`] is held against; integers
/// and bools must be equal.
///
/// # Errors
/// When they are not of the same outputs.
pub fn differences(
    expected: &Outputs,
    found: &Outputs,
    tolerance: f64,
) -> Result<Vec<Difference>, TrialError> {
    if expected.names != found.names {
        return Err(TrialError::Shapes {
            name: "what is returned".to_owned(),
            expected: expected.names.join(", "),
            found: found.names.join(", "),
        });
    }
    let pairs = expected.arrays.iter().zip(&found.arrays);
    let all = expected.names.iter().zip(pairs).map(|(name, (expected, found))| {
        if (expected.dtype, &expected.shape) != (found.dtype, &found.shape) {
            let shown = |array: &Array| format!("{}{:?}", array.dtype, array.shape);
            return Err(TrialError::Shapes {
                name: name.clone(),
                expected: shown(expected),
                found: shown(found),
            });
        }
        Ok(difference(name, expected, found, tolerance))
    });
    Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// The largest [`Difference::error`] of two runs of the same outputs, whatever is allowed.
pub fn largest_error(expected: &Outputs, found: &Outputs) -> f64 {
    let pairs = expected.arrays.iter().zip(&found.arrays);
    let errors = pairs.filter_map(|(expected, found)| difference("", expected, found, 0.0));
    errors.map(|difference| difference.error).fold(0.0, f64::max)
}

/// Where two arrays of one shape differ.
pub(crate) fn difference(
    name: &str,
    expected: &Array,
    found: &Array,
    tolerance: f64,
) -> Option<Difference> {
    let finite = expected.data.iter().filter(|x| x.is_finite());
    let largest = finite.fold(0.0f64, |largest, x| largest.max(x.abs()));
    // Of zeros alone there is no unit.
    let unit = if largest > 0.0 { largest } else { 1.0 };
    let is_float = expected.dtype.is_float();
    let distance = |(&a, &b): (&f64, &f64)| match a.to_bits() == b.to_bits() || a == b {
        true => 0.0,
        false if a.is_nan() && b.is_nan() => 0.0,
        false if !is_float || !a.is_finite() || !b.is_finite() => f64::INFINITY,
        false => (a - b).abs() / unit,
    };
    let distances = Vec::from_iter(expected.data.iter().zip(&found.data).map(distance));
    let is_wrong = |distance: &&f64| **distance > tolerance;
    let first = distances.iter().position(|distance| *distance > tolerance)?;
    Some(Difference {
        name: name.to_owned(),
        error: distances.iter().copied().fold(0.0, f64::max),
        wrong: distances.iter().filter(is_wrong).count(),
        elements: distances.len(),
        first: Place {
            index: index_of(first, &expected.shape),
            expected: expected.data[first],
            found: found.data[first],
        },
    })
}

/// Where the element at a flat position lies.
fn index_of(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        (*place, flat) = (flat % extent.max(1), flat / extent.max(1));
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(data: &[f64]) -> Array {
        Array { dtype: DType::F32, shape: vec![data.len() / 2, 2], data: data.to_vec() }
    }

    #[test]
    fn the_first_element_beyond_the_tolerance_is_named() {
        let expected = array(&[1.0, -4.0, 0.5, f64::NAN]);
        let found = |data: &[f64]| difference("x", &expected, &array(data), 0.01);
        assert_eq!(found(&[1.0, -4.0, 0.53, f64::NAN]), None, "0.03 of 4 is less than a hundredth");
        let wrong = found(&[1.0, -4.0, 0.9, f64::NAN]).unwrap();
        assert_eq!((wrong.wrong, wrong.elements, wrong.error), (1, 4, 0.1));
        assert_eq!(wrong.first, Place { index: vec![1, 0], expected: 0.5, found: 0.9 });
        let nan = found(&[f64::NAN, -4.0, 0.5, 2.0]).unwrap();
        assert_eq!((nan.wrong, nan.error, &*nan.first.index), (2, f64::INFINITY, &[0, 0][..]));
        let ints = |x: f64| Array { dtype: DType::I32, shape: vec![1], data: vec![x] };
        assert!(
            difference("i", &ints(1e6), &ints(1e6 + 1.0), 0.01).is_some(),
            "ids are equal or not"
        );
    }
}
