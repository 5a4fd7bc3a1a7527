//! From token ids to the text of a reply.

mod output;
mod stop;

pub use output::{OutputText, TextPiece};
pub use stop::{StopError, StopFilter, StopStrings};
