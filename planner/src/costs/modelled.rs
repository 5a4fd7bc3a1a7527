//! Costs from a roofline and launch overheads, where nothing was measured.

use super::measured::MAX_US;
use super::{MonotoneCurve, PathCosts, StepCosts};
use crate::head::LogHead;
use crate::traffic::MAX_STEP_TOKENS;

/// A dense decoder on one device. Attention is left out: it costs the same at every size that
/// holds a step, so it moves no choice.
///
/// With `n` tokens, `p` parameters, `w` bytes of weights and `a` bytes of activations for each
/// token, a step takes `max((w + a n) / bandwidth, 2 p n / flops)`; replay and launch add their
/// overhead to that. `a` is 19 values of the hidden width for each layer, written and read between
/// the launches (norms, q/k/v, attention, three MLP values of three widths, residuals); the width
/// follows from `p = 12 layers width^2`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelledCosts {
    /// How many weights each step reads, experts and embeddings not told apart.
    pub parameters: f64,
    /// Bytes that a weight takes as it is read: 2 for bf16.
    pub bytes_per_parameter: f64,
    /// Layers; each has one split op and 6 launches.
    pub layers: u32,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Matmul rate in operations per second, as reached, not as advertised.
    pub flops: f64,
}

impl Default for ModelledCosts {
    /// Eight billion parameters in bf16 over 36 layers on one H100: 3.0 TB/s of read bandwidth,
    /// 600 TFLOP/s in large matmuls.
    fn default() -> Self {
        Self {
            parameters: 8e9,
            bytes_per_parameter: 2.0,
            layers: 36,
            bandwidth: 3.0e12,
            flops: 6.0e14,
        }
    }
}

/// Read bandwidth and matmul rate of devices by what their descriptions contain, at nine tenths and
/// at six tenths of what their makers publish; of a processor, the only one with threads, those of a
/// few cores.
const DEVICES: [(&str, f64, f64); 6] = [
    (" threads, ", 2.0e10, 1.0e11),
    ("H200", 4.3e12, 6.0e14),
    ("H100", 3.0e12, 6.0e14),
    ("A100", 1.8e12, 1.9e14),
    ("L40S", 7.8e11, 2.2e14),
    ("L4", 2.7e11, 7.0e13),
];

/// Launches of one layer, its split op included.
const LAUNCHES_PER_LAYER: f64 = 6.0;

/// Launches outside the layers: embedding, final norm, head, sampling.
const OTHER_LAUNCHES: f64 = 4.0;

// As measured on an H100, in microseconds: what the host takes for a plain launch and for a graph's, what
// the device idles between two dependent kernels launched or in a graph, and where a graph ends at a launch
// and the next begins.
const LAUNCH_US: f64 = 4.0;
const GRAPH_LAUNCH_US: f64 = 3.0;
const LAUNCH_GAP_US: f64 = 2.1;
const GRAPH_GAP_US: f64 = 0.9;
const BOUNDARY_US: f64 = 2.1;

/// Bytes that a captured graph keeps, and for each node.
const GRAPH_BYTES: f64 = 64.0 * 1024.0;
const NODE_BYTES: f64 = 36.0 * 1024.0;

/// Microseconds to capture and instantiate one node.
const NODE_CAPTURE_US: f64 = 8.0;

/// Values of the hidden width that a layer moves through memory for each token.
const VALUES_PER_LAYER: f64 = 19.0;

impl ModelledCosts {
    /// The same with what the head of a log says of the model, and what is known of its device, where
    /// that is one of those in a list.
    #[must_use]
    pub fn of_log(mut self, head: &LogHead) -> Self {
        if let Some(parameters) = head.parameters.filter(|&parameters| parameters > 0) {
            self.parameters = parameters as f64;
            if let Some(bytes) = head.weight_bytes.filter(|&bytes| bytes > 0) {
                self.bytes_per_parameter = bytes as f64 / self.parameters;
            }
        }
        self.layers = head.layers.filter(|&layers| layers > 0).unwrap_or(self.layers);
        let named = head
            .device
            .iter()
            .flat_map(|device| DEVICES.iter().find(|(name, ..)| device.contains(name)));
        for &(_, bandwidth, flops) in named {
            (self.bandwidth, self.flops) = (bandwidth, flops);
        }
        self
    }

