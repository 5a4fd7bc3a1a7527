//! How many rewrites a run may do: what a bisection below passes counts.

/// Counts the rewrites of a run, and refuses those after a limit.
///
/// With the limit halved again and again, the rewrite that breaks something is found. Rewrites are
/// counted in the order of the run, which is the same each time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rewrites {
    done: u64,
    limit: Option<u64>,
    last: Option<(&'static str, String)>,
}

impl Rewrites {
    /// Allows the first `limit` rewrites of a run alone.
    pub fn only_first(limit: u64) -> Self {
        Self { limit: Some(limit), ..Self::default() }
    }

    /// Whether the next rewrite may be done, which is counted then: by which rule, and to what.
    pub fn allow(&mut self, rule: &'static str, place: impl FnOnce() -> String) -> bool {
        if self.is_spent() {
            return false;
        }
        // Only a bisection asks.
        if self.limit.is_some() {
            self.last = Some((rule, place()));
        }
        self.done += 1;
        true
    }

    /// Whether a limit is reached, so that no other is allowed.
    pub fn is_spent(&self) -> bool {
        self.limit.is_some_and(|limit| self.done >= limit)
    }

    /// How many were done.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The rule and the place of the last one, under a limit.
    pub fn last(&self) -> Option<(&'static str, &str)> {
        self.last.as_ref().map(|(rule, place)| (*rule, place.as_str()))
    }
}
