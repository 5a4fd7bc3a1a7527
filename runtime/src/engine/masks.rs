//! Masks of the rows of a step, made beside each other: between two steps a device waits for the longest,
//! not for the sum of all.

use super::request::RequestId;
use super::turn_controls::TurnControls;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;

/// More threads would wait for memory: a mask is a walk over the whole vocabulary.
const MOST_THREADS: usize = 16;

/// A turn whose constraint is asked which ids may come next.
#[derive(Debug)]
pub(super) struct Asking {
    pub request: RequestId,
    /// How many ids it has generated.
    pub generated: u64,
    /// Its controls, while it is asked.
    pub controls: TurnControls,
    /// What came of it.
    pub answer: Result<(), String>,
}

/// The turns of a step that are asked, and the threads on which.
#[derive(Debug, Default)]
pub(super) struct Masks {
    pub asking: Vec<Asking>,
    /// Its own threads, so that nothing else can keep them busy; started once several turns are asked
    /// at a time, and none where the system gives none.
    pool: OnceLock<Option<ThreadPool>>,
}

impl Masks {
    /// Asks each; what a mask is does not depend on who makes it, or when.
    pub(super) fn make(&mut self, vocabulary: u64) {
        let ask = |turn: &mut Asking| turn.answer = turn.controls.ask(turn.generated, vocabulary);
        let pool = match self.asking.len() {
            0 | 1 => None,
            _ => self.pool.get_or_init(start).as_ref(),
        };
        match pool {
            Some(pool) => {
                let asking = &mut self.asking;
                pool.install(|| asking.par_iter_mut().with_max_len(1).for_each(ask));
            }
            None => self.asking.iter_mut().for_each(ask),
        }
    }
}

fn start() -> Option<ThreadPool> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(cores.clamp(2, MOST_THREADS));
    let pool = pool.thread_name(|number| format!("masks {number}")).build();
    pool.inspect_err(|error| tracing::warn!("masks are made one after the other: {error}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Request, TokenConstraint};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// Allows an id, once the other one of the two has been asked as well.
    #[derive(Debug)]
    struct Meets {
        id: u32,
        other: Sender<()>,
        here: Receiver<()>,
    }

    impl TokenConstraint for Meets {
        fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
            self.other.send(()).map_err(|error| error.to_string())?;
            // Long for a test that fails, and nothing for one that does not.
            let met = self.here.recv_timeout(Duration::from_secs(120));
            met.map_err(|_| "the other one was not asked meanwhile".to_owned())?;
            mask[0] = 1 << self.id;
            Ok(())
        }

        fn accept(&mut self, _id: u32) -> Result<bool, String> {
            Ok(false)
        }

        fn duplicate(&self) -> Box<dyn TokenConstraint> {
            unreachable!("it is asked once")
        }
    }

    fn asking(number: u64, constraint: impl TokenConstraint + 'static) -> Asking {
        let constraint: Box<dyn TokenConstraint> = Box::new(constraint);
        let mut request = Request { constraint: Some(constraint), ..Request::new([1], 1) };
        Asking {
            request: RequestId(number),
            generated: 0,
            controls: TurnControls::of(&mut request),
            answer: Ok(()),
        }
    }

    #[test]
    fn two_masks_are_made_at_the_same_time() {
        let ((to_second, second), (to_first, first)) = (channel(), channel());
        let mut masks = Masks::default();
        masks.asking.push(asking(0, Meets { id: 3, other: to_second, here: first }));
        masks.asking.push(asking(1, Meets { id: 4, other: to_first, here: second }));
        masks.make(40);
        for (turn, id) in masks.asking.iter().zip([3, 4]) {
            assert_eq!(turn.answer, Ok(()));
            assert_eq!(turn.controls.mask, [1 << id, 0]);
        }
    }

    /// Allows its number alone, or says why nothing may come.
    #[derive(Debug)]
    struct Own(u32);

    impl TokenConstraint for Own {
        fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
            if self.0.is_multiple_of(7) {
                return Err(format!("not {}", self.0));
            }
            mask[self.0 as usize / 32] |= 1 << (self.0 % 32);
            Ok(())
        }

        fn accept(&mut self, _id: u32) -> Result<bool, String> {
            Ok(false)
        }

        fn duplicate(&self) -> Box<dyn TokenConstraint> {
            Box::new(Self(self.0))
        }
    }

    #[test]
    fn each_of_many_has_its_own_mask_and_its_own_reason() {
        let mut masks = Masks::default();
        masks.asking.extend((0..200).map(|number| asking(number, Own(number as u32))));
        masks.make(200);
        for (number, turn) in (0_u32..200).zip(&masks.asking) {
            assert_eq!(turn.request, RequestId(u64::from(number)));
            match number % 7 {
                0 => assert_eq!(turn.answer, Err(format!("not {number}"))),
                _ => {
                    let mut expected = [0; 7];
                    expected[number as usize / 32] = 1 << (number % 32);
                    assert_eq!((&turn.answer, &*turn.controls.mask), (&Ok(()), &expected[..]));
                }
            }
        }
    }
}
