//! Content-addressed artifact store: bytes and keys, no graphs.
//!
//! A [`Cache`] keeps payloads by a kind and a [`Key`], a digest that the caller computes from
//! everything that changes the payload. It can't go wrong in a way that changes a result: what is
//! served is, byte for byte, what was kept under this key, or it is a miss.
//!
//! ```
//! use piecewise_cache::{Cache, CacheOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path();
//! let cache = Cache::open(CacheOptions::new(dir));
//! let factors = [("target", "cuda:sm_90"), ("source", "9b1e")];
//! let key = *blake3::hash(format!("{factors:?}").as_bytes()).as_bytes();
//! let image = match cache.get("image", &key)? {
//!     Some(image) => image,
//!     None => {
//!         let image = b"compiled".to_vec();
//!         cache.put("image", &key, &factors, &image)?;
//!         image
//!     }
//! };
//! assert_eq!(cache.get("image", &key)?, Some(image));
//!
//! let wanted = [("target", "cuda:sm_80"), ("source", "9b1e")];
//! let nearest = cache.nearest("image", &wanted)?.expect("an image is there");
//! assert_eq!(
//!     nearest.differing[0].to_string(),
//!     r#"target: "cuda:sm_80" is wanted, "cuda:sm_90" was found"#
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On disk
//!
//! ```text
//! DIR/v1/KIND/KEY            an entry, named by its key in 64 hexadecimal digits
//! DIR/v1/KIND/KEY.bad        an entry that was found bad and set aside
//! DIR/v1/KIND/.tmp-...       an entry that is being written or claimed, or whose writer died
//! DIR/v1-KEYID/...           the same, of caches with a checksum key
//! ```
//!
//! The bytes of an entry are in [`format`](mod@format), those of an archive in [`archive`].
//!
//! With the cargo feature `remote` a cache may have a second level in an object store, where entries
//! have the same bytes under `v1/KIND/KEY`: see [`RemoteOptions`].
//!
//! # What holds
//!
//! - An entry is written under another name in the same folder, synced, and renamed: under its own
//!   name it is whole or not there, whenever a writer dies and however many write at once. No lock
//!   is taken; one who wants to make an entry once in all may [claim](Cache::claim) it first.
//! - Every byte that is read is covered by a checksum. A bad entry is a miss, named in a warning,
//!   and set aside by a rename; making it again replaces it.
//! - What fails is warned about once for each [`Condition`]; then the cache works as far as it can. What
//!   may be back, such as a disk or a store, is tried again after a [`Pause`].
//!   [`Cache::open`] never fails.
//! - No link in the directory is followed and no name is taken from a file's content: nothing is
//!   written outside. No length is believed before it is compared with the file's own.

pub mod archive;
mod cache;
mod claim;
mod error;
mod events;
mod evict;
mod factors;
mod fault;
mod folder;
pub mod format;
mod key;
mod listing;
mod options;
mod pack;
mod pause;
mod read_through;
mod remote;
mod root;
mod scan;
mod usage;
mod verify;

pub use archive::{ExportReport, ImportReport, RefusedEntry};
pub use cache::Cache;
pub use claim::{Claim, ClaimGuard};
pub use error::{ArchiveFault, BadEntry, CacheError};
pub use events::{CacheEvents, Condition, ConditionReport, QuarantinedEntry};
pub use evict::GcReport;
pub use factors::{FactorDifference, Factors};
pub use fault::{FaultHook, FaultPoint};
pub use format::{DecodeError, EncodeError};
pub use key::{Key, KeyHex, is_kind, parse_key};
pub use listing::{Entry, EntryInfo, Nearest};
pub use options::{
    CacheAccess, CacheOptions, DIR_VARIABLE, RemoteOptions, Trust, default_dir, without_secrets,
};
pub use pack::Pack;
pub use pause::{Attempt, Pause};
pub use verify::VerifyReport;
