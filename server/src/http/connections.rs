//! Connections: taken, bounded in number and time, and closed.

use super::client::Connected;
use super::descriptors;
use super::patient::Patient;
use super::pieces::in_pieces;
use super::state::Limits;
use super::tls::Tls;
use super::watched::watched;
use crate::places::{Admitted, Place, Places};
use crate::seldom::Seldom;
use axum::Router;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// The connection's buffer, which the head of a request has to fit into, is never smaller.
const LEAST_HEAD: usize = 8 << 10;

/// What the system holds for a client that takes it slowly, in bytes: left to itself it holds
/// megabytes, and tells that some was taken once a third of them is.
pub(super) const SEND_BYTES: u32 = 256 << 10;
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;

/// Listens at the first of the addresses that can be had. Must be called within a runtime, which the
/// socket is polled by.
pub(crate) fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut failures = Vec::new();
    for &address in addresses {
        match listen_at(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failures.push((address, error)),
        }
    }
    match failures.len() {
        0 => Err(io::Error::other("there is no address to listen at")),
        1 => Err(failures.remove(0).1),
        _ => {
            let each = failures.iter().map(|(address, error)| format!("{address}: {error}"));
            Err(io::Error::new(failures[0].1.kind(), Vec::from_iter(each).join("; ")))
        }
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What connections may ask: everything, or how the server is.
#[derive(Clone)]
pub(crate) struct Routers {
    pub(crate) all: Router,
    pub(crate) probes: Router,
}

/// Takes connections until `closing` says so. Those that have a whole request by then go on to the end
/// of their answer; each keeps a receiver of `closing` until then.
pub(crate) async fn accept(
    listener: TcpListener,
    routers: Routers,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    mut closing: watch::Receiver<bool>,
) {
    let kept = limits.probe_connections;
    let most = descriptors::bounded(limits.connections, kept, limits.kv_readers);
    let of_address = limits.of_address(most);
    let places = Places::new(most, of_address, kept);
    let mut refused = Seldom::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed(&mut closing) => return,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: some will be given back.
                refused.tell(|count| tracing::warn!("{count} connections can't be taken: {error}"));
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let leave = Arc::new(Notify::new());
        let told = Arc::clone(&leave);
        let tell = Arc::new(move || told.notify_one());
        let Some((place, admitted)) = places.take(from.ip(), tell) else {
            refused.tell(|count| {
                tracing::warn!(
                    "{count} connections were closed: there are {most} (--max-connections), \
                     {of_address} of an address, and none is idle"
                );
            });
            continue;
        };
        // A small token is not to wait for the next one.
        let _ = stream.set_nodelay(true);
        let (tls, routers, closing) = (tls.clone(), routers.clone(), closing.clone());
        let held = Held { place, admitted, leave };
        tokio::spawn(serve(stream, held, routers, limits, tls, closing));
    }
}

/// What a connection reads from and writes to.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

/// A connection's place.
struct Held {
    place: Arc<Place>,
    admitted: Admitted,
    /// By this it is told to leave.
    leave: Arc<Notify>,
}

