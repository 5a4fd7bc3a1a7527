//! Every rule of modules, broken once.
