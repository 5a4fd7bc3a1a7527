//! What a server says before it has a model.

use crate::client::{ask, bind};

/// It is alive and not ready, and whoever asks is told to come back.
#[test]
fn while_the_model_is_loaded_a_server_is_alive_and_not_ready() {
    let server = bind();
    let address = server.address();
    assert!(address.ip().is_loopback());
    assert!(ask(address, "GET /health", "").starts_with("HTTP/1.1 200 "));
    let ready = ask(address, "GET /ready", "");
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(ready.ends_with("the model is being loaded\n"), "{ready}");
    for request in ["POST /v1/completions", "POST /v1/chat/completions", "GET /metrics"] {
        let answer = ask(address, request, "{}").to_lowercase();
        assert!(answer.starts_with("http/1.1 503 "), "{request}: {answer}");
        assert!(answer.contains("\r\nretry-after: 2\r\n"), "{request}: {answer}");
        assert!(answer.contains("\"service_unavailable\""), "{request}: {answer}");
    }
}
