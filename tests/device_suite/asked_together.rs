//! Constraints of the requests of a step, asked at the same time.

use crate::sampling_controls::{engine_of, got};
use crate::small_decoder::Setup;
use crate::target::Cpu;
use piecewise_runtime::engine::{Request, TokenConstraint};
use piecewise_runtime::words::FinishReason;
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
        let met = self.here.recv_timeout(Duration::from_secs(600));
        met.map_err(|_| "the other one was not asked meanwhile".to_owned())?;
        mask[0] = 1 << self.id;
        Ok(())
    }

    fn accept(&mut self, _id: u32) -> Result<bool, String> {
        Ok(false)
    }

    fn duplicate(&self) -> Box<dyn TokenConstraint> {
        unreachable!("its request is one alone")
    }
}

/// Between two steps a device waits for the longest of them, not for the sum: by threads, however few
/// cores there are.
#[test]
fn constraints_of_a_step_are_asked_at_the_same_time() {
    let setup = Setup { sampling_controls: true, ..Setup::default() };
    let mut engine = engine_of(setup.build::<Cpu>(), true);
    let ((to_second, second), (to_first, first)) = (channel(), channel());
    let requests = [(3, to_second, first), (4, to_first, second)].map(|(id, other, here)| {
        let constraint: Box<dyn TokenConstraint> = Box::new(Meets { id, other, here });
        let request = Request { constraint: Some(constraint), ..Request::new([1, 2], 3) };
        engine.add(request).unwrap()
    });
    let mut events = Vec::new();
    engine.run(&mut events).unwrap();
    let mut got = got(&events);
    for (request, id) in requests.iter().zip([3, 4]) {
        let got = got.remove(request).unwrap();
        assert_eq!((got.ids, got.end), (vec![id; 3], Some((FinishReason::Length, None))));
    }
}
