//! Types, ops, regions, builder, pieces and plans as data and text, verifier, reference evaluator.
