//! What ops do with rows, of which padding rows may hold anything.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

/// What an op does with the rows of a symbol's dimension.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowTreatment {
    /// Row `i` of every result depends on row `i` of the operands only.
    Independent,
    /// Row `i` is written where a slot map says; a padding row's slot (-1) writes nowhere.
    SlotMapped,
    /// Rows mix, but padding rows are masked by true lengths read on the device.
    Masked,
    /// Rows mix, padding rows among them.
    Mixed,
}

impl RowTreatment {
    /// Its token in the textual IR.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// From the strictest to the one that allows anything.
    pub const ALL: [Self; 4] = [Self::Independent, Self::SlotMapped, Self::Masked, Self::Mixed];

    /// Whether a padding row can never reach a real row.
    pub const fn is_padding_safe(self) -> bool {
        !matches!(self, Self::Mixed)
    }
}
