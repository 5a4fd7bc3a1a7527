//! Launches that are prepared are those that are not, and errors stay what they are.

use super::fixture::{Fixture, artifact, fixture, host, kernel, mapped, two_kernels};
use super::*;
use crate::artifact::Choice;
use crate::device::Binding;
use piecewise_kernels::op::cuda::GridAxis;

/// Kernels with a map and without work among them, and a host function.
fn mixed() -> Artifact {
    let CudaImage::Kernel(mut idle) = kernel("idle", false) else { unreachable!() };
    idle.recipe.grid[2] = GridAxis::of(0u64, 1);
    let images = [
        ("first", kernel("first", true)),
        ("mapped", mapped()),
        ("host", host()),
        ("idle", CudaImage::Kernel(idle)),
        ("last", kernel("last", true)),
    ];
    artifact(&images, PieceSize::Exact(64))
}

#[test]
fn prepared_launches_are_those_that_are_not() {
    let mut f = fixture();
    let kept = f.bind(&mixed(), "p0").unwrap();
    // More sizes than are kept, each again and again, and the ones from the start in the end.
    for rows in [9, 9, 9, 1, 9, 2, 2, 4, 4, 6, 6, 6, 7, 7, 1, 1, 9, 9] {
        let fresh = f.bind(&mixed(), "p0").unwrap();
        let before = f.device.launch_counts();
        f.launch(&fresh, rows).unwrap();
        let counted = f.device.launch_counts().since(before);
        let expected = f.driver.take_ran();
        let names = expected.iter().map(|noted| noted.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["first", "mapped", "last"]);
        let before = f.device.launch_counts();
        f.launch(&kept, rows).unwrap();
        assert_eq!(f.driver.take_ran(), expected, "at {rows} rows");
        assert_eq!(f.device.launch_counts().since(before), counted);
    }
}

/// What a program was prepared with is its own: bound elsewhere it goes there.
#[test]
fn a_program_bound_anew_launches_where_it_is_bound() {
    let mut f = fixture();
    let artifact = two_kernels(PieceSize::Exact(16));
    let there = f.device.reserve("another arena", 4096).unwrap();
    f.device.back(there).unwrap();
    let mut found = Vec::new();
    for base in [f.arena.base, there.base] {
        let operands = [Some(base), Some(base.offset(1024))];
        let binding = Binding {
            piece: &f.piece,
            choice: &Choice::default(),
            operands: &operands,
            scratch: base,
            scratch_bytes: 0,
            counts: base.offset(3840),
            bounds: &f.bounds,
            label: "p0",
        };
        let program = f.device.bind(&artifact, &binding).unwrap();
        for _ in 0..3 {
            f.launch(&program, 8).unwrap();
            found.extend(f.driver.take_ran().into_iter().map(|noted| noted.parameters[1]));
        }
    }
    let expected = [[f.arena.base.0 + 1024; 6], [there.base.0 + 1024; 6]];
    assert_eq!(found, expected.concat());
}

#[test]
fn errors_of_prepared_launches_stay() {
    let mut f = fixture();
    let program = f.bind(&mixed(), "p0").unwrap();
    let fresh = |f: &mut Fixture, rows| {
        let program = f.bind(&mixed(), "p0").unwrap();
        let error = f.launch(&program, rows).unwrap_err().to_string();
        (error, f.driver.take_ran())
    };
    for rows in [8, 8, 5, 5, 8, 65, 65, 8] {
        // At 5 rows the host function fails, after what is ahead of it; 65 are too many.
        let found = f.launch(&program, rows);
        let ran = f.driver.take_ran();
        match rows {
            8 => found.unwrap(),
            _ => assert_eq!((found.unwrap_err().to_string(), ran), fresh(&mut f, rows)),
        }
    }
    f.device.drop_backing(f.arena).unwrap();
    let (expected, _) = fresh(&mut f, 8);
    assert!(expected.contains("the memory of the arena is not backed"), "{expected}");
    assert_eq!(f.launch(&program, 8).unwrap_err().to_string(), expected);
    f.device.back(f.arena).unwrap();
    f.launch(&program, 8).unwrap();
    f.driver.take_ran();

    let fault = CallFault::always("cuLaunchKernelEx", 1).at("last").sized(&[8]);
    f.faults.fail(fault);
    let (expected, ran) = fresh(&mut f, 8);
    assert!(expected.contains("kernel `last` with grid [1, 3, 1]"), "{expected}");
    assert_eq!(f.launch(&program, 8).unwrap_err().to_string(), expected);
    assert_eq!(f.driver.take_ran(), ran);
    f.faults.clear();
    f.launch(&program, 8).unwrap();
}
