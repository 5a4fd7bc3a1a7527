//! Warnings of what clients may bring about as often as they like.

use std::time::{Duration, Instant};

/// Tells of what happens often once a minute, with how often it did.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// It has happened: calls `tell`, unless it was called within a minute, with how often it has since.
    pub fn tell(&mut self, tell: impl FnOnce(u64)) {
        self.tell_at(Instant::now(), tell);
    }

    fn tell_at(&mut self, now: Instant, tell: impl FnOnce(u64)) {
        self.untold += 1;
        let minute = Duration::from_secs(60);
        if self.told.is_none_or(|told| now.saturating_duration_since(told) >= minute) {
            tell(std::mem::take(&mut self.untold));
            self.told = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_told_once_a_minute_with_its_count() {
        let (begun, mut seldom, mut told) = (Instant::now(), Seldom::default(), Vec::new());
        for second in [0, 1, 59, 60, 61, 200] {
            let now = begun + Duration::from_secs(second);
            seldom.tell_at(now, |count| told.push((second, count)));
        }
        assert_eq!(told, [(0, 1), (60, 3), (200, 2)]);
    }
}
