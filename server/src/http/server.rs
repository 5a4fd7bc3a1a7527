//! The life of a server: it listens, loads, serves, drains and ends.

use super::aside::{Turns, alone};
use super::body::BodyMemory;
use super::connections::Routers;
use super::encoder::{EncoderState, ServedEncoder};
use super::error::ApiError;
use super::keys::ApiKeys;
use super::origins::AllowedOrigins;
use super::state::{Limits, Served, ServedModel, State, now};
use super::tls::Tls;
use super::{
    access, chat_completions, client, completions, connections, descriptors, encoder, messages,
    models, openapi, operator, origins, passed, probes, sent,
};
use crate::operate::OPERATOR_PATHS;
use axum::routing::{MethodRouter, get, post};
use axum::{Router, extract::Request, middleware};
use piecewise::encoding::{EncoderThread, TextModel};
use piecewise_runtime::engine_thread::{EngineThread, Phase};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Large texts and bodies that are read at a time, however many cores there are: each takes memory.
const MOST_LARGE_TEXTS: usize = 4;
/// And other texts.
const MOST_TEXTS: usize = 16;

/// How a server is reached, and by whom.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it may listen, as a name may stand for several; it does at the first that can be had. Port 0
    /// is one that is free.
    pub addresses: Vec<SocketAddr>,
    /// The names of the model; answers have the first.
    pub model_names: Vec<String>,
    /// The keys of those who may ask.
    pub keys: ApiKeys,
    /// The sites whose pages may ask by a browser.
    pub origins: AllowedOrigins,
    /// What a client may take.
    pub limits: Limits,
    /// How it proves who it is; `None` talks without TLS.
    pub tls: Option<Arc<Tls>>,
    /// Whether there are the paths of [`OPERATOR_PATHS`], for whoever has a key.
    pub admin: bool,
    /// Threads that talk to clients; there are not more than cores. A token takes one of them some
    /// microseconds, and more threads wake each other for less to do.
    pub threads: NonZeroUsize,
}

/// Whether every request had its answer when a server ended, and if not, why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Every request that it had taken got its answer, as far as its client took it in time.
    Drained,
    /// It was told to end at once.
    Ended,
    /// The engine's thread has died.
    Died,
}

/// A server that listens. Until its model is there, it is alive and not ready.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    state: Arc<State>,
    address: SocketAddr,
    closing: watch::Sender<bool>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// When the address can't be had, or the system gives no threads.
    pub fn bind(options: ServerOptions) -> io::Result<Self> {
        let ServerOptions { addresses, model_names, keys, origins, limits, tls, admin, threads } =
            options;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let aside = cores.max(2);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.min(threads.get()))
            // Half of them for texts and structures that take long, in their turns, and one for the longest.
            .max_blocking_threads(2 * aside + 1)
            .thread_name("http")
            .enable_all()
            .build()?;
        descriptors::raise();
        let listener = runtime.block_on(async { connections::listen(&addresses) })?;
        let address = listener.local_addr()?;
        let waiting = |turns| Turns::new(turns, limits.waiting_texts, "--max-waiting-texts");
        let state = Arc::new(State {
            names: model_names,
            keys,
            origins,
            is_loopback: address.ip().is_loopback(),
            limits,
            admin,
            bodies: BodyMemory::new(limits.bodies_bytes),
            structure_turns: waiting(aside / 2),
            text_turns: waiting((aside / 2).min(MOST_LARGE_TEXTS)),
            huge_turns: waiting(1),
            // As many as there may be connections wait.
            small_turns: Turns::new(aside.min(MOST_TEXTS), limits.connections, "--max-connections"),
            started: now(),
            served: OnceLock::new(),
            encoder: OnceLock::new(),
        });
        let (closing, closes) = watch::channel(false);
        if let Some(tls) = &tls {
            runtime.spawn(runtime.block_on(async { tls.reloads() })?);
        }
        runtime.spawn(connections::accept(listener, routers(&state), limits, tls, closes));
        Ok(Self { runtime, state, address, closing })
    }

    /// The address that it listens at, with the port that the system gave it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves with an engine until a signal comes (SIGTERM, SIGINT): then running requests get their
    /// answers, and new ones are refused. A second signal ends it at once. `ready` is called once requests
    /// are taken.
    ///
    /// # Errors
    /// When signals can't be listened for.
    pub fn serve(
        self,
        engine: EngineThread,
        model: ServedModel,
        ready: impl FnOnce(),
    ) -> io::Result<Outcome> {
        let handle = engine.handle().clone();
        self.state.keys.count(handle.metrics());
        // It is set once: `serve` takes the server.
        let _ =
            self.state.served.set(Served::new(handle.clone(), model, self.state.bodies.of_one()));
        let life = Life {
            live: || handle.live_requests(),
            finish: move || engine.finish().is_some(),
            stop: || handle.stop(),
        };
        self.run(life, ready)
    }

    /// As [`Self::serve`], with an encoder.
    ///
    /// # Errors
    /// As there.
    pub fn serve_encoder(
        self,
        thread: EncoderThread<TextModel>,
        encoder: ServedEncoder,
        ready: impl FnOnce(),
    ) -> io::Result<Outcome> {
        let handle = thread.handle().clone();
        self.state.keys.count(handle.metrics());
        let _ = self.state.encoder.set(EncoderState::new(
            handle.clone(),
            encoder,
            self.state.bodies.of_one(),
        ));
        let life = Life {
            live: || handle.live_calls(),
            finish: move || {
                let finished = thread.finish();
                finished.is_some_and(|mut encoder| {
                    if let Err(error) = encoder.finish_log() {
                        tracing::error!("the log of items is not whole: {error}");
                    }
                    true
                })
            },
            stop: || handle.stop(),
        };
        self.run(life, ready)
    }

    /// Until a signal comes, and to the end of what is there then.
    fn run(
        self,
        life: Life<impl Fn() -> usize, impl FnOnce() -> bool + Send + 'static, impl FnOnce()>,
        ready: impl FnOnce(),
    ) -> io::Result<Outcome> {
        let Self { runtime, state, closing, .. } = self;
        let Life { live, finish, stop } = life;
        let outcome = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            ready();
            let mut died = tokio::time::interval(Duration::from_secs(1));
            loop {
                tokio::select! {
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                    _ = died.tick() => if state.phase() == Some(Phase::Stopped) {
                        return Ok(Outcome::Died);
                    }
                }
            }
            tracing::info!("draining: {} requests are there", live());
            let drained = async {
                let finished = alone(finish).await?;
                // What is sent to clients is sent to its end, as far as they take it in time.
                let _ = closing.send(true);
                let time = state.limits.write_time;
                if tokio::time::timeout(time, closing.closed()).await.is_err() {
                    tracing::warn!(
                        "connections closed before their clients had taken the answers, {} seconds \
                         after the last had come (--client-timeout): {}",
                        time.as_secs(),
                        closing.receiver_count()
                    );
                }
                Ok::<_, io::Error>(finished == Some(true))
            };
            let outcome = tokio::select! {
                drained = drained => if drained? { Outcome::Drained } else { Outcome::Died },
                _ = terminate.recv() => Outcome::Ended,
                _ = interrupt.recv() => Outcome::Ended,
            };
            Ok::<_, io::Error>(outcome)
        })?;
        stop();
        runtime.shutdown_background();
        Ok(outcome)
    }
}

