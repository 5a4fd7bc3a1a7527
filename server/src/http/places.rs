//! Places of connections: how many there are, who goes when they run out, and for whom some are kept.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Places beyond the bound for whoever asks how the server is.
pub(super) const KEPT: usize = 32;

/// What a connection may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admitted {
    /// Everything.
    ToAll,
    /// How the server is, and what operators ask: every other place is taken.
    ToProbes,
}

/// The places of a server.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_of_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<IpAddr, usize>,
    /// Connections that wait for a request, by the turn in which they began to.
    idle: BTreeMap<u64, (IpAddr, Arc<Notify>)>,
    next: u64,
}

impl Taken {
    fn give_back(&mut self, address: IpAddr) {
        self.all -= 1;
        if let Some(count) = self.of.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&address);
            }
        }
    }
}

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// It waits for a request or for the rest of its head, since this turn.
    Waiting(u64),
    /// A request has come but for its body.
    Reading,
    /// A whole request is there, and its answer has not been taken.
    Answering,
    /// It was told to leave and holds no place.
    Leaving,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
    doing: Mutex<Doing>,
    /// Whether the last of an answer is on its way.
    is_given: AtomicBool,
    leave: Arc<Notify>,
}

impl Places {
    pub(super) fn new(most: usize, most_of_address: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_address, taken: Mutex::default() })
    }

    /// A place for a connection from `address`, and what it may ask; none where those that are kept are
    /// taken, too. Where there is no other place, or the address has all of its own, the connection
    /// that has waited longest for a request loses its own.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<(Arc<Place>, Admitted)> {
        let mut taken = self.lock();
        let of_address = |taken: &Taken| taken.of.get(&address).copied().unwrap_or(0);
        let is_crowded = of_address(&taken) >= self.most_of_address;
        if is_crowded || taken.all >= self.most {
            let may_go = |idle: &(IpAddr, _)| !is_crowded || idle.0 == address;
            let longest = taken.idle.iter().find(|(_, idle)| may_go(idle)).map(|(turn, _)| *turn);
            if let Some((other, leave)) = longest.and_then(|turn| taken.idle.remove(&turn)) {
                taken.give_back(other);
                leave.notify_one();
            }
        }
        let is_free = taken.all < self.most && of_address(&taken) < self.most_of_address;
        let admitted = match is_free {
            true => Admitted::ToAll,
            false if taken.all < self.most + KEPT => Admitted::ToProbes,
            false => return None,
        };
        taken.all += 1;
        *taken.of.entry(address).or_default() += 1;
        let leave = Arc::new(Notify::new());
        let turn = taken.waits(address, &leave);
        let (places, doing) = (Arc::clone(self), Mutex::new(Doing::Waiting(turn)));
        let is_given = AtomicBool::new(false);
        Some((Arc::new(Place { places, address, doing, is_given, leave }), admitted))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn waits(&mut self, address: IpAddr, leave: &Arc<Notify>) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.idle.insert(turn, (address, Arc::clone(leave)));
        turn
    }
}

impl Place {
    /// Where its connection comes from.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Waits until it is told to leave.
    pub(super) async fn is_lost(&self) {
        self.leave.notified().await;
    }

    /// Whether a whole request is there whose answer was not taken yet.
    pub(super) fn answers(&self) -> bool {
        *self.doing() == Doing::Answering
    }

    /// The head of a request is there.
    pub(super) fn begin(&self) {
        self.change(|_, _| Doing::Reading);
    }

    /// A request is there as a whole.
    pub(super) fn heard(&self) {
        self.change(|_, _| Doing::Answering);
    }

    /// The last of an answer was handed on, to be sent.
    pub(super) fn given(&self) {
        self.is_given.store(true, Ordering::Relaxed);
    }

    /// All that was handed on was sent.
    pub(super) fn flushed(&self) {
        if self.is_given.load(Ordering::Relaxed) && self.is_given.swap(false, Ordering::Relaxed) {
            self.end();
        }
    }

    fn end(&self) {
        self.change(|taken, place| Doing::Waiting(taken.waits(place.address, &place.leave)));
    }

    fn change(&self, to: impl FnOnce(&mut Taken, &Self) -> Doing) {
        let mut doing = self.doing();
        let mut taken = self.places.lock();
        match *doing {
            Doing::Leaving => return,
            // Somebody else has the place.
            Doing::Waiting(turn) if taken.idle.remove(&turn).is_none() => {
                *doing = Doing::Leaving;
                return;
            }
            _ => {}
        }
        *doing = to(&mut taken, self);
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let doing = *self.doing();
        let mut taken = self.places.lock();
        let is_held = match doing {
            Doing::Waiting(turn) => taken.idle.remove(&turn).is_some(),
            Doing::Reading | Doing::Answering => true,
            Doing::Leaving => false,
        };
        if is_held {
            taken.give_back(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::net::Ipv4Addr;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn is_lost(place: &Place) -> bool {
        place.is_lost().now_or_never().is_some()
    }

    #[test]
    fn who_waits_longest_goes_first() {
        let places = Places::new(2, 2);
        let (first, _) = places.take(address(1)).unwrap();
        let (second, _) = places.take(address(2)).unwrap();
        // The first has had an answer since.
        first.begin();
        first.heard();
        first.end();
        let (third, admitted) = places.take(address(3)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        assert_eq!((is_lost(&first), is_lost(&second)), (false, true));
        drop((first, second, third));
        let taken = places.lock();
        assert_eq!((taken.all, taken.of.len(), taken.idle.len()), (0, 0, 0));
    }

    #[test]
    fn requests_keep_their_places_and_probes_have_some_beyond() {
        let places = Places::new(1, 1);
        let (busy, _) = places.take(address(1)).unwrap();
        busy.begin();
        let mut probes = Vec::new();
        for last in 0..KEPT {
            let (probe, admitted) = places.take(address(last as u8 + 2)).unwrap();
            probe.begin();
            probes.push(probe);
            assert_eq!(admitted, Admitted::ToProbes);
        }
        assert!(places.take(address(99)).is_none());
        assert!(!is_lost(&busy));
        // A probe that asks nothing makes room for another.
        probes[0].end();
        let (_next, admitted) = places.take(address(99)).unwrap();
        assert_eq!((admitted, is_lost(&probes[0])), (Admitted::ToProbes, true));
        drop((busy, probes));
    }

    #[test]
    fn an_address_has_a_bound_of_its_own() {
        let places = Places::new(8, 2);
        let (other, _) = places.take(address(9)).unwrap();
        let taken: Vec<_> = (0..2).map(|_| places.take(address(1)).unwrap().0).collect();
        let (_, admitted) = places.take(address(1)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        assert_eq!((is_lost(&other), is_lost(&taken[0])), (false, true), "its own goes");
        taken[1].begin();
        let (third, admitted) = places.take(address(1)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        third.begin();
        assert_eq!(places.take(address(1)).unwrap().1, Admitted::ToProbes);
        assert_eq!(places.take(address(2)).unwrap().1, Admitted::ToAll);
    }

    #[test]
    fn a_request_that_comes_as_its_place_goes_is_not_counted() {
        let places = Places::new(1, 1);
        let (late, _) = places.take(address(1)).unwrap();
        let (_next, _) = places.take(address(2)).unwrap();
        late.begin();
        assert!(!late.answers());
        drop(late);
        assert_eq!(places.lock().all, 1);
    }
}
