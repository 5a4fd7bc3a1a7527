//! Content-addressed artifact store: bytes and keys, no graphs.
//!
//! A [`Cache`] keeps payloads by a kind and a [`Key`], a digest that the caller computes from
//! everything that changes the payload. It can't go wrong in a way that changes a result: what is
//! served is, byte for byte, what was kept under this key, or it is a miss.
//!
//! # On disk
//!
//! ```text
//! DIR/v1/KIND/KEY            an entry, named by its key in 64 hexadecimal digits
//! DIR/v1/KIND/KEY.bad        an entry that was found bad and set aside
//! DIR/v1/KIND/.tmp-...       an entry that is being written, or whose writer died
//! DIR/v1-KEYID/...           the same, of caches with a checksum key
//! ```
//!
//! The bytes of an entry are in [`format`](mod@format), those of an archive in [`archive`].
//!
//! # What holds
//!
//! - An entry is written under another name in the same folder, synced, and renamed: under its own
//!   name it is whole or not there, whenever a writer dies and however many write at once. No lock
//!   is taken.
//! - Every byte that is read is covered by a checksum. A bad entry is a miss, named in a warning,
//!   and set aside by a rename; making it again replaces it.
//! - What fails is warned about once for each [`Condition`]; then the cache works as far as it can.
//!   [`Cache::open`] never fails.
//! - No link in the directory is followed and no name is taken from a file's content: nothing is
//!   written outside. No length is believed before it is compared with the file's own.

pub mod archive;
mod cache;
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
mod scan;
mod verify;

pub use archive::{ExportReport, ImportReport, RefusedEntry};
pub use cache::Cache;
pub use error::{ArchiveFault, BadEntry, CacheError};
pub use events::{CacheEvents, Condition, ConditionReport, QuarantinedEntry};
pub use evict::GcReport;
pub use factors::{FactorDifference, Factors};
pub use fault::{FaultHook, FaultPoint};
pub use format::{DecodeError, EncodeError};
pub use key::{Key, KeyHex, is_kind, parse_key};
pub use listing::{Entry, EntryInfo, Nearest};
pub use options::{Access, CacheOptions, DIR_VARIABLE, Trust, default_dir};
pub use verify::VerifyReport;
