//! An object store that is asked until it fails once.
//!
//! Nobody asks it again as long as the cache is open: a start asks for hundreds of entries one after the
//! other, and a store that is out of reach would keep each for the time of a request. Nothing is lost that the
//! directory can't stand for, and whoever opens the cache next asks anew.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::options::RemoteOptions;

#[cfg_attr(feature = "remote", path = "client.rs")]
#[cfg_attr(not(feature = "remote"), path = "no_client.rs")]
mod client;

use client::Client;

const UNTRUSTED: &str = "it is not trusted; trust it (cache.remote_trusted, --cache-remote-trusted) or set \
                         a checksum key (cache.checksum_key_file, PIECEWISE_CACHE_CHECKSUM_KEY)";

#[derive(Debug)]
pub(crate) struct Remote {
    client: Client,
    pub(crate) is_written: bool,
    is_off: AtomicBool,
}

impl Remote {
    /// A connection is made by the first request.
    pub(crate) fn open(options: &RemoteOptions, has_checksum_key: bool) -> Result<Self, String> {
        // Without a client no trust would help.
        let client = Client::open(options)?;
        if !options.is_trusted && !has_checksum_key {
            return Err(UNTRUSTED.to_owned());
        }
        Ok(Self { client, is_written: options.is_written, is_off: AtomicBool::new(false) })
    }

    /// How messages name a place in the store, without what authorizes.
    pub(crate) fn place(&self, parts: &[&str]) -> String {
        let place = self.client.shown();
        parts
            .iter()
            .fold(place.trim_end_matches('/').to_owned(), |place, part| format!("{place}/{part}"))
    }

    /// The object at a place, of at most `cap` bytes; `None` if it is not there, or if the store has
    /// failed before.
    pub(crate) fn get(&self, place: [&str; 3], cap: u64) -> Result<Option<Vec<u8>>, String> {
        self.ask(None, || self.client.get(place, cap))
    }

    /// Writes the object at a place; `false` if the store has failed before.
    pub(crate) fn put(&self, place: [&str; 3], bytes: Vec<u8>) -> Result<bool, String> {
        self.ask(false, || self.client.put(place, bytes).map(|()| true))
    }

    fn ask<T>(&self, when_off: T, ask: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(when_off);
        }
        let answer = ask();
        let Err(reason) = answer else { return answer };
        // Of several threads that fail at once, one reports.
        let is_first = !self.is_off.swap(true, Ordering::Relaxed);
        if is_first { Err(reason) } else { Ok(when_off) }
    }
}
