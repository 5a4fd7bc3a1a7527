//! Symbolic element indices: sums of digits of a loop counter, so that index remaps simplify to
//! what a person would write and contiguous runs are seen.

use std::fmt::Write;

/// What a digit is taken of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Base {
    /// The element number of the stage, `e`.
    Element,
    /// An index read from memory or not expressible in digits: the variable `i<n>`.
    Variable(u32),
}

/// `(base / div) % modulo`, a number below `modulo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Digit {
    pub(super) base: Base,
    pub(super) div: u64,
    pub(super) modulo: u64,
    /// Whether no digit of the base is above it, so that it is `base / div`.
    pub(super) top: bool,
}

/// `constant + sum(coefficient * digit)`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Index {
    pub(super) constant: u64,
    /// Sorted, with coefficients that are not 0 and digits that are not always 0.
    pub(super) terms: Vec<(Digit, u64)>,
}

/// How an index varies over the `V` neighbouring elements of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Run {
    /// All of them have the same index.
    Uniform,
    /// Each has the index of the one before it and so much more.
    Stride(u64),
    /// Their indices are neither one nor equally far apart.
    Irregular,
}

/// Variables by number.
#[derive(Debug, Default)]
pub(super) struct Variables {
    /// What they stand for: an index whose digits can't be split where they are asked for, less a
    /// constant that it is never below.
    pub(super) definitions: Vec<(Index, u64)>,
}

impl Variables {
    fn intern(&mut self, index: &Index, start: u64, extent: u64) -> Index {
        let definition = (index.clone(), start);
        let known = self.definitions.iter().position(|d| *d == definition);
        let number = known.unwrap_or_else(|| {
            self.definitions.push(definition);
            self.definitions.len() - 1
        });
        Index::base(Base::Variable(number as u32), extent)
    }

    /// Quotient and remainder.
    pub(super) fn div_rem(&mut self, index: &Index, by: u64) -> (Index, Index) {
        let by = by.max(1);
        if let Some(both) = index.div_rem(by) {
            return both;
        }
        let whole = self.intern(index, 0, index.largest() + 1);
        // A base of one top digit always splits.
        whole.div_rem(by).unwrap_or_default()
    }

    /// `index - start`, known to be in `0..extent`.
    pub(super) fn minus(&mut self, index: &Index, start: u64, extent: u64) -> Index {
        if start == 0 && index.largest() < extent {
            return index.clone();
        }
        if start.is_multiple_of(extent)
            && let Some((_, rest)) = index.div_rem(extent)
        {
            return rest;
        }
        self.intern(index, start, extent)
    }

    /// The flat index of coordinates `at / strides`, as coordinates over `extents`: for each loop
    /// of a dense nest its counter.
    pub(super) fn coordinates(&mut self, at: &Index, extents: &[u64]) -> Vec<Index> {
        let mut rest = at.clone();
        let mut coordinates: Vec<Index> = extents
            .iter()
            .enumerate()
            .rev()
            .map(|(i, &extent)| {
                if i == 0 {
                    return std::mem::take(&mut rest);
                }
                let (quotient, counter) = self.div_rem(&rest, extent);
                rest = quotient;
                counter
            })
            .collect();
        coordinates.reverse();
        coordinates
    }

    fn digit_run(&self, digit: &Digit, width: u64) -> Run {
        let whole = match digit.base {
            Base::Element => Run::Stride(1),
            Base::Variable(n) => self.run(&self.definitions[n as usize].0, width),
        };
        match whole {
            Run::Uniform | Run::Irregular => whole,
            Run::Stride(_) if digit.div == 1 && digit.top => whole,
            Run::Stride(1) if self.base_alignment(digit.base, width) < width => Run::Irregular,
            Run::Stride(1) if digit.div.is_multiple_of(width) => Run::Uniform,
            Run::Stride(1) if digit.div == 1 && digit.modulo.is_multiple_of(width) => whole,
            Run::Stride(_) => Run::Irregular,
        }
    }

