//! Weights of few bits, between a source of weights and the graph that reads them: floats that are
//! rounded when they are loaded, and codes and scales that are looked at before they are used.

mod checked;
mod floats;
mod loaded;
mod rounding;

pub(in crate::models) use checked::CheckedWeights;
pub(crate) use loaded::{RoundedWeights, kept_matrices, rounded_layers};
