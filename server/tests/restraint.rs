//! Ids that a reply may not have, or not yet.

use piecewise_runtime::engine::TokenConstraint;
use piecewise_server::structured::Restraint;

/// Ids of the model, not a whole number of words.
const IDS: u64 = 70;

fn allowed(constraint: &mut Box<dyn TokenConstraint>) -> Vec<u32> {
    let mut mask = [0; 3];
    constraint.allowed(&mut mask).unwrap();
    (0..96).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

#[test]
fn ids_are_kept_to_what_is_allowed_and_ends_wait() {
    let all: Vec<u32> = (0..IDS as u32).collect();
    assert_eq!(allowed(&mut Restraint::default().over(None, IDS)), all);
    let restraint = Restraint {
        allowed: [3, 40, 41, 69].into(),
        bad: vec![vec![3], vec![40, 40, 41]].into(),
        ends: vec![69].into(),
        least: 2,
    };
    let mut constraint = restraint.over(None, IDS);
    for (said, expected) in [
        (40, &[40, 41][..]),
        (40, &[40, 41]),
        // Two have come, and the second bad word ends with 41.
        (40, &[40, 69]),
        (69, &[40, 69]),
        (41, &[40, 41, 69]),
    ] {
        let mut other = constraint.duplicate();
        assert_eq!(allowed(&mut other), expected);
        assert_eq!(allowed(&mut constraint), expected);
        assert_eq!(constraint.accept(said), Ok(false));
    }
}

/// Allows an end alone.
#[derive(Debug, Clone)]
struct Complete;

impl TokenConstraint for Complete {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        mask[0] = 1 << 5;
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<bool, String> {
        Ok(true)
    }

    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_structure_that_is_complete_ends_before_the_least() {
    let restraint = Restraint { ends: vec![5, 6].into(), least: 9, ..Restraint::default() };
    let mut constraint = restraint.over(Some(Box::new(Complete)), IDS);
    assert_eq!(allowed(&mut constraint), [5]);
    assert_eq!(constraint.accept(7), Ok(true));
    let none = Restraint { allowed: [6].into(), ..Restraint::default() };
    assert!(allowed(&mut none.over(Some(Box::new(Complete)), IDS)).is_empty());
}
