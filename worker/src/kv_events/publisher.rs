//! The sockets.

use super::encode::batch;
use super::log::EventLog;
use super::wishes::Wishes;
use crate::zmtp::{Address, Connection, Role, Sender, ZmtpError};
use piecewise_runtime::memory::{KvEvent, KvObserver};
use piecewise_server::places::{Admitted, Leave, Place, Places};
use piecewise_server::seldom::Seldom;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where events are published, and how many are kept for those that missed some.
#[derive(Clone, Debug)]
pub struct KvPublisherOptions {
    /// Where subscribers connect.
    pub endpoint: Address,
    /// Where those come that have missed some; `None` is nowhere.
    pub replay_endpoint: Option<Address>,
    /// What each message begins with.
    pub topic: String,
    /// The rank of the engine whose events they are; each message has it.
    pub rank: u16,
    /// How many of the last batches can be asked for again; a subscriber that is further behind misses
    /// some, and can see that by the numbers.
    pub kept_batches: usize,
    /// How many bytes they may have in all; the last is kept whatever it has.
    pub kept_bytes: usize,
    /// How many may read at a time, of both endpoints, and three quarters of them from one address. For a
    /// further one the longest goes that has subscribed to nothing, or is given nothing; where there is none,
    /// it is sent away.
    pub most_readers: usize,
}

impl KvPublisherOptions {
    /// With an empty topic, rank 0, no replay, vLLM's bound on what is kept, of 64 MiB, and at most 64 readers.
    pub fn new(endpoint: Address) -> Self {
        let (replay_endpoint, topic, rank) = (None, String::new(), 0);
        let (kept_batches, kept_bytes, most_readers) = (10_000, 64 << 20, 64);
        Self { endpoint, replay_endpoint, topic, rank, kept_batches, kept_bytes, most_readers }
    }
}

/// What a replay ends with: number -1, and nothing.
const END: [u8; 8] = [0xff; 8];
/// How long a connection may say nothing before it is looked after again.
const GLANCE: Duration = Duration::from_secs(3600);

/// Publishes what an engine tells its observer. Clones are the same.
#[derive(Clone, Debug)]
pub struct KvPublisher {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    topic: Vec<u8>,
    rank: u16,
    log: EventLog,
    most_readers: usize,
    places: Arc<Places>,
}

impl KvPublisher {
    /// Listens.
    ///
    /// # Errors
    /// When an address is taken, or is not this machine's.
    pub fn bind(options: KvPublisherOptions) -> std::io::Result<Self> {
        let KvPublisherOptions { endpoint, replay_endpoint, topic, rank, most_readers, .. } =
            options;
        let shared = Arc::new(Shared {
            topic: topic.into_bytes(),
            rank,
            log: EventLog::new(options.kept_batches, options.kept_bytes),
            most_readers,
            places: Places::new(most_readers, most_readers - most_readers / 4, 0),
        });
        let address = listen(&endpoint, &shared, subscriber)?;
        if let Some(endpoint) = replay_endpoint {
            listen(&endpoint, &shared, replay)?;
        }
        Ok(Self { shared, address })
    }

    /// The address that subscribers connect to, with the port that the system gave it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What an engine is to be observed by.
    pub fn observer(&self) -> KvObserver {
        let shared = Arc::clone(&self.shared);
        Box::new(move |event| shared.publish(event))
    }
}

impl Shared {
    fn publish(&self, event: &KvEvent) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.log.push(batch(seconds.as_secs_f64(), event, self.rank).into());
    }

    /// A place for one more reader, given back when it is dropped; `None` where all are taken by those who
    /// read. Who loses it is cut off.
    fn place(&self, stream: &TcpStream, from: IpAddr) -> std::io::Result<Option<Arc<Place>>> {
        let cut = stream.try_clone()?;
        // It has gone by itself where this fails.
        let leave: Leave = Arc::new(move || drop(cut.shutdown(Shutdown::Both)));
        let taken = self.places.take(from, leave);
        Ok(taken.and_then(|(place, admitted)| (admitted == Admitted::ToAll).then_some(place)))
    }
}

/// How one is served who has connected; whose place is kept as long as there is something for him.
type Serve = fn(TcpStream, &Shared, &Place) -> Result<(), ZmtpError>;

