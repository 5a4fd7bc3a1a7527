//! Masks of the rows of a step, made beside each other: between two steps a device waits for the longest,
//! not for the sum of all.

use super::sequence::TurnControls;
use crate::words::RequestId;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::fmt::Display;

/// More threads would wait for memory: a mask is a walk over the whole vocabulary.
const MOST_THREADS: usize = 16;
/// Where the system gave no threads, so many steps ask without them before it is asked again: each time is a
/// warning.
const STEPS_WITHOUT: u32 = 1000;

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
    /// at a time.
    pool: Option<ThreadPool>,
    /// Steps until the system is asked for threads again.
    without: u32,
}

impl Masks {
    /// Asks each; what a mask is does not depend on who makes it, or when.
    pub(super) fn make(&mut self, vocabulary: u64) {
        self.make_on(vocabulary, start);
    }

    /// On threads that `start` gives, where there are none yet.
    fn make_on<E: Display>(
        &mut self,
        vocabulary: u64,
        start: impl FnOnce() -> Result<ThreadPool, E>,
    ) {
        let ask = |turn: &mut Asking| turn.answer = turn.controls.ask(turn.generated, vocabulary);
        let Self { asking, pool, without } = self;
        if asking.len() > 1 && pool.is_none() {
            match without.checked_sub(1) {
                Some(fewer) => *without = fewer,
                None => match start() {
                    Ok(started) => *pool = Some(started),
                    Err(error) => {
                        tracing::warn!("masks are made one after the other for now: {error}");
                        *without = STEPS_WITHOUT;
                    }
                },
            }
        }
        match pool.as_ref().filter(|_| asking.len() > 1) {
            Some(pool) => pool.install(|| asking.par_iter_mut().with_max_len(1).for_each(ask)),
            None => asking.iter_mut().for_each(ask),
        }
    }
}

fn start() -> Result<ThreadPool, ThreadPoolBuildError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = ThreadPoolBuilder::new().num_threads(cores.clamp(2, MOST_THREADS));
    pool.thread_name(|number| format!("masks {number}")).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::constraint::TokenConstraint;
    use crate::engine::request::Request;

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

    /// Threads may be short for a moment; the masks of that time are the same.
    #[test]
    fn threads_that_the_system_did_not_give_are_asked_for_again() {
        let mut masks = Masks::default();
        let mut make = |start: &mut dyn FnMut() -> Result<ThreadPool, String>| {
            masks.asking.clear();
            masks.asking.extend((1..3).map(|number| asking(number, Own(number as u32))));
            masks.make_on(8, start);
            for turn in &masks.asking {
                let bit = 1 << turn.request.0;
                assert_eq!((&turn.answer, &*turn.controls.mask), (&Ok(()), &[bit][..]));
            }
            masks.pool.is_some()
        };
        assert!(!make(&mut || Err("no threads".to_owned())));
        for _ in 0..STEPS_WITHOUT {
            assert!(!make(&mut || panic!("each step would warn")));
        }
        assert!(make(&mut || start().map_err(|error| error.to_string())));
        assert!(make(&mut || panic!("they are there")));
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
