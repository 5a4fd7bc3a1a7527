//! What a step timer does, whatever device the model was built for.

use super::error::MeasureError;
use super::plan::PlannedStep;
use super::timeline::Timeline;
use crate::steps::{Model, StepLaunch};
use crate::words::{CapturedGraph, FallbackReason, GraphMode, Progress, StepMode, StepSizes};
use piecewise_backend::measure::{GraphShape, LaunchCounts, ReadBandwidth, Versions};
use std::time::Duration;

/// A step as it was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepRecord {
    /// Between the marks around the step, by the device's clock.
    pub device: Duration,
    /// From the end of the step before to the end of this one, as the host saw them.
    pub wall: Duration,
    /// From the first chunk of the batch to the last call of the driver.
    pub submit: Duration,
    /// How many launches were enqueued, of graphs and of kernels.
    pub launches: LaunchCounts,
    /// Whether it was launched, replayed in pieces or as a whole.
    pub mode: StepMode,
    /// Padded counts, or its own ones where it was launched.
    pub sizes: StepSizes,
    /// Why it did not replay where its mode would.
    pub fallback: Option<FallbackReason>,
    /// The ids that it sampled, in the order of its chunks.
    pub ids: Vec<u32>,
}

/// What capturing a mode took.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CaptureReport {
    /// Each graph, in the order of capture.
    pub graphs: Vec<CapturedGraph>,
    /// The whole, with the warm-up.
    pub time: Duration,
    /// By how much the device's free memory fell; `None` where that is only estimated.
    pub bytes: Option<u64>,
    /// What is in the graphs.
    pub shape: GraphShape,
}

/// Bytes that the parts of a model held, by the driver's figure of free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct HeldBytes {
    /// Slots and scratch.
    pub arena: u64,
    /// Made ones included.
    pub weights: u64,
    /// KV pages and slots of sequences.
    pub states: u64,
}

/// Runs planned steps on sequences of its own and times them.
pub trait StepTimer: std::fmt::Debug + Send {
    /// Runs steps in order, each submitted before the one before it is read. With `launched` they
    /// are launched at the sizes that they would replay at.
    ///
    /// # Errors
    /// When a step does not fit the model, or the device fails.
    fn run(
        &mut self,
        steps: &[PlannedStep],
        launched: bool,
    ) -> Result<Vec<StepRecord>, MeasureError>;

    /// Captures the graphs of `mode` instead of those that there are.
    ///
    /// # Errors
    /// When the mode can't be captured.
    fn recapture(
        &mut self,
        mode: GraphMode,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CaptureReport, MeasureError>;

    /// Where and when the blocks of the whole steps of these sizes ran at their last replay.
    ///
    /// # Errors
    /// When nothing was noted of them, or work before failed.
    fn timeline(&mut self, sizes: StepSizes) -> Result<Timeline, MeasureError>;

    /// The host's time for the driver's calls alone that the launches of a measured step take: the
    /// median of several; `None` where there is no driver.
    ///
    /// # Errors
    /// When a call fails.
    fn bare_submit(&mut self, record: &StepRecord) -> Result<Option<Duration>, MeasureError>;

    /// The launches of a whole step of these sizes, in order; see
    /// [`CompiledModel::step_launches`](crate::steps::CompiledModel::step_launches).
    fn step_launches(&self, sizes: StepSizes) -> Vec<StepLaunch>;

    /// Leaves launches out of every program and drops every graph: steps compute something else
    /// from then on. Returns how many launches are left out, over all sizes.
    fn leave_out(&mut self, is_left_out: &dyn Fn(&StepLaunch) -> bool) -> usize;

    /// How fast the device reads its memory, measured now.
    ///
    /// # Errors
    /// When memory is short or the device fails.
    fn read_bandwidth(&mut self) -> Result<ReadBandwidth, MeasureError>;

    /// The device's free memory; `None` where its driver does not count it.
    fn free_bytes(&self) -> Option<u64>;

    /// Gives the memory of each part back, one after the other, and tells by how much the driver's
    /// figure of free memory grew; `None` where there is none.
    ///
    /// # Errors
    /// When work before failed, or memory can't be given back.
    fn give_back(self: Box<Self>) -> Result<Option<HeldBytes>, MeasureError>;

    /// The model: what it was compiled from, what was compiled and chosen, and its memory.
    fn model(&self) -> &dyn Model;

    /// Bytes of the device's last cache; 0 where unknown.
    fn cache_bytes(&self) -> u64;

    /// Versions of what figures of the device depend on besides this program, by name, as far as they
    /// are in use by now.
    fn versions(&self) -> Versions;

    /// The model of the device alone: what is measured on one of them holds for others.
    fn device_model(&self) -> String;
}
