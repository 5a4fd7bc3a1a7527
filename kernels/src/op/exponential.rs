//! The exponential by which tokens are weighed when they are drawn: the same on every device.

/// Differences from the largest `z` below this have weight 0: `-40 ln 2`, rounded down.
pub(crate) const LOWEST: f32 = -27.725_89;
/// The upper part of ln 2: few bits, so that its product with a small integer is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
/// What `LN2_HIGH` is too large by is subtracted through this negative part.
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// P5 down to P0 of `e^r = 1 + r + r^2 (P0 + P1 r + ...)` (Cephes `expf`, S. Moshier).
pub(crate) const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
