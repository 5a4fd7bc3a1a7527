//! Devices by name.

use piecewise_backend::cuda::Arch;
use std::str::FromStr;

/// A device by its name: `cpu`, `cuda`, `cuda:1`, `auto`, or `cuda:sm_90a` for an architecture to
/// compile for without a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display, Default)]
pub enum DeviceSpec {
    /// The processor, with as many threads as are asked for.
    #[default]
    #[display("cpu")]
    Cpu,
    /// The CUDA device of this number.
    #[display("cuda:{_0}")]
    Cuda(u32),
    /// The first CUDA device where models run on it, else the processor.
    #[display("auto")]
    Auto,
    /// An architecture to compile for without a device of it.
    #[display("cuda:{_0}")]
    Arch(Arch),
}

impl FromStr for DeviceSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}` is no device; write cpu, cuda, cuda:N, auto, or to inspect without a \
                 GPU cuda:sm_90a"
            )
        };
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            None if text == "auto" => Ok(Self::Auto),
            Some(("cuda", arch)) if arch.starts_with("sm_") => arch.parse().map(Self::Arch),
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| expected()),
            _ => Err(expected()),
        }
    }
}
