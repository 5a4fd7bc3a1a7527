//! Pages of other sites: what a browser asks for one is refused, unless the operator lets the site ask.

use super::error::ApiError;
use super::state::State;
use axum::extract::{self, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// The origins whose pages may ask, such as `https://chat.example`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AllowedOrigins {
    listed: Vec<HeaderValue>,
    is_any: bool,
}

impl AllowedOrigins {
    /// Reads origins, or `*` for any.
    ///
    /// # Errors
    /// For what is no origin.
    pub fn new<'o>(origins: impl IntoIterator<Item = &'o str>) -> Result<Self, String> {
        let mut all = Self::default();
        for origin in origins {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let is_origin = host.is_some_and(|host| !host.is_empty() && !host.contains('/'));
            match HeaderValue::from_str(&origin.to_ascii_lowercase()) {
                _ if origin == "*" => all.is_any = true,
                Ok(value) if is_origin => all.listed.push(value),
                _ => {
                    return Err(format!(
                        "`{origin}` is no origin; write scheme and host, such as \
                         https://chat.example, or * for any"
                    ));
                }
            }
        }
        Ok(all)
    }

    fn is_empty(&self) -> bool {
        !self.is_any && self.listed.is_empty()
    }

    fn has(&self, origin: &HeaderValue) -> bool {
        self.is_any || self.listed.contains(origin)
    }

    /// What tells browsers that they may show answers to those pages; `None` where to none.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        if self.is_empty() {
            return None;
        }
        let origins = match self.is_any {
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.listed.clone()),
        };
        let layer = CorsLayer::new().allow_origin(origins);
        let layer = layer.allow_methods(AllowMethods::mirror_request());
        let layer = layer.allow_headers(AllowHeaders::mirror_request());
        Some(layer.expose_headers([
            header::HeaderName::from_static("x-request-id"),
            header::HeaderName::from_static("x-ignored-fields"),
            header::RETRY_AFTER,
        ]))
    }

    /// Refuses what is asked at another site's name, which that site may point at this machine to have a
    /// browser believe that it asks its own. A name without a dot is no site's, and nobody owns a number.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), String> {
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        let name = name_of(host).unwrap_or_default();
        let is_listed = |origin: &HeaderValue| {
            let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, listed)| host_name(listed).eq_ignore_ascii_case(name))
        };
        let is_local = !name.trim_end_matches('.').contains('.')
            || name.to_ascii_lowercase().ends_with(".localhost")
            || name.parse::<IpAddr>().is_ok();
        match is_local || self.is_any || self.listed.iter().any(is_listed) {
            true => Ok(()),
            false => Err(format!(
                "this server listens at this machine alone and is asked as {:?}; ask at localhost, or \
                 list the name by --allowed-origins",
                name.chars().take(200).collect::<String>()
            )),
        }
    }

    /// Refuses what a browser asks for a page of another site. A request without the headers that
    /// browsers send is of no browser.
    fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        if let Some(origin) = headers.get(header::ORIGIN) {
            let own = |scheme| Some(origin.to_str().ok()?.strip_prefix(scheme)? == host?);
            let is_own =
                ["http://", "https://"].into_iter().any(|scheme| own(scheme) == Some(true));
            return match is_own || self.has(origin) {
                true => Ok(()),
                false => Err(format!(
                    "pages of {} may not ask; --allowed-origins names those that may",
                    String::from_utf8_lossy(&origin.as_bytes()[..origin.len().min(200)])
                )),
            };
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        match site {
            Some(b"cross-site" | b"same-site") if !self.is_any => {
                Err("a page of another site asks by a browser".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a `Host` is this machine by a name that no other site can have: a site that has a name of its
/// own point here is another site all the same.
fn is_this_machine(host: Option<&HeaderValue>) -> bool {
    let Some(name) = host.and_then(name_of) else { return false };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The name or the number of a `Host`, which may have a port.
fn name_of(host: &HeaderValue) -> Option<&str> {
    host.to_str().ok().map(host_name)
}

fn host_name(host: &str) -> &str {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    name.unwrap_or_default()
}

/// Refuses pages that may not ask, where no key tells who asks.
pub(crate) async fn admit(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = state.origins.check(request.headers()).and_then(|()| match state.is_loopback {
        true => state.origins.check_host(request.headers()),
        false => Ok(()),
    });
    match checked {
        Err(why) if !state.keys.are_asked_for() => ApiError::foreign(&why).into_response(),
        _ => next.run(request).await,
    }
}

/// As [`admit`], of what operators ask.
pub(crate) async fn admit_operator(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let is_open = state.is_loopback && !state.keys.are_asked_for();
    match check_operator(request.headers()) {
        Err(why) if is_open => ApiError::foreign(&why).into_response(),
        _ => next.run(request).await,
    }
}

/// Whether what operators ask may come with these headers, where only this machine reaches it and nobody
/// has a key.
///
/// # Errors
/// Why a page that somebody looks at on this machine may not ask.
pub fn check_operator(headers: &HeaderMap) -> Result<(), String> {
    if !is_this_machine(headers.get(header::HOST)) {
        return Err("operators ask at localhost or 127.0.0.1, not at another name".to_owned());
    }
    AllowedOrigins::default().check(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&'static str, &str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn pages_of_other_sites_are_refused_unless_they_are_listed() {
        let none = AllowedOrigins::default();
        let some = AllowedOrigins::new(["https://Chat.example", "http://localhost:3000"]).unwrap();
        let any = AllowedOrigins::new(["*"]).unwrap();
        let host = ("host", "127.0.0.1:8000");
        for (asked, admitted) in [
            (vec![host], [true; 3]),
            (vec![host, ("origin", "http://127.0.0.1:8000")], [true; 3]),
            (vec![host, ("origin", "http://127.0.0.1:8001")], [false, false, true]),
            (vec![host, ("origin", "https://chat.example")], [false, true, true]),
            (vec![host, ("origin", "http://localhost:3000")], [false, true, true]),
            (vec![host, ("origin", "https://evil.example")], [false, false, true]),
            (vec![host, ("origin", "null")], [false, false, true]),
            (vec![("origin", "http://")], [false, false, true]),
            (vec![host, ("sec-fetch-site", "cross-site")], [false, false, true]),
            (vec![host, ("sec-fetch-site", "same-origin")], [true; 3]),
            (vec![host, ("sec-fetch-site", "none")], [true; 3]),
        ] {
            let headers = headers(&asked);
            let found = [&none, &some, &any].map(|origins| origins.check(&headers).is_ok());
            assert_eq!(found, admitted, "{asked:?}");
        }
        for bad in ["chat.example", "https://", "https://chat.example/", "", "https://a\nb"] {
            assert!(AllowedOrigins::new([bad]).is_err(), "{bad:?}");
        }
        assert!(none.layer().is_none() && some.layer().is_some() && any.layer().is_some());
    }

    #[test]
    fn a_site_that_points_at_this_machine_is_refused_unless_it_is_listed() {
        let none = AllowedOrigins::default();
        let some = AllowedOrigins::new(["https://Chat.example:8443"]).unwrap();
        let any = AllowedOrigins::new(["*"]).unwrap();
        for (host, admitted) in [
            ("localhost:8000", [true; 3]),
            ("model.localhost", [true; 3]),
            ("127.0.0.1:8000", [true; 3]),
            ("[::1]:8000", [true; 3]),
            ("192.168.0.7:8000", [true; 3]),
            ("gpu-box:8000", [true; 3]),
            ("chat.example", [false, true, true]),
            ("CHAT.example:8000", [false, true, true]),
            ("evil.example:8000", [false, false, true]),
            ("127.0.0.1.evil.example", [false, false, true]),
            ("evil.example.", [false, false, true]),
        ] {
            let headers = headers(&[("host", host)]);
            let found = [&none, &some, &any].map(|origins| origins.check_host(&headers).is_ok());
            assert_eq!(found, admitted, "{host}");
        }
        assert!(none.check_host(&HeaderMap::new()).is_ok(), "no browser leaves it out");
    }

    #[test]
    fn a_name_that_another_site_can_have_is_not_this_machine() {
        for (host, is_this) in [
            ("localhost", true),
            ("LocalHost:8000", true),
            ("127.0.0.1:8000", true),
            ("127.1.2.3", true),
            ("[::1]:8000", true),
            ("evil.example", false),
            ("localhost.evil.example:8000", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:8000", false),
            ("", false),
        ] {
            assert_eq!(
                is_this_machine(HeaderValue::from_str(host).ok().as_ref()),
                is_this,
                "{host}"
            );
        }
        assert!(!is_this_machine(None));
    }
}
