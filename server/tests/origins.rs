//! What a browser asks for a page: of this server, of a site that may ask, and of others.

use crate::client::{ask_with, bind, bind_as};
use piecewise_server::{AllowedOrigins, ApiKeys};
use std::net::SocketAddr;

fn status(address: SocketAddr, request: &str, headers: &str) -> (u16, String) {
    let answer = ask_with(address, request, headers, "{}");
    (answer[9..12].parse().unwrap(), answer.to_ascii_lowercase())
}

const COMPLETIONS: &str = "POST /v1/completions";
const SLEEP: &str = "POST /sleep?level=2&mode=abort";

/// 403 is for the page; what has no model yet is 503, and 401 asks for a key.
#[test]
fn a_page_of_another_site_asks_in_vain() {
    let server = bind();
    let own = server.address();
    for (headers, asks, orders) in [
        ("Host: localhost\r\n", 503, 503),
        ("Host: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:80\r\n", 503, 503),
        ("Host: localhost\r\nOrigin: https://evil.example\r\n", 403, 403),
        ("Host: localhost\r\nOrigin: null\r\nContent-Type: text/plain\r\n", 403, 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403, 403),
        // A name that another site points here, and one that no site has.
        ("Host: evil.example\r\nOrigin: http://evil.example\r\n", 403, 403),
        ("Host: evil.example\r\n", 403, 403),
        ("Host: gpu-box:8000\r\n", 503, 403),
    ] {
        assert_eq!(status(own, COMPLETIONS, headers).0, asks, "{headers}");
        let (found, answer) = status(own, SLEEP, headers);
        assert_eq!(found, orders, "{headers}");
        assert!(found != 403 || answer.contains("\"code\":\"foreign_site\""), "{answer}");
        assert_eq!(status(own, "GET /health", headers).0, 200, "{headers}");
    }
    // A proxy that hands names on.
    let origins = AllowedOrigins::new(["https://models.example"]).unwrap();
    let behind = bind_as(|options| options.origins = origins);
    let named = "Host: models.example\r\n";
    assert_eq!(status(behind.address(), COMPLETIONS, named).0, 503);
    assert_eq!(status(behind.address(), SLEEP, named).0, 403);
    let keyed = bind_as(|options| options.keys = ApiKeys::of_lines("k").unwrap());
    let foreign = "Host: evil.example\r\nOrigin: https://evil.example\r\n";
    assert_eq!(status(keyed.address(), COMPLETIONS, foreign).0, 401);
    let with_key = format!("{foreign}Authorization: Bearer k\r\n");
    assert_eq!(status(keyed.address(), SLEEP, &with_key).0, 503);
}

#[test]
fn pages_that_may_ask_are_told_so() {
    let allowed = AllowedOrigins::new(["https://chat.example"]).unwrap();
    let server = bind_as(|options| {
        (options.keys, options.origins) = (ApiKeys::of_lines("k").unwrap(), allowed);
    });
    let asks = |origin: &str| {
        let headers = format!(
            "Host: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: authorization\r\n"
        );
        let (status, answer) = status(server.address(), "OPTIONS /v1/completions", &headers);
        (status, answer.contains(&format!("access-control-allow-origin: {origin}\r\n")), answer)
    };
    let (found, is_told, answer) = asks("https://chat.example");
    assert_eq!((found, is_told), (200, true), "{answer}");
    assert!(answer.contains("access-control-allow-headers: authorization\r\n"), "{answer}");
    assert!(!asks("https://evil.example").1);
    let headers = "Host: localhost\r\nOrigin: https://chat.example\r\nAuthorization: Bearer k\r\n";
    let (found, answer) = status(server.address(), COMPLETIONS, headers);
    assert_eq!(found, 503);
    assert!(answer.contains("access-control-allow-origin: https://chat.example\r\n"), "{answer}");
    // What a page's own program may read of an answer.
    let exposed = answer.lines().find(|line| line.starts_with("access-control-expose-headers: "));
    for header in ["x-request-id", "x-ignored-fields", "retry-after"] {
        assert!(exposed.unwrap().contains(header), "{header}: {answer}");
    }
}