fn listen(endpoint: &Address, shared: &Arc<Shared>, serve: Serve) -> std::io::Result<SocketAddr> {
    let listener = endpoint.listen()?;
    let address = listener.local_addr()?;
    let shared = Arc::clone(shared);
    let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    named("kv events").spawn(move || {
        let (mut full, mut failed) = (Seldom::default(), Seldom::default());
        loop {
            let served = listener.accept().and_then(|(stream, from)| {
                let place = shared.place(&stream, from.ip())?;
                let Some(place) = place else {
                    full.tell(|count| {
                        tracing::warn!(
                            "as many read KV events as may, {} of them and three quarters of an \
                             address, and {count} were sent away; see --kv-events-max-readers",
                            shared.most_readers
                        );
                    });
                    return Ok(());
                };
                let shared = Arc::clone(&shared);
                let reads = move || {
                    if let Err(error) = serve(stream, &shared, &place) {
                        tracing::debug!("a reader of KV events is gone: {error}");
                    }
                };
                named("kv events").spawn(reads).map(drop)
            });
            if let Err(error) = served {
                failed.tell(|count| {
                    tracing::warn!("{count} readers of KV events can't be served: {error}");
                });
                // Descriptors or threads are short.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    })?;
    Ok(address)
}

/// Sends what is published to one who has subscribed to it.
fn subscriber(stream: TcpStream, shared: &Shared, place: &Place) -> Result<(), ZmtpError> {
    let (mut wishes, sender) = Connection::new(stream, Role::Publisher, b"")?.split();
    wishes.set_patience(GLANCE)?;
    let wanted = Mutex::new(Some(Wishes::default()));
    std::thread::scope(|scope| {
        let writer = std::thread::Builder::new().name("kv events".to_owned());
        let mut idle = Some((writer, sender));
        let outcome = loop {
            let wants = match wishes.receive(&mut |_| {}) {
                Ok(Some(message)) => {
                    let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
                    let wanted = wanted.get_or_insert_default();
                    let had = wanted.is_some();
                    wanted.hear(&message, &shared.topic);
                    match (had, wanted.is_some()) {
                        (false, true) => place.begin(),
                        (true, false) => place.end(),
                        _ => {}
                    }
                    wanted.is_some()
                }
                Ok(None) => continue,
                Err(error) => break Err(error),
            };
            if !wants {
                continue;
            }
            // Not before it has a wish: what comes earlier is not for it.
            if let Some((writer, sender)) = idle.take() {
                let from = shared.log.next();
                let wanted = &wanted;
                let send = move || send(sender, shared, from, wanted);
                if let Err(error) = writer.spawn_scoped(scope, send) {
                    break Err(error.into());
                }
            }
        };
        *wanted.lock().unwrap_or_else(PoisonError::into_inner) = None;
        shared.log.wake();
        outcome
    })
}

/// Sends what is published from a number on, as long as there are wishes.
fn send(mut sender: Sender, shared: &Shared, mut from: u64, wanted: &Mutex<Option<Wishes>>) {
    let is_gone = || wanted.lock().unwrap_or_else(PoisonError::into_inner).is_none();
    'all: while let Some(batches) = shared.log.wait(from, is_gone) {
        for (number, batch) in batches {
            from = number + 1;
            let wishes = wanted.lock().unwrap_or_else(PoisonError::into_inner);
            let is_wanted = wishes.as_ref().is_some_and(Wishes::is_some);
            drop(wishes);
            let frames: [&[u8]; 3] = [&shared.topic, &number.to_be_bytes(), &batch];
            if is_wanted && sender.send(&frames).is_err() {
                break 'all;
            }
        }
    }
    sender.close();
}

/// Sends what is kept, from a number on, to one who asks for it.
fn replay(stream: TcpStream, shared: &Shared, place: &Place) -> Result<(), ZmtpError> {
    let (mut questions, mut sender) = Connection::new(stream, Role::Router, b"")?.split();
    questions.set_patience(GLANCE)?;
    loop {
        let Some(frames) = questions.receive(&mut |_| {})? else { continue };
        let from = match frames.as_slice() {
            [empty, from] if empty.is_empty() => <[u8; 8]>::try_from(from.as_slice()).ok(),
            _ => None,
        };
        let Some(from) = from.map(u64::from_be_bytes) else {
            let why = "a replay is asked for by a number of 8 bytes".to_owned();
            return Err(ZmtpError::Protocol(why));
        };
        place.begin();
        let until = shared.log.next();
        let mut from = from;
        while from < until {
            for (number, batch) in shared.log.from(from) {
                from = number + 1;
                sender.send(&[b"", &number.to_be_bytes(), &batch])?;
            }
        }
        sender.send(&[b"", &END, b""])?;
        place.end();
    }
}
