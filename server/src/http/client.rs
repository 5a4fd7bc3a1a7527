//! Who asks: who has a key, or whoever is at an address.

use super::error::ApiError;
use super::quota::{Charge, OnItsWay, Owner};
use super::watched::watched;
use crate::places::{Leave, network};
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use piecewise_runtime::engine;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// Where a request came from, where it came by a connection.
#[derive(Clone, derive_more::Debug)]
pub(super) struct Connected {
    pub(super) address: IpAddr,
    /// Closes the connection.
    #[debug(skip)]
    pub(super) leave: Leave,
}

/// Who asks. All that is shared is shared between these.
#[derive(Clone, derive_more::Debug, Default)]
pub(crate) struct Client {
    id: u64,
    owner: Option<Arc<Owner>>,
    /// Closes the connection that it asks by.
    #[debug(skip)]
    leave: Option<Leave>,
}

impl Client {
    /// Who has the key of this number.
    pub(super) fn with_key(number: usize, owner: &Arc<Owner>) -> Self {
        Self { id: number as u64, owner: Some(Arc::clone(owner)), leave: None }
    }

    /// Whoever is at an address, which of IPv6 is a [`network`].
    pub(super) fn at(address: Option<IpAddr>) -> Self {
        let id = match address.map(network) {
            None => 0,
            Some(IpAddr::V4(address)) => address.to_bits().into(),
            Some(IpAddr::V6(address)) => (address.to_bits() >> 64) as u64,
        };
        Self { id, owner: None, leave: None }
    }

    /// The same, who asks by a connection.
    pub(super) fn by(self, leave: Option<Leave>) -> Self {
        Self { leave, ..self }
    }

    /// Closes the connection that it asks by, with what it asks for. Nothing is waited for.
    pub(super) fn leave(&self) {
        self.leave.iter().for_each(|leave| leave());
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether it has an operator's key.
    pub(super) fn is_operator(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is_operator())
    }

    /// Whose turn it is in the engine.
    pub(crate) fn of_engine(&self) -> engine::Client {
        let usual = engine::Client::default();
        let weight = self.owner.as_ref().map_or(usual.weight, |owner| owner.weight());
        engine::Client { id: self.id, weight }
    }

    /// The priority of a request that asks for one; of one that does not, the nearest to 0 that it may have.
    /// `anyone` is whether who has none by a key may ask, too.
    pub(crate) fn priority(&self, asked: Option<i32>, anyone: bool) -> Result<i32, ApiError> {
        let of_key = self.owner.as_ref().and_then(|owner| Some((owner, owner.priorities()?)));
        match (of_key, asked) {
            (Some((_, [least, most])), None) => Ok(0.clamp(least, most)),
            (Some((_, [least, most])), Some(asked)) if (least..=most).contains(&asked) => Ok(asked),
            (Some((owner, [least, most])), Some(_)) => {
                let name = owner.name();
                let message = format!("key {name:?} may ask for {least} to {most}");
                Err(ApiError::field("priority", message))
            }
            (None, None | Some(0)) => Ok(0),
            (None, Some(asked)) if anyone => Ok(asked),
            (None, Some(_)) => {
                let instead = "who comes first goes first here; --scheduling-policy priority, or \
                               the `priorities` of a key, changes that";
                Err(ApiError::unsupported("priority", instead))
            }
        }
    }

    /// Takes the tokens of a request's prompts, and those that it may generate.
    pub(crate) fn charge(&self, prompt: u64, most: u64) -> Result<Option<Charge>, ApiError> {
        let charge = |owner: &Arc<Owner>| owner.charge(prompt, most, Instant::now());
        self.owner.as_ref().map(charge).transpose()
    }

    fn begin(&self) -> Result<Option<OnItsWay>, ApiError> {
        self.owner.as_ref().map(|owner| owner.begin(Instant::now())).transpose()
    }
}

/// Counts a request that asks for work to who asks, to the end of its answer.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let client = request.extensions().get::<Client>().filter(|_| request.method() == Method::POST);
    match client.map_or(Ok(None), Client::begin) {
        Err(error) => error.into_response(),
        Ok(None) => next.run(request).await,
        Ok(Some(way)) => {
            let response = next.run(request).await;
            response.map(|body| Body::new(watched(body, move || drop(way))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_without_keys_are_told_apart_by_their_addresses() {
        let id = |text: &str| Client::at(Some(text.parse().unwrap())).id();
        assert_ne!(id("10.0.0.1"), id("10.0.0.2"));
        assert_eq!(id("10.0.0.1"), id("::ffff:10.0.0.1"), "the same machine");
        assert_eq!(id("2001:db8:0:1::1"), id("2001:db8:0:1:ffff::2"), "the same network");
        assert_ne!(id("2001:db8:0:1::1"), id("2001:db8:0:2::1"));
    }
}
