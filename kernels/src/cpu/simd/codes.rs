//! Narrow codes as numbers, one at a time.

/// What an e4m3 code is less than, where its exponent and mantissa stand in those of an f32, whose bias
/// is 120 more.
pub(super) const E4M3_POWER: f32 = f32::from_bits((127 + 120) << 23);

/// The number of an e4m3 code; what the format calls NaN becomes 480.
pub(crate) fn e4m3(code: u8) -> f32 {
    let bits = (u32::from(code) & 0x80) << 24 | (u32::from(code) & 0x7f) << 20;
    f32::from_bits(bits) * E4M3_POWER
}

/// The integer in the lower half of a byte.
pub(crate) fn i4(code: u8) -> f32 {
    f32::from((code << 4).cast_signed() >> 4)
}
