//! The sockets.

use super::encode::batch;
use crate::zmtp::{Address, Connection, Receiver, Role, Sender, ZmtpError};
use piecewise_runtime::engine::{KvEvent, KvObserver};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
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
    /// How many of the last batches can be asked for again.
    pub kept_batches: usize,
}

impl KvPublisherOptions {
    /// With an empty topic, rank 0, no replay and vLLM's bound on what is kept.
    pub fn new(endpoint: Address) -> Self {
        let (replay_endpoint, topic, rank, kept_batches) = (None, String::new(), 0, 10_000);
        Self { endpoint, replay_endpoint, topic, rank, kept_batches }
    }
}

/// The most batches that wait for a subscriber; one that is slower misses some, and can see that by
/// the numbers.
const MAX_WAITING: usize = 100_000;
/// What a replay ends with: number -1, and nothing.
const END: [u8; 8] = [0xff; 8];
/// How long a connection may say nothing before it is looked after again.
const GLANCE: Duration = Duration::from_secs(3600);

type Batch = (u64, Arc<[u8]>);

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
    kept_batches: usize,
    log: Mutex<Published>,
}

#[derive(Debug, Default)]
struct Published {
    next: u64,
    kept: VecDeque<Batch>,
    subscribers: Vec<mpsc::SyncSender<Batch>>,
}

impl KvPublisher {
    /// Listens.
    ///
    /// # Errors
    /// When an address is taken, or is not this machine's.
    pub fn bind(options: KvPublisherOptions) -> std::io::Result<Self> {
        let KvPublisherOptions { endpoint, replay_endpoint, topic, rank, kept_batches } = options;
        let (topic, log) = (topic.into_bytes(), Mutex::default());
        let shared = Arc::new(Shared { topic, rank, kept_batches, log });
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
    fn lock(&self) -> MutexGuard<'_, Published> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, event: &KvEvent) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch: Arc<[u8]> = batch(seconds.as_secs_f64(), event, self.rank).into();
        let mut log = self.lock();
        let number = log.next;
        log.next += 1;
        if log.kept.len() >= self.kept_batches {
            log.kept.pop_front();
        }
        if self.kept_batches > 0 {
            log.kept.push_back((number, Arc::clone(&batch)));
        }
        log.subscribers.retain(|subscriber| {
            let sent = subscriber.try_send((number, Arc::clone(&batch)));
            !matches!(sent, Err(mpsc::TrySendError::Disconnected(_)))
        });
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
        for stream in listener.incoming() {
            let shared = Arc::clone(&shared);
            let served = stream.and_then(|stream| {
                named("kv events").spawn(move || {
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

/// Sends what is published to one who has subscribed to it.
fn subscriber(stream: TcpStream, shared: &Shared) -> Result<(), ZmtpError> {
    let (mut wishes, sender) = Connection::new(stream, Role::Publisher, b"")?.split();
    wishes.set_patience(GLANCE)?;
    let topics = Arc::new(Mutex::new(Vec::new()));
    let (batches, received) = mpsc::sync_channel(MAX_WAITING);
    let (wanted, topic) = (Arc::clone(&topics), shared.topic.clone());
    let mut batches = Some(batches);
    let writer = std::thread::Builder::new().name("kv events".to_owned());
    let writer = writer.spawn(move || send(sender, &received, &topic, &wanted))?;
    let outcome = loop {
        match wishes.receive_wish() {
            Ok(Some((is_wanted, topic))) => {
                let mut topics = topics.lock().unwrap_or_else(PoisonError::into_inner);
                match is_wanted {
                    true => topics.push(topic),
                    false => {
                        let at = topics.iter().position(|other| *other == topic);
                        at.map(|at| topics.remove(at));
                    }
                }
                // Not before it has a wish: what comes earlier is not for it.
                shared.lock().subscribers.extend(batches.take());
            }
            Ok(None) => {}
            Err(error) => break Err(error),
        }
    };
    drop(writer);
    outcome
}

fn send(
    mut sender: Sender,
    batches: &mpsc::Receiver<Batch>,
    topic: &[u8],
    wanted: &Mutex<Vec<Vec<u8>>>,
) {
    for (number, batch) in batches {
        let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = wanted.iter().any(|wish| topic.starts_with(wish));
        drop(wanted);
        if is_wanted && sender.send(&[topic, &number.to_be_bytes(), &batch]).is_err() {
            break;
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
        let kept: Vec<Batch> = {
            let log = shared.lock();
            log.kept.iter().filter(|(number, _)| *number >= from).cloned().collect()
        };
        for (number, batch) in kept {
            sender.send(&[b"", &number.to_be_bytes(), &batch])?;
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