/// The thread that a server's answers come from.
struct Life<L, F, S> {
    /// Counts the requests that have not ended.
    live: L,
    /// Waits for their ends; whether they came.
    finish: F,
    /// Ends the requests that are left.
    stop: S,
}

type Routes = Vec<(&'static str, MethodRouter<Arc<State>>)>;

/// What only those with a key may ask, where keys are asked for.
fn guarded() -> Routes {
    vec![
        ("/v1/completions", post(completions::handle)),
        ("/completions", post(completions::handle)),
        ("/v1/chat/completions", post(chat_completions::handle)),
        ("/chat/completions", post(chat_completions::handle)),
        ("/v1/messages", post(messages::handle)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/embeddings", post(encoder::embeddings)),
        ("/embeddings", post(encoder::embeddings)),
        ("/v1/score", post(encoder::score)),
        ("/score", post(encoder::score)),
        ("/v1/rerank", post(encoder::rerank)),
        ("/v2/rerank", post(encoder::rerank)),
        ("/rerank", post(encoder::rerank)),
        ("/v1/models", get(models::list)),
        ("/models", get(models::list)),
        ("/v1/models/{*name}", get(models::one)),
        ("/tokenize", post(models::tokenize)),
        ("/detokenize", post(models::detokenize)),
        ("/load", get(probes::load)),
        ("/server_info", get(probes::server_info)),
    ]
}

/// What an operator may ask, with a key as everybody.
fn of_operators() -> Routes {
    let routes = OPERATOR_PATHS.iter().map(|known| match known.method {
        "GET" => (known.path, get(operator::handle)),
        _ => (known.path, post(operator::handle)),
    });
    routes.collect()
}

/// Paths that need no API key.
fn open() -> Routes {
    vec![
        ("/health", get(probes::health)),
        ("/ping", get(probes::health)),
        ("/version", get(probes::version)),
        ("/ready", get(probes::ready)),
        ("/metrics", get(probes::metrics)),
        ("/openapi.json", get(openapi::document)),
        ("/docs", get(openapi::page)),
    ]
}

/// Every path there is.
#[cfg(test)]
pub(super) fn paths(admin: bool) -> impl Iterator<Item = &'static str> {
    let of_operators = of_operators().into_iter().filter(move |_| admin);
    guarded().into_iter().chain(of_operators).chain(open()).map(|(path, _)| path)
}

fn routers(state: &Arc<State>) -> Routers {
    let with = |routes: Routes| {
        routes.into_iter().fold(Router::new(), |all, (path, route)| all.route(path, route))
    };
    let admitted = |router: Router<Arc<State>>| {
        router
            .route_layer(middleware::from_fn_with_state(Arc::clone(state), access::admit))
            .route_layer(middleware::from_fn_with_state(Arc::clone(state), origins::admit))
    };
    let of_operators = || match state.admin {
        true => admitted(with(of_operators())).route_layer(middleware::from_fn_with_state(
            Arc::clone(state),
            origins::admit_operator,
        )),
        false => Router::new(),
    };
    let logged = |router: Router<Arc<State>>| {
        let router = match state.origins.layer() {
            Some(layer) => router.layer(layer),
            None => router,
        };
        let router = router.layer(middleware::from_fn(messages::adapt));
        router.layer(middleware::from_fn(access::log)).with_state(Arc::clone(state))
    };
    let guarded = with(guarded()).route_layer(middleware::from_fn(client::count));
    let held = middleware::from_fn_with_state(Arc::clone(state), sent::hold);
    let asked = admitted(guarded.route_layer(held));
    let asked = match state.limits.ignores_unknown_fields {
        true => asked.route_layer(middleware::from_fn(passed::name)),
        false => asked,
    };
    let all = asked
        .merge(of_operators())
        .merge(with(open()))
        .fallback(async |request: Request| ApiError::no_path(request.uri().path()))
        .method_not_allowed_fallback(async || ApiError::wrong_method());
    let probes = of_operators().merge(with(open()));
    let probes = probes.fallback(async || ApiError::crowded());
    Routers { all: logged(all), probes: logged(probes) }
}

#[cfg(test)]
mod tests {
    use super::super::body::LARGEST_HERE;
    use super::super::client::Client;
    use super::super::fields::Fields;
    use super::super::state::HUGE;
    use super::*;
    use crate::structured::Wanted;
    use axum::body::Body;
    use std::sync::mpsc;
    use tokio::task::JoinHandle;

    /// The thread that takes the fields of a body with so many bytes of `user`.
    fn takes(server: &Server, bytes: usize) -> std::thread::ThreadId {
        let body = Body::from(format!("{{\"user\": \"{}\"}}", "x".repeat(bytes)));
        let state = Arc::clone(&server.state);
        let take = |_: &State, fields: Fields| {
            drop(fields);
            Ok(std::thread::current().id())
        };
        let read = async move { Fields::read(Request::new(body), &state, take).await };
        server.runtime.block_on(server.runtime.spawn(read)).unwrap().unwrap()
    }

    fn bound() -> Server {
        let options = ServerOptions {
            addresses: vec![([127, 0, 0, 1], 0).into()],
            model_names: vec!["tiny".to_owned()],
            keys: ApiKeys::default(),
            origins: AllowedOrigins::default(),
            limits: Limits::default(),
            tls: None,
            admin: false,
            threads: NonZeroUsize::MIN,
        };
        Server::bind(options).unwrap()
    }

    /// Though their bodies are small, as where a template repeats what it is given.
    #[test]
    fn the_longest_texts_are_read_one_at_a_time() {
        let server = bound();
        let (begun, begins) = mpsc::channel();
        let read = |number: u32, longest: usize| {
            let (state, begun) = (Arc::clone(&server.state), begun.clone());
            let (go_on, goes_on) = mpsc::channel::<()>();
            let read = server.runtime.spawn(async move {
                let held = state.bodies.hold(Client::default());
                let work = move |_: Wanted<'_>| {
                    begun.send(number).unwrap();
                    goes_on.recv().unwrap();
                    Ok::<_, ApiError>(number)
                };
                state.read_texts(&held, longest, work).await
            });
            (read, go_on)
        };
        let end = |(read, go_on): (JoinHandle<Result<u32, ApiError>>, mpsc::Sender<()>)| {
            go_on.send(()).unwrap();
            server.runtime.block_on(read).unwrap().unwrap()
        };
        let first = read(1, HUGE + 1);
        assert_eq!(begins.recv().unwrap(), 1);
        let (left, second, small) = (read(2, HUGE + 1), read(3, HUGE + 1), read(4, HUGE));
        assert_eq!(begins.recv().unwrap(), 4, "what is shorter waits for none of them");
        left.0.abort();
        assert!(server.runtime.block_on(left.0).unwrap_err().is_cancelled());
        assert_eq!((end(small), end(first)), (4, 1));
        assert_eq!(begins.recv().unwrap(), 3, "who left has nothing read");
        assert_eq!(end(second), 3);
        assert!(begins.try_recv().is_err());
    }

    #[test]
    fn large_bodies_are_taken_apart_on_no_thread_that_others_wait_for() {
        let server = bound();
        let own = server.runtime.spawn(async { std::thread::current().id() });
        let own = server.runtime.block_on(own).unwrap();
        assert_eq!(takes(&server, 10), own);
        assert_ne!(takes(&server, LARGEST_HERE), own);
    }
}
