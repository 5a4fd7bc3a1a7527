//! Those who read KV events, beside others that take places, memory and time.

use super::{KvPublisher, KvPublisherOptions};
use crate::zmtp::{Connection, Decoder, Item, Role, Sender, command};
use piecewise_runtime::memory::{KvEvent, KvObserver};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Nothing takes nearly so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);
const TOPIC: &[u8] = b"kv@tiny";

fn publish(most_readers: usize) -> (KvPublisher, KvObserver) {
    let endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let topic = String::from_utf8(TOPIC.to_vec()).unwrap();
    let options = KvPublisherOptions { most_readers, topic, ..KvPublisherOptions::new(endpoint) };
    let publisher = KvPublisher::bind(options).unwrap();
    let observer = publisher.observer();
    (publisher, observer)
}

/// A connection from an address of this machine's own network.
fn connected(last: u8, to: SocketAddr) -> TcpStream {
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether a connection comes to its end, whatever is sent before.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

struct Reader {
    stream: TcpStream,
    sender: Sender,
    decoder: Decoder,
}

impl Reader {
    /// `None` where it is sent away.
    fn new(last: u8, to: SocketAddr) -> Option<Self> {
        let connection = Connection::new(connected(last, to), Role::Subscriber, b"").ok()?;
        let (receiver, sender) = connection.split();
        receiver.set_patience(PATIENCE).unwrap();
        let stream = receiver.stream.try_clone().unwrap();
        let mut decoder = Decoder::default();
        decoder.push(receiver.unread());
        Some(Self { stream, sender, decoder })
    }

    fn says(&mut self, wish: &[u8]) {
        self.sender.send(&[wish]).unwrap();
    }

    /// What comes next; `None` at the end.
    fn item(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.decoder.next().unwrap() {
                return Some(item);
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
            self.decoder.push(&bytes[..count]);
        }
    }

    /// Waits until the other side has read all that was said.
    fn is_heard(&mut self) {
        let mut ping = Vec::new();
        command("PING", b"\0\0", &mut ping);
        self.stream.write_all(&ping).unwrap();
        while !matches!(self.item(), Some(Item::Command(name, _)) if name == "PONG") {}
    }

    fn subscribed(last: u8, to: SocketAddr) -> Option<Self> {
        let mut reader = Self::new(last, to)?;
        reader.says(b"\x01kv@");
        reader.is_heard();
        Some(reader)
    }

    fn number(&mut self) -> u64 {
        let Some(Item::Message(frames)) = self.item() else { panic!("no events") };
        assert_eq!((&frames[0][..], frames.len()), (TOPIC, 3));
        u64::from_be_bytes(frames[1].as_slice().try_into().unwrap())
    }
}

#[test]
fn who_reads_goes_on_beside_others_that_take_all_they_can() {
    let (publisher, mut observer) = publish(4);
    let address = publisher.address();
    let mut reader = Reader::subscribed(1, address).unwrap();
    observer(&KvEvent::AllBlocksCleared);
    assert_eq!(reader.number(), 0);
    // Three places are of one address: who is silent goes for the next.
    let mut silent = Vec::from_iter((0..12).map(|_| connected(2, address)));
    silent.drain(..9).for_each(|stream| assert!(is_closed(stream)));
    // Wishes without an end, of which none is for the topic: it goes for the next as if it were silent.
    let mut greedy = Reader::new(2, address).unwrap();
    for number in 0_u32..5000 {
        greedy.says(&[&[1][..], &number.to_be_bytes(), &[b'x'; 2000]].concat());
    }
    greedy.is_heard();
    // A frame of which most never comes is refused by its head.
    let mut half = Reader::new(2, address).unwrap();
    half.stream.write_all(&[2, 0, 0, 0, 0, 3, 0xff, 0xff, 0xff]).unwrap();
    assert_eq!(half.item(), None);
    for _ in 0..4 {
        silent.push(connected(2, address));
    }
    assert!(is_closed(greedy.stream));
    for number in 1..5 {
        observer(&KvEvent::AllBlocksCleared);
        assert_eq!(reader.number(), number);
    }
    let mut other = Reader::subscribed(1, address).unwrap();
    observer(&KvEvent::AllBlocksCleared);
    assert_eq!((other.number(), reader.number()), (5, 5));
}

#[test]
fn readers_are_as_many_as_the_operator_lets_them_be() {
    let (publisher, mut observer) = publish(4);
    let address = publisher.address();
    let mut readers = Vec::from_iter((0..3).map(|_| Reader::subscribed(2, address).unwrap()));
    assert!(Reader::new(2, address).is_none(), "an address has three of four");
    readers.push(Reader::subscribed(3, address).unwrap());
    assert!(Reader::new(4, address).is_none(), "all read");
    observer(&KvEvent::AllBlocksCleared);
    readers.iter_mut().for_each(|reader| assert_eq!(reader.number(), 0));
    // Who wants nothing any more makes room.
    readers[0].says(b"\x00kv@");
    readers[0].is_heard();
    let mut next = Reader::subscribed(2, address).unwrap();
    assert!(is_closed(readers.swap_remove(0).stream));
    observer(&KvEvent::AllBlocksCleared);
    assert_eq!(next.number(), 1);
}

/// Who is gone without a word more, in the middle of what it reads, gives its place back.
#[test]
fn readers_that_are_cut_off_make_room() {
    let (publisher, mut observer) = publish(4);
    let address = publisher.address();
    let readers = Vec::from_iter((0..3).map(|_| Reader::subscribed(2, address).unwrap()));
    observer(&KvEvent::AllBlocksCleared);
    for reader in readers {
        // The system then resets the connection.
        let socket = socket2::SockRef::from(&reader.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
    // Their threads may not have noticed yet.
    let next = || Reader::subscribed(2, address);
    let mut next = std::iter::repeat_with(next).flatten().next().unwrap();
    observer(&KvEvent::AllBlocksCleared);
    assert_eq!(next.number(), 1);
}

/// Who asks for what was missed waits for questions between them, and makes room then.
#[test]
fn who_asks_for_a_replay_makes_room_between_questions() {
    let endpoint = |port| format!("tcp://127.0.0.1:{port}").parse().unwrap();
    // Another process may take the port that was free.
    let bound = || {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let replays = free.local_addr().unwrap();
        drop(free);
        let options = KvPublisherOptions {
            replay_endpoint: Some(endpoint(replays.port())),
            most_readers: 1,
            ..KvPublisherOptions::new(endpoint(0))
        };
        KvPublisher::bind(options).ok().map(|publisher| (publisher, replays))
    };
    let (publisher, replays) = (0..100).find_map(|_| bound()).unwrap();
    publisher.observer()(&KvEvent::AllBlocksCleared);
    let asks = || {
        // The other one may not be done.
        let started = Instant::now();
        let dealer = || Connection::new(connected(2, replays), Role::Dealer, b"").ok();
        let tries = std::iter::repeat_with(dealer).take_while(|_| started.elapsed() < PATIENCE);
        let dealer = tries.flatten().next().unwrap();
        let (mut answers, mut questions) = dealer.split();
        answers.set_patience(PATIENCE).unwrap();
        questions.send(&[b"", &0_u64.to_be_bytes()]).unwrap();
        let batch = answers.receive(&mut |_| {}).unwrap().unwrap();
        assert_eq!(batch[1], 0_u64.to_be_bytes());
        let end = answers.receive(&mut |_| {}).unwrap().unwrap();
        assert_eq!(end[1], u64::MAX.to_be_bytes());
        answers
    };
    let mut first = asks();
    asks();
    assert!(first.receive(&mut |_| {}).is_err(), "it made room");
}
