//! Every rule of graphs, broken once.