async fn serve(
    stream: TcpStream,
    Held { place, admitted, leave }: Held,
    routers: Routers,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    mut closing: watch::Receiver<bool>,
) {
    let stream = Arc::new(stream);
    let patient = Patient::new(Arc::clone(&stream), Arc::clone(&place), limits.write_time);
    let io: Box<dyn Io> = match tls {
        None => Box::new(patient),
        Some(tls) => {
            let shaken = tokio::select! {
                shaken = timeout(limits.head_time, tls.accept(patient)) => shaken,
                () = leave.notified() => return,
                () = is_left(&stream) => return,
                () = closed(&mut closing) => return,
            };
            match shaken {
                Ok(Ok(io)) => Box::new(io),
                Ok(Err(error)) => {
                    return tracing::debug!("a connection has no TLS: {error}");
                }
                Err(_) => return tracing::debug!("a connection took too long to agree on TLS"),
            }
        }
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head_time);
    // A token is a few hundred bytes: to copy them once more costs less than to list them.
    builder.max_buf_size(limits.head_bytes.max(LEAST_HEAD)).writev(false);
    // Who may only ask how the server is gives the place back for the next who asks.
    builder.keep_alive(admitted == Admitted::ToAll);
    let router = TowerToHyperService::new(match admitted {
        Admitted::ToAll => routers.all,
        Admitted::ToProbes => routers.probes,
    });
    let service = service_fn(|mut request: Request<Incoming>| {
        place.begin();
        let leave = Arc::clone(place.leave());
        request.extensions_mut().insert(Connected { address: place.address(), leave });
        let at_end = Arc::clone(&place);
        let request = request.map(|body| watched(body, move || at_end.heard()));
        let (answer, place) = (router.call(request), Arc::clone(&place));
        async move {
            let answer = answer.await?;
            place.heard();
            Ok::<_, Infallible>(answer.map(|body| watched(in_pieces(body), move || place.given())))
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    // Each is looked at when it is woken, and not with every token.
    let mut ends = FuturesUnordered::<BoxFuture<'_, bool>>::new();
    ends.push(leave.notified().map(|()| false).boxed());
    ends.push(is_left(&stream).map(|()| false).boxed());
    ends.push(closed(&mut closing).map(|()| true).boxed());
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut connection => break ended,
            drains = ends.next() => {
                if drains != Some(true) {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                if !place.answers() {
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}

/// Waits until the other side has closed, whatever it has sent before that nobody has read: hyper does
/// not look while it holds bytes that it has not come to.
async fn is_left(stream: &TcpStream) {
    // Of what is waited for here, nothing but the end comes.
    while stream.ready(Interest::PRIORITY).await.is_ok_and(|ready| !ready.is_read_closed()) {
        tokio::task::yield_now().await;
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // A sender that is gone closes too.
    drop(closing.wait_for(|closes| *closes).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    /// A body without an end says by this that it was dropped.
    struct Told(mpsc::UnboundedSender<()>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[tokio::test]
    async fn a_server_listens_at_the_first_address_that_it_can_have() {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let other = listen(&[free]).unwrap();
        let taken = other.local_addr().unwrap();
        let listener = listen(&[taken, free]).unwrap();
        assert_ne!(listener.local_addr().unwrap(), taken);
        let error = listen(&[taken]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let error = listen(&[taken, taken]).unwrap_err().to_string();
        assert_eq!(error.matches(&taken.to_string()).count(), 2, "{error}");
        assert!(listen(&[]).is_err());
    }

    fn routers(all: Router) -> Routers {
        Routers { all, probes: Router::new().route("/health", get(async || "well")) }
    }

    /// Requests that say when they are there and when they were given up, and wait until they may go on.
    struct Waiting {
        address: SocketAddr,
        there: mpsc::UnboundedReceiver<()>,
        dropped: mpsc::UnboundedReceiver<()>,
        go_on: Arc<tokio::sync::Semaphore>,
        close: watch::Sender<bool>,
    }

    fn waiting(limits: Limits) -> Waiting {
        let (is_there, there) = mpsc::unbounded_channel();
        let (told, dropped) = mpsc::unbounded_channel();
        let go_on = Arc::new(tokio::sync::Semaphore::new(0));
        let may = Arc::clone(&go_on);
        let answer = move |_body: Bytes| {
            let held = Told(told.clone());
            let (is_there, may) = (is_there.clone(), Arc::clone(&may));
            async move {
                is_there.send(()).unwrap();
                may.acquire().await.unwrap().forget();
                drop(held);
                "answer"
            }
        };
        let listener = listen(&[([127, 0, 0, 1], 0).into()]).unwrap();
        let address = listener.local_addr().unwrap();
        let (close, closing) = watch::channel(false);
        let all = Router::new().route("/", get(answer));
        tokio::spawn(accept(listener, routers(all), limits, None, closing));
        Waiting { address, there, dropped, go_on, close }
    }

    impl Waiting {
        async fn client(&self, sends: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(sends.as_bytes()).await.unwrap();
            stream
        }
    }

    /// All that comes until the connection is closed, also by a reset.
    async fn rest(mut stream: TcpStream) -> String {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        String::from_utf8(bytes).unwrap()
    }

    const ASKS: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const ASKS_HEALTH: &str = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";

    #[tokio::test]
    async fn who_leaves_gives_up_its_request_whatever_it_sent_after_it() {
        let mut server = waiting(Limits::default());
        for after in ["", "G", "\r\n", ASKS] {
            let client = server.client(&format!("{ASKS}{after}")).await;
            server.there.recv().await.unwrap();
            assert!(server.dropped.is_empty(), "it is there");
            drop(client);
            server.dropped.recv().await.unwrap();
        }
    }

    #[tokio::test]
    async fn who_waits_longest_makes_room_and_probes_have_places_of_their_own() {
        let limits =
            Limits { connections: 2, connections_of_address: Some(2), ..Limits::default() };
        let mut server = waiting(limits);
        let idle = server.client("").await;
        let mut asking = Vec::new();
        for _ in 0..2 {
            asking.push(server.client(ASKS).await);
            server.there.recv().await.unwrap();
        }
        assert_eq!(rest(idle).await, "");
        let probe = rest(server.client(ASKS_HEALTH).await).await;
        assert!(probe.starts_with("HTTP/1.1 200") && probe.ends_with("well"), "{probe}");
        let other = rest(server.client(ASKS).await).await;
        assert!(other.starts_with("HTTP/1.1 404"), "only probes: {other}");
        assert!(server.dropped.is_empty(), "requests keep their places");
        // Who has its answer makes room again.
        server.go_on.add_permits(2);
        for client in &mut asking {
            let mut answer = [0; 8];
            client.read_exact(&mut answer).await.unwrap();
        }
        let next = server.client(ASKS).await;
        server.there.recv().await.unwrap();
        drop(next);
    }

    #[tokio::test]
    async fn a_server_that_closes_waits_for_answers_alone() {
        let mut server = waiting(Limits::default());
        let asking = server.client(ASKS).await;
        server.there.recv().await.unwrap();
        let mut others = Vec::new();
        for start in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"] {
            others.push(server.client(start).await);
        }
        // It is taken when those before it are.
        let last = server.client(ASKS).await;
        server.there.recv().await.unwrap();
        server.close.send(true).unwrap();
        for other in others {
            assert_eq!(rest(other).await, "");
        }
        assert!(server.dropped.is_empty(), "whole requests go on");
        server.go_on.add_permits(2);
        for client in [asking, last] {
            let answer = rest(client).await;
            assert!(answer.ends_with("answer"), "{answer}");
        }
        server.close.closed().await;
    }

    /// What is not sent yet of an answer is there once, and not once more where it was copied to.
    #[tokio::test]
    async fn an_answer_is_given_back_once_it_is_taken() {
        struct Answer {
            bytes: Vec<u8>,
            _told: Told,
        }
        impl AsRef<[u8]> for Answer {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        // More than the sockets of both sides hold.
        const BYTES: usize = 16 << 20;
        let (dropped, mut told) = mpsc::unbounded_channel();
        let answer = move || {
            let answer = Answer { bytes: vec![b'x'; BYTES], _told: Told(dropped.clone()) };
            async move { Body::from(Bytes::from_owner(answer)) }
        };
        let listener = listen(&[([127, 0, 0, 1], 0).into()]).unwrap();
        let address = listener.local_addr().unwrap();
        let (_close, closing) = watch::channel(false);
        let all = Router::new().route("/", get(answer));
        tokio::spawn(accept(listener, routers(all), Limits::default(), None, closing));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(ASKS.as_bytes()).await.unwrap();
        let mut bytes = vec![0; BYTES];
        client.read_exact(&mut bytes[..1]).await.unwrap();
        assert!(told.is_empty(), "most of it was not sent");
        client.read_exact(&mut bytes).await.unwrap();
        told.recv().await.unwrap();
    }

    /// A client that takes nothing is closed once its time is over, and one that takes some is not.
    #[tokio::test]
    async fn who_takes_nothing_is_closed() {
        let (dropped, mut told) = mpsc::unbounded_channel();
        let endless = move || {
            let held = Told(dropped.clone());
            let chunks = futures_util::stream::repeat_with(move || {
                let _ = &held;
                Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 1 << 14]))
            });
            async move { Body::from_stream(chunks) }
        };
        for write_time in [Duration::from_millis(1), Duration::from_secs(3600)] {
            let listener = listen(&[([127, 0, 0, 1], 0).into()]).unwrap();
            let address = listener.local_addr().unwrap();
            let limits = Limits { write_time, ..Limits::default() };
            let (close, closing) = watch::channel(false);
            let all = Router::new().route("/", get(endless.clone()));
            tokio::spawn(accept(listener, routers(all), limits, None, closing));
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(ASKS.as_bytes()).await.unwrap();
            if write_time > Duration::from_secs(1) {
                // More than the sockets of both sides hold.
                let mut some = vec![0; 8 << 20];
                client.read_exact(&mut some).await.unwrap();
                assert!(told.is_empty(), "who takes some is closed too");
                drop(client);
                told.recv().await.unwrap();
            } else {
                told.recv().await.unwrap();
            }
            close.send(true).unwrap();
            close.closed().await;
        }
    }
}
