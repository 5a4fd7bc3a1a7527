//! What a driver without a GPU was told to run.

/// A kernel that ran, or would have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// The entry of its module.
    pub name: String,
    /// Blocks by axis.
    pub grid: [u32; 3],
    /// Whether it may start before the kernel ahead of it ends.
    pub programmatic: bool,
    /// Their values in order.
    pub parameters: Vec<u64>,
    /// Address, rows, columns and rows of a box of each tensor map, by its position.
    pub maps: Vec<(usize, Vec<u64>)>,
}
