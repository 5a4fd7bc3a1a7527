//! An object store behind the directory.
//!
//! A start asks for hundreds of entries one after the other, and a store that is out of reach would keep
//! each for the time of a request. So after a failure nobody asks for a while, see [`Pause`]. Reading and
//! writing have a pause each: who may not write may still read. Nothing is lost meanwhile that the
//! directory can't stand for.

use crate::options::RemoteOptions;
use crate::pause::{Attempt, Pause};
use std::time::Instant;

#[cfg_attr(feature = "remote", path = "client.rs")]
#[cfg_attr(not(feature = "remote"), path = "no_client.rs")]
mod client;
mod failed;

use client::Client;
pub(crate) use failed::Failed;

const UNTRUSTED: &str = "it is not trusted; trust it (cache.remote_trusted, --cache-remote-trusted) or set \
                         a checksum key (cache.checksum_key_file, PIECEWISE_CACHE_CHECKSUM_KEY)";

#[derive(Debug)]
pub(crate) struct Remote {
    client: Client,
    pub(crate) is_written: bool,
    reads: Pause,
    writes: Pause,
}

impl Remote {
    /// A connection is made by the first request. `clock` tells the time of pauses.
    pub(crate) fn open(
        options: &RemoteOptions,
        has_checksum_key: bool,
        clock: fn() -> Instant,
    ) -> Result<Self, String> {
        // Without a client no trust would help.
        let client = Client::open(options)?;
        if !options.is_trusted && !has_checksum_key {
            return Err(UNTRUSTED.to_owned());
        }
        let [reads, writes] = [(); 2].map(|()| Pause::new(clock));
        Ok(Self { client, is_written: options.is_written, reads, writes })
    }

    /// How messages name a place in the store, without what authorizes.
    pub(crate) fn place(&self, parts: &[&str]) -> String {
        let place = self.client.shown();
        parts
            .iter()
            .fold(place.trim_end_matches('/').to_owned(), |place, part| format!("{place}/{part}"))
    }

    /// The object at a place, of at most `cap` bytes; `None` if it is not there, or if nobody asks during
    /// a pause.
    pub(crate) fn get(&self, place: [&str; 3], cap: u64) -> Result<Option<Vec<u8>>, Failed> {
        let Some(attempt) = self.reads.attempt() else { return Ok(None) };
        settle(attempt, None, self.client.get(place, cap))
    }

    /// Writes the object at a place; `false` if nobody does during a pause.
    pub(crate) fn put(&self, place: [&str; 3], bytes: Vec<u8>) -> Result<bool, Failed> {
        let Some(attempt) = self.writes.attempt() else { return Ok(false) };
        settle(attempt, false, self.client.put(place, bytes).map(|()| true))
    }
}

/// What an answer means for those who ask next; one that failed is told where it begins a pause.
fn settle<T>(attempt: Attempt<'_>, in_pause: T, answer: Result<T, Failed>) -> Result<T, Failed> {
    match answer {
        Err(Failed::Level(reason)) => match attempt.failed() {
            true => Err(Failed::Level(reason)),
            false => Ok(in_pause),
        },
        answer => {
            attempt.succeeded();
            answer
        }
    }
}
