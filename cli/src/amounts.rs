//! Amounts of memory as people write them.

use piecewise_runtime::words::Ledger;

/// Reads a number of bytes, with B, KiB, MiB or GiB after it or nothing.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit:?} is not B, KiB, MiB or GiB")),
    };
    let number: f64 =
        digits.trim().parse().map_err(|_| format!("{digits:?} is no number of bytes"))?;
    let bytes = number * (1_u64 << shift) as f64;
    if (0.0..=(1_u64 << 62) as f64).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("{text} is no amount of memory"))
    }
}

/// Writes a number of bytes in the largest unit of which there is at least one.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Where the memory of a model goes: that of the device, and the host's pinned blocks.
pub(crate) fn shown_ledger(ledger: &Ledger) -> String {
    let parts = [
        ("weights", ledger.weights),
        ("states", ledger.states),
        ("arena", ledger.slots),
        ("scratch", ledger.scratch),
        ("code", ledger.modules),
        ("graphs", ledger.graphs),
    ];
    let parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
    let parts: Vec<_> =
        parts.map(|(part, bytes)| format!("{part} {}", shown_bytes(bytes))).collect();
    let (total, pinned) = (shown_bytes(ledger.total()), shown_bytes(ledger.pinned));
    let context = match ledger.context {
        0 => String::new(),
        bytes => format!("; context {}", shown_bytes(bytes)),
    };
    format!("{total}: {}; pinned {pinned}{context}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("8 KiB"), Ok(8192));
        for wrong in ["-1", "GiB", "5GB", "nan", "1e30", ""] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn amounts_are_shown_in_the_largest_unit() {
        let shown = [0, 1023, 1024, 1536 << 10, 3 << 30].map(shown_bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB"]);
    }
}
