//! What holds of single sizes, and which steps another way serves better than padding.

use crate::words::{StepMode, StepSizes};
use piecewise_backend::artifact::PieceSize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What holds of single sizes for tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SizeRules {
    /// Sizes that steps of exactly so many tokens run at and no others: with programs that are
    /// lowered and measured for them alone, and graphs that the first such step captures. Ascending.
    pub specialized: Vec<u64>,
    /// Sizes, of the lists or specialized, that have programs and no graphs: steps that run at them
    /// are launched. Ascending.
    pub launched: Vec<u64>,
    /// Sizes whose graphs the first step that wants one captures, where the others are captured at
    /// start. Ascending.
    pub lazy: Vec<u64>,
}

impl SizeRules {
    /// Whether steps of exactly so many tokens have a size of their own.
    pub fn is_specialized(&self, tokens: u64) -> bool {
        self.specialized.binary_search(&tokens).is_ok()
    }

    /// Steps of exactly so many tokens have a size of their own from now on.
    pub fn specialize(&mut self, tokens: u64) {
        if let Err(at) = self.specialized.binary_search(&tokens) {
            self.specialized.insert(at, tokens);
        }
    }

    /// Whether graphs of so many tokens wait for the first step that wants them.
    pub fn is_lazy(&self, tokens: u64) -> bool {
        self.lazy.binary_search(&tokens).is_ok()
    }

    /// Whether steps that run at so many tokens are launched.
    pub fn is_launched(&self, tokens: u64) -> bool {
        self.launched.binary_search(&tokens).is_ok()
    }
}

/// Another way than a replay at the padded size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OtherWay {
    /// A replay of pieces, whose sizes are picked apart, instead of the whole step.
    Pieces,
    /// Launches of the programs for any size.
    Launches,
}

/// By how they would replay, the steps that another way serves better: those of at most so many
/// tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeasuredWays {
    better: BTreeMap<(StepMode, PieceSize), (u64, OtherWay)>,
    launched: BTreeSet<PieceSize>,
}

/// A way must be so many percent better than padding to be taken, since the same is measured twice
/// with other results.
const MARGIN: u32 = 10;

impl MeasuredWays {
    /// The better way for a step of so many tokens that would replay so.
    pub fn better(&self, mode: StepMode, sizes: &StepSizes, tokens: u64) -> Option<OtherWay> {
        let (most, way) = self.better.get(&(mode, sizes.whole()))?;
        (tokens <= *most).then_some(*way)
    }

    /// Steps of at most so many tokens go another way from now on.
    pub fn set(&mut self, mode: StepMode, size: PieceSize, most_tokens: u64, way: OtherWay) {
        self.better.insert((mode, size), (most_tokens, way));
    }

    /// What was measured of padding, in the place of what was.
    pub fn replace_padding(&mut self, measured: Self) {
        self.better = measured.better;
    }

    /// Steps in pieces that are padded to a size are launched at it from now on, or no longer.
    pub fn set_launched(&mut self, size: PieceSize, is_launched: bool) {
        match is_launched {
            true => self.launched.insert(size),
            false => self.launched.remove(&size),
        };
    }

    /// Whether a step in pieces is launched at its padded size: by the same programs, without
    /// graphs.
    pub fn is_launched(&self, mode: StepMode, sizes: &StepSizes) -> bool {
        mode == StepMode::Piecewise && self.launched.contains(&sizes.whole())
    }

    /// Finds up to how many tokens another way is better than the padded replay, of those that pad
    /// to one size: `tokens` ascend to the size itself. Measures at the fewest tokens, where padding
    /// costs most, and goes on by halves while another way wins.
    ///
    /// # Errors
    /// What `cost` fails with.
    pub fn find<E>(
        tokens: &[u64],
        ways: &[OtherWay],
        mut cost: impl FnMut(u64, Option<OtherWay>) -> Result<Option<Duration>, E>,
    ) -> Result<Option<(u64, OtherWay)>, E> {
        // At the size itself nothing is padded.
        let Some((_, padded)) = tokens.split_last() else { return Ok(None) };
        let mut better_at = |tokens: u64| -> Result<Option<OtherWay>, E> {
            let Some(replay) = cost(tokens, None)? else { return Ok(None) };
            let mut best = (replay * (100 - MARGIN) / 100, None);
            for &way in ways {
                if let Some(time) = cost(tokens, Some(way))?
                    && time < best.0
                {
                    best = (time, Some(way));
                }
            }
            Ok(best.1)
        };
        let Some(&fewest) = padded.first() else { return Ok(None) };
        let Some(way) = better_at(fewest)? else { return Ok(None) };
        let (mut won, mut lost) = (0, padded.len());
        while lost - won > 1 {
            let middle = won + (lost - won) / 2;
            if better_at(padded[middle])? == Some(way) { won = middle } else { lost = middle }
        }
        Ok(Some((padded[won], way)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    proptest! {
        /// Costs that grow with the tokens of a way that does not pad, and don't with padding: what is
        /// found is what looking at every number of tokens finds.
        #[test]
        fn the_last_step_that_padding_loses_is_found(
            first in 1u64..500,
            count in 1u64..80,
            replay in 1u64..2000,
            base in 0u64..1500,
            slope in 1u64..20,
        ) {
            let tokens: Vec<u64> = (first..first + count).collect();
            let micros = Duration::from_micros;
            let launched = |tokens: u64| micros(100 * (base + slope * (tokens - first)));
            let replayed = micros(100 * replay);
            let found = MeasuredWays::find(&tokens, &[OtherWay::Launches], |tokens, way| {
                let time = if way.is_some() { launched(tokens) } else { replayed };
                Ok::<_, Infallible>(Some(time))
            });
            let wins = |tokens: &&u64| launched(**tokens) < replayed * 90 / 100;
            let padded = &tokens[..tokens.len() - 1];
            let expected = padded.iter().take_while(wins).last();
            prop_assert_eq!(found, Ok(expected.map(|&most| (most, OtherWay::Launches))));
        }
    }

    #[test]
    fn of_two_ways_the_best_is_taken_and_one_that_can_not_run_is_none() {
        let tokens: Vec<u64> = (9..=64).collect();
        let ways = [OtherWay::Pieces, OtherWay::Launches];
        let found = |pieces: Option<u64>, launches: u64| {
            MeasuredWays::find(&tokens, &ways, |_, way| {
                let micros = match way {
                    None => Some(100),
                    Some(OtherWay::Pieces) => pieces,
                    Some(OtherWay::Launches) => Some(launches),
                };
                Ok::<_, Infallible>(micros.map(Duration::from_micros))
            })
        };
        assert_eq!(found(Some(50), 60), Ok(Some((63, OtherWay::Pieces))));
        assert_eq!(found(None, 60), Ok(Some((63, OtherWay::Launches))));
        assert_eq!(found(Some(95), 91), Ok(None), "within the margin");
    }
}
