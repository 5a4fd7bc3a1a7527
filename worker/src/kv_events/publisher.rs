//! The sockets.

use super::encode::batch;
use super::log::EventLog;
use crate::zmtp::{Address, Connection, Receiver, Role, Sender, ZmtpError};
use piecewise_runtime::memory::{KvEvent, KvObserver};
use std::net::{SocketAddr, TcpStream};
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
    /// How many may read at a time, of both endpoints; a further one is not answered.
    pub most_readers: usize,
}

impl KvPublisherOptions {
    /// With an empty topic, rank 0, no replay, vLLM's bound on what is kept, and at most 64 readers.
    pub fn new(endpoint: Address) -> Self {
        let (replay_endpoint, topic, rank) = (None, String::new(), 0);
        let (kept_batches, most_readers) = (10_000, 64);
        Self { endpoint, replay_endpoint, topic, rank, kept_batches, most_readers }
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
    /// One for each that reads, and one for the publisher.
    readers: Arc<()>,
}

impl KvPublisher {
    /// Listens.
    ///
    /// # Errors
    /// When an address is taken, or is not this machine's.
    pub fn bind(options: KvPublisherOptions) -> std::io::Result<Self> {
        let KvPublisherOptions { endpoint, replay_endpoint, topic, rank, .. } = options;
        let shared = Arc::new(Shared {
            topic: topic.into_bytes(),
            rank,
            log: EventLog::new(options.kept_batches),
            most_readers: options.most_readers,
            readers: Arc::default(),
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

    /// A place of one more reader, given back when it is dropped.
    fn place(&self) -> Option<Arc<()>> {
        let place = Arc::clone(&self.readers);
        // The publisher's own is none of a reader.
        (Arc::strong_count(&place) <= self.most_readers + 1).then_some(place)
    }
}

fn listen(
    endpoint: &Address,
    shared: &Arc<Shared>,
    serve: fn(TcpStream, &Shared) -> Result<(), ZmtpError>,
) -> std::io::Result<SocketAddr> {
    let listener = endpoint.listen()?;
    let address = listener.local_addr()?;
    let shared = Arc::clone(shared);
    let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    named("kv events").spawn(move || {
        let mut is_full = false;
        for stream in listener.incoming() {
            let place = shared.place();
            let was_full = std::mem::replace(&mut is_full, place.is_none());
            let Some(place) = place else {
                if !was_full {
                    tracing::warn!(
                        "{} read KV events, which is the most, and others are sent away; see \
                         --kv-events-max-readers",
                        shared.most_readers
                    );
                }
                continue;
            };
            let shared = Arc::clone(&shared);
            let served = stream.and_then(|stream| {
                named("kv events").spawn(move || {
                    let _place = place;
                    if let Err(error) = serve(stream, &shared) {
                        tracing::debug!("a reader of KV events is gone: {error}");
                    }
                })
            });
            if let Err(error) = served {
                tracing::warn!("a reader of KV events can't be served: {error}");
                // Descriptors or threads are short.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    })?;
    Ok(address)
}

/// The topics that a subscriber wants, until it is gone.
type Wishes = Mutex<Option<Vec<Vec<u8>>>>;

/// Sends what is published to one who has subscribed to it.
fn subscriber(stream: TcpStream, shared: &Shared) -> Result<(), ZmtpError> {
    let (mut wishes, sender) = Connection::new(stream, Role::Publisher, b"")?.split();
    wishes.set_patience(GLANCE)?;
    let wanted = Wishes::new(Some(Vec::new()));
    std::thread::scope(|scope| {
        let writer = std::thread::Builder::new().name("kv events".to_owned());
        let mut idle = Some((writer, sender));
        let outcome = loop {
            match wishes.receive_wish() {
                Ok(Some((is_wanted, topic))) => {
                    let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
                    let topics = wanted.get_or_insert_default();
                    match is_wanted {
                        true => topics.push(topic),
                        false => topics.retain(|other| *other != topic),
                    }
                }
                Ok(None) => continue,
                Err(error) => break Err(error),
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
fn send(mut sender: Sender, shared: &Shared, mut from: u64, wanted: &Wishes) {
    let is_gone = || wanted.lock().unwrap_or_else(PoisonError::into_inner).is_none();
    'all: while let Some(batches) = shared.log.wait(from, is_gone) {
        for (number, batch) in batches {
            from = number + 1;
            let topics = wanted.lock().unwrap_or_else(PoisonError::into_inner);
            let is_wanted =
                |topics: &Vec<Vec<u8>>| topics.iter().any(|wish| shared.topic.starts_with(wish));
            let is_wanted = topics.as_ref().is_some_and(is_wanted);
            drop(topics);
            let frames: [&[u8]; 3] = [&shared.topic, &number.to_be_bytes(), &batch];
            if is_wanted && sender.send(&frames).is_err() {
                break 'all;
            }
        }
    }
    sender.close();
}

/// Sends what is kept, from a number on, to one who asks for it.
fn replay(stream: TcpStream, shared: &Shared) -> Result<(), ZmtpError> {
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
        let until = shared.log.next();
        let mut from = from;
        while from < until {
            for (number, batch) in shared.log.from(from) {
                from = number + 1;
                sender.send(&[b"", &number.to_be_bytes(), &batch])?;
            }
        }
        sender.send(&[b"", &END, b""])?;
    }
}

impl Receiver {
    /// A topic that is wanted from now on, or no longer.
    fn receive_wish(&mut self) -> Result<Option<(bool, Vec<u8>)>, ZmtpError> {
        let frames = self.receive(&mut |_| {})?;
        let wish = frames.and_then(|frames| frames.into_iter().next());
        Ok(wish.and_then(|mut wish| match wish.first() {
            Some(1) => Some((true, wish.split_off(1))),
            Some(0) => Some((false, wish.split_off(1))),
            _ => None,
        }))
    }
}