    /// The curves of this model.
    pub fn costs(&self) -> StepCosts {
        let layers = f64::from(self.layers);
        let launches = layers * LAUNCHES_PER_LAYER + OTHER_LAUNCHES;
        let captured_by_pieces = launches - layers;
        let piecewise = |tokens: f64| {
            let host = (layers + 1.0) * GRAPH_LAUNCH_US + layers * LAUNCH_US;
            let device =
                self.roofline_us(tokens) + captured_by_pieces * GRAPH_GAP_US + layers * BOUNDARY_US;
            host.max(device)
        };
        let full =
            |tokens: f64| GRAPH_LAUNCH_US + self.roofline_us(tokens) + launches * GRAPH_GAP_US;
        let launched = |tokens: f64| {
            (launches * LAUNCH_US).max(self.roofline_us(tokens) + launches * LAUNCH_GAP_US)
        };
        let parameters = match self.parameters {
            few if few < 1e8 => format!("{:.1} million", few / 1e6),
            many => format!("{:.1} billion", many / 1e9),
        };
        let bandwidth = match self.bandwidth {
            little if little < 1e11 => format!("{:.0} GB/s", little / 1e9),
            much => format!("{:.1} TB/s", much / 1e12),
        };
        let flops = match self.flops {
            few if few < 1e12 => format!("{:.0} GFLOP/s", few / 1e9),
            many => format!("{:.0} TFLOP/s", many / 1e12),
        };
        let origin = format!(
            "modelled: {parameters} parameters, {} layers, {bandwidth}, {flops}",
            self.layers
        );
        StepCosts {
            piecewise: path(&piecewise, captured_by_pieces, layers + 1.0),
            full: path(&full, launches, 1.0),
            launched: path(&launched, 0.0, 0.0),
            origin,
        }
    }

    fn roofline_us(&self, tokens: f64) -> f64 {
        let weights = self.parameters * self.bytes_per_parameter;
        let layers = f64::from(self.layers);
        let width = (self.parameters / (12.0 * layers)).sqrt();
        let activations = VALUES_PER_LAYER * layers * width * self.bytes_per_parameter;
        let read = (weights + activations * tokens) / self.bandwidth;
        let compute = 2.0 * self.parameters * tokens / self.flops;
        read.max(compute) * 1e6
    }
}

/// The costs of steps that take `us(tokens)` microseconds, in `graphs` graphs of `nodes` nodes together.
fn path(us: &dyn Fn(f64) -> f64, nodes: f64, graphs: f64) -> Option<PathCosts> {
    let nanoseconds = |us: f64| (us.min(MAX_US) * 1e3).round() as u64;
    let sizes = sampled_tokens();
    let curve = |value: &dyn Fn(f64) -> u64| {
        MonotoneCurve::fit(sizes.iter().map(|n| (*n, value(f64::from(*n)))).collect())
    };
    Some(PathCosts {
        step_ns: curve(&|tokens| nanoseconds(us(tokens)))?,
        memory_bytes: curve(&|_| (nodes * NODE_BYTES + graphs * GRAPH_BYTES).round() as u64),
        capture_ns: curve(&|tokens| nanoseconds(us(tokens) + nodes * NODE_CAPTURE_US)),
    })
}

/// Every count up to 64, then steps of a sixty-fourth, so that interpolation follows the kinks.
fn sampled_tokens() -> Vec<u32> {
    let mut sizes = vec![1];
    while let Some(last) = sizes.last().copied().filter(|last| *last < MAX_STEP_TOKENS) {
        sizes.push((last + 1 + last / 64).min(MAX_STEP_TOKENS));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CostPath;

    #[test]
    fn a_decode_is_bound_by_memory_and_a_prefill_by_compute() {
        let costs = ModelledCosts::default().costs();
        let us = |path, tokens| costs.path(path).unwrap().step_ns.at(tokens) as f64 / 1e3;
        assert!((us(CostPath::Full, 1) - (5335.3 + 3.0 + 220.0 * 0.9)).abs() < 1.0);
        let slope = (us(CostPath::Full, 128) - us(CostPath::Full, 1)) / 127.0;
        assert!((slope - 1.96).abs() < 0.02, "{slope}");
        let prefill = us(CostPath::Piecewise, 8192);
        assert!((prefill - (218_453.0 + 184.0 * 0.9 + 36.0 * 2.1)).abs() < 5.0, "{prefill}");
        assert!(us(CostPath::Launched, 1) > us(CostPath::Piecewise, 1));
        assert!(us(CostPath::Piecewise, 1) > us(CostPath::Full, 1));
    }

    #[test]
    fn the_head_of_a_log_says_whose_costs_they_are() {
        let head = |device: &str| LogHead {
            device: Some(device.to_owned()),
            parameters: Some(5_000_000),
            weight_bytes: Some(10_000_000),
            layers: Some(6),
            ..LogHead::default()
        };
        let of = |device: &str| ModelledCosts::default().of_log(&head(device));
        let cpu = of("AMD EPYC, 2 threads, avx512");
        assert_eq!((cpu.parameters, cpu.bytes_per_parameter, cpu.layers), (5e6, 2.0, 6));
        assert_eq!((cpu.bandwidth, cpu.flops), (2.0e10, 1.0e11));
        let said = cpu.costs().origin;
        assert_eq!(said, "modelled: 5.0 million parameters, 6 layers, 20 GB/s, 100 GFLOP/s");
        let bandwidths = ["H200", "H100 80GB HBM3", "A100-SXM4-80GB", "L40S", "L4", "Z1"]
            .map(|name| of(&format!("cuda:0 NVIDIA {name}")).bandwidth);
        let unknown = ModelledCosts::default().bandwidth;
        assert_eq!(bandwidths, [4.3e12, 3.0e12, 1.8e12, 7.8e11, 2.7e11, unknown]);
        assert_eq!(ModelledCosts::default().of_log(&LogHead::default()), ModelledCosts::default());
    }
}