    fn base_alignment(&self, base: Base, width: u64) -> u64 {
        match base {
            Base::Element => width,
            Base::Variable(n) => {
                let (index, start) = &self.definitions[n as usize];
                let start = self.alignment(&Index::constant(*start), width, width);
                self.alignment(index, width, width).min(start)
            }
        }
    }

    /// How an index varies over chunks of `width` elements that start at multiples of `width`.
    pub(super) fn run(&self, index: &Index, width: u64) -> Run {
        if width == 1 {
            return Run::Uniform;
        }
        let mut stride = 0;
        for (digit, c) in &index.terms {
            match self.digit_run(digit, width) {
                Run::Uniform => {}
                Run::Stride(s) => stride += s * c,
                Run::Irregular => return Run::Irregular,
            }
        }
        if stride == 0 { Run::Uniform } else { Run::Stride(stride) }
    }

    /// The largest power of two, at most `limit`, that divides an index at the start of every
    /// chunk of `width` elements.
    pub(super) fn alignment(&self, index: &Index, width: u64, limit: u64) -> u64 {
        let power =
            |n: u64| if n == 0 { limit } else { limit.min(1 << n.trailing_zeros().min(62)) };
        index.terms.iter().fold(power(index.constant), |align, (digit, c)| {
            let step = match self.digit_run(digit, width) {
                Run::Stride(_) => self.base_alignment(digit.base, width),
                _ => 1,
            };
            align.min(power(c * step))
        })
    }
}

impl Digit {
    fn print(&self) -> String {
        let base = match self.base {
            Base::Element => "e".to_owned(),
            Base::Variable(n) => format!("i{n}"),
        };
        match (self.div, self.top) {
            (1, true) => base,
            (1, false) => format!("{base} % {}u", self.modulo),
            (div, true) => format!("{base} / {div}u"),
            (div, false) => format!("{base} / {div}u % {}u", self.modulo),
        }
    }
}

impl Index {
    pub(super) fn constant(constant: u64) -> Self {
        Self { constant, terms: Vec::new() }
    }

    /// The whole of a base that is below `extent`.
    pub(super) fn base(base: Base, extent: u64) -> Self {
        let digit = Digit { base, div: 1, modulo: extent, top: true };
        Self { constant: 0, terms: vec![(digit, 1)] }.normal()
    }

    pub(super) fn element(extent: u64) -> Self {
        Self::base(Base::Element, extent)
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let terms = self.terms.iter().chain(&other.terms).copied().collect();
        Self { constant: self.constant + other.constant, terms }.normal()
    }

    pub(super) fn times(&self, factor: u64) -> Self {
        let terms = self.terms.iter().map(|&(d, c)| (d, c * factor)).collect();
        Self { constant: self.constant * factor, terms }.normal()
    }

    /// Its largest value.
    pub(super) fn largest(&self) -> u64 {
        self.terms.iter().fold(self.constant, |sum, (d, c)| sum + c * (d.modulo - 1))
    }

    fn normal(mut self) -> Self {
        self.terms.retain(|(d, c)| *c != 0 && d.modulo > 1);
        self.terms.sort_unstable();
        let mut merged: Vec<(Digit, u64)> = Vec::new();
        for (digit, coefficient) in self.terms {
            match merged.last_mut() {
                // The same digit twice.
                Some((low, c)) if *low == digit => *c += coefficient,
                // Neighbouring digits of one number.
                Some((low, c))
                    if low.base == digit.base
                        && !low.top
                        && low.div * low.modulo == digit.div
                        && *c * low.modulo == coefficient =>
                {
                    low.modulo *= digit.modulo;
                    low.top = digit.top;
                }
                _ => merged.push((digit, coefficient)),
            }
        }
        Self { constant: self.constant, terms: merged }
    }

