//! The table of a contest.

use crate::bandwidth::Bandwidth;
use crate::contest::Side;
use std::time::Duration;

/// Prints one line for each side: medians and spread, what a step reads, and how that compares
/// with the machine and with candle's fastest.
pub fn table(
    sides: &[Box<dyn Side + '_>],
    times: &[Vec<Duration>],
    context: u64,
    bandwidth: &Bandwidth<'_>,
) {
    let read = bandwidth.gb_per_s(50);
    println!(
        "read bandwidth  {read:.1} GB/s (p10 {:.1}, p90 {:.1}, {} passes between the turns)",
        bandwidth.gb_per_s(10),
        bandwidth.gb_per_s(90),
        bandwidth.passes(),
    );
    let medians: Vec<f64> = times.iter().map(|times| percentile(times, 50)).collect();
    let candle = sides
        .iter()
        .zip(&medians)
        .filter(|(side, _)| side.name().starts_with("candle"))
        .map(|(_, ms)| *ms)
        .fold(f64::INFINITY, f64::min);
    println!(
        "{:<16} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8} {:>9}",
        "side", "ms/token", "p10", "p90", "tokens/s", "MB/step", "GB/s", "of read", "vs candle"
    );
    for ((side, times), ms) in sides.iter().zip(times).zip(&medians) {
        let bytes = side.bytes_read(context) as f64;
        let rate = bytes / ms / 1e6;
        let traffic = match bytes > 0.0 {
            true => {
                let share = 100.0 * rate / read;
                format!("{:>9.1} {rate:>7.1} {share:>7.0}%", bytes / 1e6)
            }
            false => format!("{:>9} {:>7} {:>8}", "-", "-", "-"),
        };
        let ratio = match candle.is_finite() {
            true => format!("{:>8.2}x", candle / ms),
            false => format!("{:>9}", "-"),
        };
        println!(
            "{:<16} {ms:>9.3} {:>9.3} {:>9.3} {:>9.1} {traffic} {ratio}",
            side.name(),
            percentile(times, 10),
            percentile(times, 90),
            1e3 / ms,
        );
    }
}

/// Milliseconds that `percent` of the times do not exceed.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * percent / 100).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
