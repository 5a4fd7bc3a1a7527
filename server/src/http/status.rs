//! What a process that serves by other means than HTTP says of itself: how it is, its metrics, and what
//! operators ask. Connections are bounded as those of a server.

use super::connections::{self, Routers, SEND_BYTES};
use super::state::Limits;
use super::{descriptors, origins};
use crate::operate::{Order, Refusal, Reply};
use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use piecewise_runtime::engine_thread::EngineHandle;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a client may take for the head of a request, and until it takes some of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who asks is few: orchestrators, monitors and operators.
const MOST: usize = 128;

/// What a process says of itself.
pub trait Status: Send + Sync + 'static {
    /// What there is at a path, with its status.
    fn at(&self, path: &str) -> (StatusCode, String);
}

/// Answers at most 128 clients at a time, 96 of an address, on a thread of its own, to the end of the
/// process; for a further one the longest idle goes. An engine takes what operators order, by whoever
/// reaches this on this machine.
///
/// # Errors
/// When the system gives no thread.
pub fn answer_status(
    listener: TcpListener,
    operated: Option<EngineHandle>,
    status: impl Status,
) -> io::Result<SocketAddr> {
    let limits = Limits {
        head_time: PATIENCE,
        write_time: PATIENCE,
        connections: MOST,
        ..Limits::default()
    };
    answer_within(limits, listener, operated, status)
}

fn answer_within(
    limits: Limits,
    listener: TcpListener,
    operated: Option<EngineHandle>,
    status: impl Status,
) -> io::Result<SocketAddr> {
    descriptors::raise();
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    // Metrics fit: who takes them slowly keeps nothing waiting but the system.
    rustix::net::sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES as usize)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let router = router(operated, status);
    std::thread::Builder::new().name("probes".to_owned()).spawn(move || {
        let (_open, closing) = watch::channel(false);
        let routers = Routers { all: router.clone(), probes: router };
        runtime.block_on(connections::accept(listener, routers, limits, None, closing));
    })?;
    Ok(address)
}

fn router(operated: Option<EngineHandle>, status: impl Status) -> Router {
    let shared = Arc::new((operated, status));
    Router::new().fallback(move |head: Parts| {
        let shared = Arc::clone(&shared);
        async move {
            let (operated, status) = &*shared;
            if let Some(engine) = operated
                && let Some(response) = operate(engine, &head).await
            {
                return response;
            }
            match head.method {
                Method::GET => {
                    let (code, text) = status.at(head.uri.path());
                    said(code, text)
                }
                _ => said(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
            }
        }
    })
}

/// What becomes of an order, where it is one.
async fn operate(engine: &EngineHandle, head: &Parts) -> Option<Response> {
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let order = Order::read(head.method.as_str(), path, query);
    if order == Err(Refusal::NoPath) {
        return None;
    }
    // Nobody has a key here, and only this machine reaches it.
    if let Err(why) = origins::check_operator(&head.headers) {
        return Some(said(StatusCode::FORBIDDEN, format!("{why}\n")));
    }
    let (answer, answered) = oneshot::channel();
    match order {
        Err(refusal) => return Some(refused(&refusal)),
        Ok(order) => order.give(engine, Box::new(move |result| drop(answer.send(result)))),
    }
    Some(match answered.await {
        Ok(Ok(Reply::Trace(bytes))) => {
            response(StatusCode::OK, "application/octet-stream", Body::from(bytes))
        }
        Ok(Ok(Reply::Json(result))) => said(StatusCode::OK, format!("{result}\n")),
        Ok(Err(refusal)) => refused(&refusal),
        Err(_) => said(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped\n".to_owned()),
    })
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Parameter { .. } => StatusCode::BAD_REQUEST,
        Refusal::NoPath => StatusCode::NOT_FOUND,
        Refusal::Profile(_) => StatusCode::CONFLICT,
        Refusal::Asleep => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    said(status, format!("{refusal}\n"))
}

fn said(status: StatusCode, text: String) -> Response {
    response(status, "text/plain; version=0.0.4; charset=utf-8", Body::from(text))
}

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    struct Well;

    impl Status for Well {
        fn at(&self, path: &str) -> (StatusCode, String) {
            match path {
                "/health" => (StatusCode::OK, "well\n".to_owned()),
                _ => (StatusCode::NOT_FOUND, "there is /health\n".to_owned()),
            }
        }
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    /// What there is at the end of a connection, also of one that was reset.
    fn rest(mut stream: TcpStream) -> String {
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn asked(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        rest(stream)
    }

    /// Nobody's time is over here: who says nothing, or half a head, goes for the next.
    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        const HOUR: Duration = Duration::from_secs(3600);
        let limits =
            Limits { head_time: HOUR, write_time: HOUR, connections: 4, ..Limits::default() };
        let address = answer_within(limits, listener(), None, Well).unwrap();
        let idle = Vec::from_iter((0..40).map(|number| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&b"GET /health HT"[..number % 15]).unwrap();
            stream
        }));
        let answer = asked(address, "GET /health");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nwell\n"),
            "{answer}"
        );
        for (stream, _) in idle.into_iter().zip(0..36) {
            assert_eq!(rest(stream), "");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let address = answer_status(listener(), None, Well).unwrap();
        for (request, begins, ends) in [
            ("GET /nothing", "HTTP/1.1 404", "there is /health\n"),
            ("POST /health", "HTTP/1.1 405", "only GET\n"),
            ("POST /sleep", "HTTP/1.1 405", "only GET\n"),
        ] {
            let answer = asked(address, request);
            assert!(answer.starts_with(begins) && answer.ends_with(ends), "{request}: {answer}");
        }
    }

    /// Whose time for a whole head is over is closed, however few ask.
    #[test]
    fn who_sends_half_a_head_is_closed_when_its_time_is_over() {
        let limits = Limits { head_time: Duration::from_millis(1), ..Limits::default() };
        let address = answer_within(limits, listener(), None, Well).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        // It may be closed by now.
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: ");
        assert_eq!(rest(stream), "");
    }
}
