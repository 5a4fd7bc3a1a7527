//! The search: levels, then passes, then rewrites, then kernels.

use super::bisection::Bisection;
use super::candidate::{Outcome, Passed};
use super::finding::{Culprit, Finding, PassFault, RewriteFault, Verdict, WrongValue};
use super::kernels::{self, Kernels};
use super::values::{Exposed, first_wrong};
use crate::trial::{TrialError, run_on_device};
use piecewise_passes::Pipeline;
use piecewise_passes::manager::unified_diff;
use piecewise_passes::rewrite::Rewrites;
use piecewise_runtime::pipeline::PassLimits;
use piecewise_runtime::words::CompileLevel;

/// More rewrites than a pass does.
const MOST_REWRITES: u64 = 1 << 24;

impl Bisection<'_> {
    /// Finds what is at fault. `say` is told of each try.
    ///
    /// # Errors
    /// When the graph can't be put together even without its passes, in a way that shows nothing of them.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Finding, TrialError> {
        Search::new(self, say)?.run()
    }
}

struct Search<'a, 'b> {
    of: &'a Bisection<'a>,
    say: &'b mut dyn FnMut(&str),
    pipeline: Pipeline,
    runs: usize,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(of: &'a Bisection<'a>, say: &'b mut dyn FnMut(&str)) -> Result<Self, TrialError> {
        Ok(Self { of, say, pipeline: of.trial.subject.pipeline()?, runs: 0 })
    }

    /// Tries a part of the passes, launched.
    fn tried(&mut self, passes: usize, rewrites: Option<u64>) -> Outcome {
        let limits = PassLimits { passes: Some(passes), rewrites };
        let outcome = self.of.outcome(Some(CompileLevel::Compile), limits);
        let part = match (passes.checked_sub(1).map(|last| &self.pipeline.passes[last]), rewrites) {
            (None, _) => "no pass but those that must run".to_owned(),
            (Some(last), None) => format!("passes up to ({passes}) {}", last.name),
            (Some(last), Some(n)) => format!("passes up to ({passes}) {}, {n} rewrites", last.name),
        };
        self.told(&part, outcome)
    }

    fn told(&mut self, part: &str, outcome: Outcome) -> Outcome {
        self.runs += 1;
        (self.say)(&match outcome.said() {
            None => format!("{part}: right"),
            // The first line says enough of what will be shown in the end.
            Some(said) => format!("{part}: {}", said.lines().next().unwrap_or_default()),
        });
        outcome
    }

    fn run(mut self) -> Result<Finding, TrialError> {
        let level = self.of.trial.subject.config().level;
        let whole = self.of.outcome(None, PassLimits::default());
        let whole = self.told(&format!("at the level {}", level.name()), whole);
        let culprit = match whole.is_right() {
            true => Culprit::Nothing,
            false => self.culprit(level)?,
        };
        let wrong = whole.said().map(str::to_owned);
        Ok(Finding { wrong, culprit, runs: self.runs })
    }

    fn culprit(&mut self, level: CompileLevel) -> Result<Culprit, TrialError> {
        if matches!(level, CompileLevel::Eager | CompileLevel::Trace) {
            return self.kernel(&self.of.passed(0, None)?, "op by op");
        }
        if level == CompileLevel::Piecewise {
            let limits = PassLimits::default();
            let launched = self.of.outcome(Some(CompileLevel::Compile), limits);
            if self.told("all passes, launched and not replayed", launched).is_right() {
                return Ok(Culprit::Replay { said: self.compared() });
            }
        }
        if !self.tried(0, None).is_right() {
            return self.kernel(&self.of.passed(0, None)?, "without a pass");
        }
        let (mut right, mut wrong) = (0, self.pipeline.passes.len());
        if self.tried(wrong, None).is_right() {
            let because = "with the same passes it was right when it was tried again: what it does is \
                           not the same twice";
            return Ok(Culprit::Unknown { because: because.to_owned() });
        }
        while wrong - right > 1 {
            let middle = right.midpoint(wrong);
            match self.tried(middle, None).is_right() {
                true => right = middle,
                false => wrong = middle,
            }
        }
        self.pass(wrong).map(|fault| Culprit::Pass(Box::new(fault)))
    }

