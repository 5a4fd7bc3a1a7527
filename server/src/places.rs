//! Places of connections: how many there are, who goes when they run out, and for whom some are kept.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a connection may ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// Everything.
    ToAll,
    /// How the server is, and what operators ask: every other place is taken.
    ToProbes,
}

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    most: usize,
    most_of_address: usize,
    kept: usize,
    taken: Mutex<Taken>,
}

/// Tells a connection to end, such as when its place is lost. It is called while others wait for the places,
/// and must not wait for any of them.
pub type Leave = Arc<dyn Fn() + Send + Sync>;

/// A connection that waits for a request.
#[derive(derive_more::Debug)]
struct Idle {
    network: IpAddr,
    #[debug(skip)]
    leave: Leave,
}

/// Where a client is, of whom all that an address may take is taken: of IPv4 an address, of IPv6 a network
/// of 64 bits, by its first address, as one client may have every address of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Of each network.
    of: HashMap<IpAddr, usize>,
    /// Connections that wait for a request, by the turn in which they began to.
    idle: BTreeMap<u64, Idle>,
    next: u64,
}

impl Taken {
    fn give_back(&mut self, network: IpAddr) {
        self.all -= 1;
        if let Some(count) = self.of.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&network);
            }
        }
    }

    fn waits(&mut self, network: IpAddr, leave: &Leave) -> u64 {
        let turn = self.next;
        self.next += 1;
        self.idle.insert(turn, Idle { network, leave: Arc::clone(leave) });
        turn
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
#[derive(derive_more::Debug)]
pub struct Place {
    places: Arc<Places>,
    address: IpAddr,
    doing: Mutex<Doing>,
    /// Whether the last of an answer is on its way.
    is_given: AtomicBool,
    #[debug(skip)]
    leave: Leave,
}

impl Places {
    /// So many places, so many of them for an [address](network) at most, and so many `kept` beyond them
    /// for [probes](Admitted::ToProbes).
    pub fn new(most: usize, most_of_address: usize, kept: usize) -> Arc<Self> {
        Arc::new(Self { most, most_of_address, kept, taken: Mutex::default() })
    }

    /// A place for a connection from `address`, and what it may ask; none where those that are kept are
    /// taken, too. Where there is no other place, or the address has all of its own, the connection
    /// that has waited longest for a request loses its own, and is told by its `leave`.
    pub fn take(self: &Arc<Self>, address: IpAddr, leave: Leave) -> Option<(Arc<Place>, Admitted)> {
        let network = network(address);
        let mut taken = self.lock();
        let of_network = |taken: &Taken| taken.of.get(&network).copied().unwrap_or(0);
        let is_crowded = of_network(&taken) >= self.most_of_address;
        if is_crowded || taken.all >= self.most {
            let may_go = |idle: &Idle| !is_crowded || idle.network == network;
            let longest = taken.idle.iter().find(|(_, idle)| may_go(idle)).map(|(turn, _)| *turn);
            if let Some(other) = longest.and_then(|turn| taken.idle.remove(&turn)) {
                taken.give_back(other.network);
                (other.leave)();
            }
        }
        let is_free = taken.all < self.most && of_network(&taken) < self.most_of_address;
        let admitted = match is_free {
            true => Admitted::ToAll,
            false if taken.all < self.most + self.kept => Admitted::ToProbes,
            false => return None,
        };
        taken.all += 1;
        *taken.of.entry(network).or_default() += 1;
        let turn = taken.waits(network, &leave);
        let (places, doing) = (Arc::clone(self), Mutex::new(Doing::Waiting(turn)));
        let is_given = AtomicBool::new(false);
        Some((Arc::new(Place { places, address, doing, is_given, leave }), admitted))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Where its connection comes from.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Ends its connection.
    pub(crate) fn leave(&self) -> &Leave {
        &self.leave
    }

    /// Whether a whole request is there whose answer was not taken yet.
    pub(crate) fn answers(&self) -> bool {
        *self.doing() == Doing::Answering
    }

    /// The head of a request is there.
    pub fn begin(&self) {
        self.change(|_, _| Doing::Reading);
    }

    /// A request is there as a whole.
    pub(crate) fn heard(&self) {
        self.change(|_, _| Doing::Answering);
    }

    /// The last of an answer was handed on, to be sent.
    pub(crate) fn given(&self) {
        self.is_given.store(true, Ordering::Relaxed);
    }

    /// All that was handed on was sent.
    pub(crate) fn flushed(&self) {
        if self.is_given.load(Ordering::Relaxed) && self.is_given.swap(false, Ordering::Relaxed) {
            self.end();
        }
    }

    /// The connection waits for a request from now on.
    pub fn end(&self) {
        let waits = |taken: &mut Taken, place: &Self| {
            Doing::Waiting(taken.waits(network(place.address), &place.leave))
        };
        self.change(waits);
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
            taken.give_back(network(self.address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const KEPT: usize = 32;

    /// A place, whether it was lost, and what it may ask.
    fn take(places: &Arc<Places>, address: IpAddr) -> Option<(Taker, Admitted)> {
        let is_lost = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_lost);
        let leave = Arc::new(move || told.store(true, Ordering::Relaxed));
        let (place, admitted) = places.take(address, leave)?;
        Some((Taker { place, is_lost }, admitted))
    }

    #[derive(derive_more::Deref)]
    struct Taker {
        #[deref]
        place: Arc<Place>,
        is_lost: Arc<AtomicBool>,
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    fn is_lost(taker: &Taker) -> bool {
        taker.is_lost.load(Ordering::Relaxed)
    }

    #[test]
    fn who_waits_longest_goes_first() {
        let places = Places::new(2, 2, KEPT);
        let (first, _) = take(&places, address(1)).unwrap();
        let (second, _) = take(&places, address(2)).unwrap();
        // The first has had an answer since.
        first.begin();
        first.heard();
        first.end();
        let (third, admitted) = take(&places, address(3)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        assert_eq!((is_lost(&first), is_lost(&second)), (false, true));
        drop((first, second, third));
        let taken = places.lock();
        assert_eq!((taken.all, taken.of.len(), taken.idle.len()), (0, 0, 0));
    }

    #[test]
    fn requests_keep_their_places_and_probes_have_some_beyond() {
        let places = Places::new(1, 1, KEPT);
        let (busy, _) = take(&places, address(1)).unwrap();
        busy.begin();
        let mut probes = Vec::new();
        for last in 0..KEPT {
            let (probe, admitted) = take(&places, address(last as u8 + 2)).unwrap();
            probe.begin();
            probes.push(probe);
            assert_eq!(admitted, Admitted::ToProbes);
        }
        assert!(take(&places, address(99)).is_none());
        assert!(!is_lost(&busy));
        // A probe that asks nothing makes room for another.
        probes[0].end();
        let (_next, admitted) = take(&places, address(99)).unwrap();
        assert_eq!((admitted, is_lost(&probes[0])), (Admitted::ToProbes, true));
        drop((busy, probes));
    }

    #[test]
    fn an_address_has_a_bound_of_its_own() {
        let places = Places::new(8, 2, KEPT);
        let (other, _) = take(&places, address(9)).unwrap();
        let taken: Vec<_> = (0..2).map(|_| take(&places, address(1)).unwrap().0).collect();
        let (_, admitted) = take(&places, address(1)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        assert_eq!((is_lost(&other), is_lost(&taken[0])), (false, true), "its own goes");
        taken[1].begin();
        let (third, admitted) = take(&places, address(1)).unwrap();
        assert_eq!(admitted, Admitted::ToAll);
        third.begin();
        assert_eq!(take(&places, address(1)).unwrap().1, Admitted::ToProbes);
        assert_eq!(take(&places, address(2)).unwrap().1, Admitted::ToAll);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let places = Places::new(8, 2, KEPT);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (first, _) = take(&places, address("2001:db8:0:1::1")).unwrap();
        let (_second, _) = take(&places, address("2001:db8:0:1:ffff::2")).unwrap();
        let (_other, _) = take(&places, address("2001:db8:0:2::1")).unwrap();
        let (_third, admitted) = take(&places, address("2001:db8:0:1::3")).unwrap();
        assert_eq!((admitted, is_lost(&first)), (Admitted::ToAll, true), "its own goes");
        assert_eq!(network(address("::ffff:10.0.0.1")), address("10.0.0.1"), "the same machine");
        drop(first);
        assert_eq!(places.lock().all, 3);
    }

    #[test]
    fn a_request_that_comes_as_its_place_goes_is_not_counted() {
        let places = Places::new(1, 1, KEPT);
        let (late, _) = take(&places, address(1)).unwrap();
        let (_next, _) = take(&places, address(2)).unwrap();
        late.begin();
        assert!(!late.answers());
        drop(late);
        assert_eq!(places.lock().all, 1);
    }
}
