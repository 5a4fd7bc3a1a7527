//! The mean over segments in every float dtype, of none of the rows and of many, against sums in f64.

use half::{bf16, f16};
use piecewise::prelude::*;
use piecewise_testing::{Rng, norm_error};

const WIDTH: usize = 5;

#[test]
fn means_of_every_dtype_and_of_no_rows_equal_sums_in_f64() {
    // Rows 7 and 8 are nobody's.
    let (starts, lengths) = ([0, 3, 9, 10, 50, 50], [3, 4, 1, 40, 0, 17]);
    let mut rng = Rng::new(3);
    let x = Vec::from_iter((0..67 * WIDTH).map(|_| rng.symmetric(2.0) as f32));
    for (dtype, round, tolerance) in [
        (DType::F32, (|x| f64::from(x)) as fn(f32) -> f64, 1e-6),
        (DType::F16, |x| f16::from_f32(x).to_f64(), 1e-3),
        (DType::BF16, |x| bf16::from_f32(x).to_f64(), 8e-3),
    ] {
        let b = Builder::new("means");
        let rows = b.symbol_with_role("T", 1, 96, roles::TOKENS);
        let items = b.symbol_with_role("S", 1, 8, "rows.items");
        let index = |name| b.input(name, DType::I32, [items]).padding(0.0);
        let segments = Segments { starts: index("starts"), lengths: index("lengths") };
        let rows = b.input("x", DType::F32, (rows, WIDTH as u64)).cast(dtype);
        let graph = b.finish([rows.segment_mean(segments).cast(DType::F32)]).unwrap();
        let assembly = Assembly::graph(graph).set("cache.enabled", false);
        let mut session =
            assembly.set("checks.poison", true).capture_sizes([96]).session().unwrap();
        let step = session.step().input("x", &x);
        let step = step.input("starts", &starts).input("lengths", &lengths);
        let found: Vec<f32> = step.run().unwrap().get(0).unwrap();
        assert_eq!(found.len(), starts.len() * WIDTH);
        for (i, (&start, &length)) in starts.iter().zip(&lengths).enumerate() {
            let row = |row: i32| x[row as usize * WIDTH..][..WIDTH].iter();
            let mut due = vec![0.0; WIDTH];
            for row in (start..start + length).map(row) {
                due.iter_mut().zip(row).for_each(|(sum, &x)| *sum += round(x));
            }
            due.iter_mut().for_each(|sum| *sum /= f64::from(length.max(1)));
            let mean = found[i * WIDTH..][..WIDTH].iter().map(|&x| f64::from(x));
            let mean = Vec::from_iter(mean);
            match length {
                0 => assert_eq!(mean, due, "{dtype}: no rows"),
                _ => {
                    let error = norm_error(&mean, &due);
                    assert!(error < tolerance, "{dtype}, segment {i}: off by {error}");
                }
            }
        }
    }
}