    /// The pass at a place, from 1 on, with which the graph is wrong and without which it is right.
    fn pass(&mut self, number: usize) -> Result<PassFault, TrialError> {
        let (without, with) = (self.of.passed(number - 1, None)?, self.of.passed(number, None)?);
        let first = without.done();
        // Of a pass that does not end nobody knows how many it would do.
        let last = with.rewrites.as_ref().map_or(first + MOST_REWRITES, Rewrites::done);
        let counts = last > first && self.tried(number, Some(first)).is_right();
        let (mut before, mut after, mut rewrite) = (without, with, None);
        if counts {
            let (mut right, mut wrong) = (first, last);
            while wrong - right > 1 {
                let middle = right.midpoint(wrong);
                match self.tried(number, Some(middle)).is_right() {
                    true => right = middle,
                    false => wrong = middle,
                }
            }
            before = self.of.passed(number, Some(right))?;
            after = self.of.passed(number, Some(wrong))?;
            let known = after.rewrites.as_ref().and_then(Rewrites::last);
            rewrite = known.map(|(rule, place)| RewriteFault {
                number: wrong,
                of: last,
                rule: rule.to_owned(),
                place: place.to_owned(),
            });
        }
        let name = self.pipeline.passes[number - 1].name.clone();
        let mut fault = PassFault {
            number,
            rewrite,
            diff: String::new(),
            verdict: Verdict::Failed,
            first_wrong: None,
            name,
        };
        if after.rewrites.is_none() {
            return Ok(fault);
        }
        let [old, new] = ["before", "after"].map(|when| format!("{when} {}", fault.name));
        fault.diff = unified_diff(&before.text, &after.text, &old, &new);
        (fault.verdict, fault.first_wrong) = self.judged(&before, &after);
        Ok(fault)
    }

    /// Whether a rewrite is wrong or a kernel that is made of it, and the first value that is.
    fn judged(&self, before: &Passed, after: &Passed) -> (Verdict, Option<WrongValue>) {
        let exposed = [before, after].map(|passed| Exposed::of(&passed.graph));
        let tolerance = self.of.tolerance;
        let both = |values: [Result<Vec<_>, TrialError>; 2]| match values {
            [Ok(before), Ok(after)] => Ok((before, after)),
            [Err(error), _] | [_, Err(error)] => Err(error),
        };
        let exact = both(exposed.each_ref().map(|exposed| exposed.by_reference(self.of)));
        if let Ok((expected, found)) = &exact {
            if let Some(wrong) = first_wrong(&exposed, [expected, found], tolerance) {
                return (Verdict::WrongRewrite, Some(wrong));
            }
            let kernel = match kernels::look(self.of, &exposed[1]) {
                Ok(Kernels::Wrong(wrong)) => Some(wrong),
                Ok(Kernels::Right { .. }) | Err(_) => None,
            };
            return (Verdict::WrongKernel, kernel);
        }
        match both(exposed.each_ref().map(|exposed| exposed.on_device(self.of))) {
            Ok((expected, found)) => {
                (Verdict::Unknown, first_wrong(&exposed, [&expected, &found], tolerance))
            }
            Err(_) => (Verdict::Failed, None),
        }
    }

    /// The kernel that is wrong of a graph as it is.
    fn kernel(&mut self, passed: &Passed, how: &str) -> Result<Culprit, TrialError> {
        self.runs += 1;
        Ok(match kernels::look(self.of, &Exposed::of(&passed.graph))? {
            Kernels::Wrong(wrong) => Culprit::Kernel(wrong),
            Kernels::Right { unseen } => {
                let besides = match unseen.is_empty() {
                    true => String::new(),
                    false => format!(", as far as could be seen (not: {})", unseen.join(", ")),
                };
                let because = format!(
                    "{how} it is wrong already, and each kernel alone does what its op says{besides}: \
                     what differs comes of many small errors, or of the plan; try a larger tolerance, \
                     or `--check poison`"
                );
                Culprit::Unknown { because }
            }
        })
    }

    /// What the check of replays against launches says.
    fn compared(&self) -> String {
        let run = || -> Result<(), TrialError> {
            let graph = self.of.trial.graph();
            let assembly = self.of.trial.subject.assembly(graph.clone())?;
            run_on_device(assembly.set("checks.compare", true), graph, &self.of.feed).map(drop)
        };
        run().err().map_or_else(
            || {
                "the check of each replay against a launch (`--check compare`) finds nothing"
                    .to_owned()
            },
            |error| error.to_string(),
        )
    }
}
