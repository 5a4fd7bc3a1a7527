//! The remote level behind the directory.

use crate::cache::Cache;
use crate::events::Condition;
use crate::factors::pairs;
use crate::format::{
    DecodeError, Header, MAX_HEADER_BYTES, PREFIX_BYTES, ReadError, encode_header, read_entry,
};
use crate::key::{Key, KeyHex};
use crate::options::CacheAccess;
use crate::remote::{Failed, Remote};
use crate::root::root_name;

impl Cache {
    /// The payload of an entry in the remote level, which the directory keeps from now on.
    pub(crate) fn fetch(&self, kind: &str, key: &Key) -> Option<Vec<u8>> {
        let remote = self.remote.as_ref()?;
        let name = KeyHex(key).to_string();
        let place = [&root_name(&self.checksum), kind, &name];
        let cap = (PREFIX_BYTES + MAX_HEADER_BYTES) as u64;
        let bytes = match remote.get(place, cap.saturating_add(self.options.max_entry_bytes)) {
            Ok(bytes) => bytes?,
            Err(failed) => {
                self.not_fetched(remote, &place, failed);
                return None;
            }
        };
        match self.decode(&bytes, kind, key) {
            Ok((header, payload)) => {
                self.recorder.count(|events| events.remote_hits += 1);
                if self.options.access == CacheAccess::ReadWrite {
                    self.keep_fetched(&header, &payload);
                }
                Some(payload)
            }
            Err(reason) => {
                self.recorder.bad_entry(&remote.place(&place[..2]), kind, &name, &reason);
                None
            }
        }
    }

    /// Keeps an entry in the remote level too, if it is written.
    pub(crate) fn send(&self, kind: &str, key: &Key, head: &[u8], payload: &[u8]) {
        let written = self.remote.as_ref().filter(|remote| remote.is_written);
        let Some(remote) = written else { return };
        let place = [&root_name(&self.checksum), kind, &KeyHex(key).to_string()];
        match remote.put(place, [head, payload].concat()) {
            Ok(true) => self.recorder.count(|events| events.remote_stored += 1),
            Ok(false) => {}
            Err(failed) => {
                let (place, reason) = (remote.place(&[]), failed.reason());
                let message = format!(
                    "the remote cache level {place} can't be written: {reason}; it is tried again \
                     after a pause"
                );
                self.condition(Condition::RemoteWrite, &message);
            }
        }
    }

    fn decode(
        &self,
        bytes: &[u8],
        kind: &str,
        key: &Key,
    ) -> Result<(Header, Vec<u8>), DecodeError> {
        let mut from = bytes;
        let cap = self.options.max_entry_bytes;
        let read = read_entry(&mut from, bytes.len() as u64, cap, &self.checksum);
        let read = read.and_then(|(header, payload)| Ok((header.of(kind, key)?, payload)));
        read.map_err(|error| match error {
            ReadError::Decode(reason) => reason,
            ReadError::Io(_) => {
                DecodeError::Truncated { bytes: bytes.len() as u64, missing: "payload" }
            }
        })
    }

    fn keep_fetched(&self, header: &Header, payload: &[u8]) {
        let factors = pairs(&header.factors);
        if let Ok(head) =
            encode_header(&header.kind, &header.key, &factors, payload, &self.checksum)
        {
            // What can't be kept was warned about, and is served all the same.
            self.keep(&header.kind, &header.key, &head, payload).ok();
        }
    }

    fn not_fetched(&self, remote: &Remote, place: &[&str], failed: Failed) {
        let (condition, message) = match failed {
            Failed::Object(reason) => {
                let place = remote.place(place);
                let message = format!("{place} is passed over: {reason}; remove it there");
                (Condition::RemoteObject, message)
            }
            Failed::Level(reason) => {
                let place = remote.place(&[]);
                let message = format!(
                    "the remote cache level {place} can't be read: {reason}; it is asked again after a \
                     pause"
                );
                (Condition::RemoteRead, message)
            }
        };
        self.condition(condition, &message);
    }
}
