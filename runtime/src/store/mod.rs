//! Compiling through a store: every unique piece at every size is taken from it, or compiled and
//! kept there.
//!
//! A lowered piece is one entry, found by a [`PieceKey`]; it refers to the images of its launches
//! by digest, which are entries of their own, shared by pieces and sizes. What a store gives is
//! held against the piece before it is used: an entry that does not fit is a miss.

mod cache_store;
mod checksum_key;
mod compiled;
mod counts;
mod error;
mod job;
mod key;
mod late;
mod lowering;
mod packs;
mod session;
mod stored_piece;

pub use cache_store::{CacheStore, cache_dir};
pub use checksum_key::CHECKSUM_KEY_VARIABLE;
pub use compiled::CompiledPieces;
pub use error::NoCache;
pub use job::{CompileJob, compile_jobs};
pub(crate) use key::symbols_seen;
pub use key::{PIECE_KIND, PieceKey};
pub use late::LateCompiler;
pub use lowering::Lowering;
pub use lowering::compile_module;
pub use packs::{PackedStore, open_packs, pack_places};
pub use stored_piece::{IMAGE_KIND, StoredPiece};

#[cfg(test)]
mod tests;