    /// Quotient and remainder, if digits can say them.
    pub(super) fn div_rem(&self, by: u64) -> Option<(Self, Self)> {
        let mut quotient = Self::constant(self.constant / by);
        let mut rest = Self::constant(self.constant % by);
        for &(digit, c) in &self.terms {
            if c.is_multiple_of(by) {
                quotient.terms.push((digit, c / by));
                continue;
            }
            let split = by / c;
            let splits = by.is_multiple_of(c)
                && digit.modulo > split
                && (digit.top || digit.modulo.is_multiple_of(split));
            if !splits {
                rest.terms.push((digit, c));
                continue;
            }
            let low = Digit { modulo: split, top: false, ..digit };
            let modulo = digit.modulo.div_ceil(split);
            let high = Digit { div: digit.div * split, modulo, ..digit };
            rest.terms.push((low, c));
            quotient.terms.push((high, 1));
        }
        let (quotient, rest) = (quotient.normal(), rest.normal());
        (rest.largest() < by).then_some((quotient, rest))
    }

    /// Variables that it is made of.
    pub(super) fn variables(&self) -> impl Iterator<Item = u32> + '_ {
        self.terms.iter().filter_map(|(d, _)| match d.base {
            Base::Variable(n) => Some(n),
            Base::Element => None,
        })
    }

    /// As a C++ expression of type `u32`.
    pub(super) fn print(&self) -> String {
        let mut text = String::new();
        for (i, (digit, c)) in self.terms.iter().rev().enumerate() {
            let plus = if i == 0 { "" } else { " + " };
            let digit = digit.print();
            let atom = digit.chars().all(char::is_alphanumeric);
            let _ = match (*c, atom) {
                (1, _) if self.terms.len() == 1 && self.constant == 0 => write!(text, "{digit}"),
                (1, true) => write!(text, "{plus}{digit}"),
                (1, false) => write!(text, "{plus}({digit})"),
                (c, true) => write!(text, "{plus}{digit} * {c}u"),
                (c, false) => write!(text, "{plus}({digit}) * {c}u"),
            };
        }
        match (self.constant, text.is_empty()) {
            (c, true) => format!("{c}u"),
            (0, false) => text,
            (c, false) => format!("{text} + {c}u"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(index: &Index, e: u64) -> u64 {
        index.constant + index.terms.iter().map(|(d, c)| c * (e / d.div % d.modulo)).sum::<u64>()
    }

    #[test]
    fn quotients_and_remainders_are_exact() {
        let e = Index::element(96);
        let mut split = 0;
        for by in [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 96, 100] {
            for index in [
                e.clone(),
                e.times(2).plus(&Index::constant(1)),
                e.div_rem(8).map(|(q, r)| r.times(12).plus(&q)).unwrap_or_default(),
                e.div_rem(32).map(|(q, r)| q.times(64).plus(&r)).unwrap_or_default(),
            ] {
                let Some((q, r)) = index.div_rem(by) else { continue };
                split += 1;
                for at in 0..96 {
                    assert_eq!(value(&q, at), value(&index, at) / by, "{index:?} / {by} at {at}");
                    assert_eq!(value(&r, at), value(&index, at) % by, "{index:?} % {by} at {at}");
                }
            }
        }
        assert!(split > 40, "{split}");
    }

    #[test]
    fn digits_that_belong_together_become_one_again() {
        let e = Index::element(4096);
        let (q, r) = e.div_rem(128).unwrap_or_default();
        assert_eq!(q.times(128).plus(&r), e);
        assert_eq!(q.print(), "e / 128u");
        assert_eq!(r.print(), "e % 128u");
        let mut variables = Variables::default();
        assert_eq!(variables.run(&r, 8), Run::Stride(1));
        assert_eq!(variables.run(&q, 8), Run::Uniform);
        assert_eq!(variables.alignment(&r.plus(&Index::constant(64)), 8, 16), 8);
        let (_, sixth) = variables.div_rem(&e, 6);
        assert_eq!(variables.run(&sixth, 4), Run::Irregular);
        let part = variables.minus(&r, 48, 80);
        assert_eq!(part.print(), "i0");
        assert_eq!(
            (variables.run(&part, 8), variables.alignment(&part, 8, 64)),
            (Run::Stride(1), 8)
        );
    }
}
