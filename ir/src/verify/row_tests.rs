//! Row treatments against what evaluation shows.
