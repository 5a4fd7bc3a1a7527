//! Compiles transformer models into pieces, and replays them as CUDA graphs.
//!
//! A model is a graph, written with the [`Builder`](prelude::Builder). Passes fuse it into regions
//! and cut it at its split ops, such as attention, into pieces; each unique piece is compiled once
//! for each capture size, captured as a CUDA graph, and replayed over one arena of fixed addresses. On
//! the CPU the same is done with recorded launches.
//!
//! | You want to | Start at |
//! | --- | --- |
//! | run a graph, a folder, a preset or a text | [`assembly::Assembly`] |
//! | write an op of your own | [`CustomOpDef`](prelude::CustomOpDef), [`CpuOp`](prelude::CpuOp) |
//! | run on a GPU, or several models on one | [`device::DeviceSpec`], [`device::OpenDevice`] |
//! | embed texts | [`encoding::TextEncoder`] |
//! | serve requests | [`Engine`](prelude::Engine) |
//! | know what was compiled, and share it | [`cache`], [`runtime::store`] |
//! | choose capture sizes | [`planner`] |
//! | measure steps | [`ModelTimer`](prelude::ModelTimer) |
//! | write a pass | [`passes`] |
//! | read a dump | [`ir::text`] |
//!
//! A feed-forward block of two layers with an RMS norm, at any number of rows up to 64:
//!
//! ```
//! use piecewise::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let b = Builder::new("mlp").weight_dtype(DType::F32);
//! let rows = b.symbol("T", 1, 64);
//! let x = b.input("x", DType::F32, (rows, 4));
//! let hidden = x.rms_norm(b.weight("norm", [4]), 1e-6).linear(b.weight("up", [8, 4])).silu();
//! let graph = b.finish([x + hidden.linear(b.weight("down", [4, 8]))])?;
//!
//! let weights = InMemoryWeights::new()
//!     .with("norm", [4], vec![1.0f32; 4])
//!     .with("up", [8, 4], vec![0.5f32; 32])
//!     .with("down", [4, 8], vec![0.25f32; 32]);
//! let mut session = Assembly::graph(graph).weights(weights).capture_sizes([1, 8, 64]).session()?;
//!
//! let outputs = session.step().input("x", &[1.0f32, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]).run()?;
//! assert_eq!(outputs.shape(0)?, [2, 4]);
//! let y: Vec<f32> = outputs.get(0)?;
//! // Four ones times 0.5 make 2, of which eight times silu(2) * 0.25 are added to each element.
//! let added = 8.0 * 0.25 * 2.0 / (1.0 + (-2.0f32).exp());
//! assert!((y[0] - (1.0 + added)).abs() < 1e-4);
//! assert!((y[4] - (2.0 + added)).abs() < 1e-4);
//! # Ok(())
//! # }
//! ```
//!
//! Who runs models chooses sizes from a log of steps, compiles ahead of time, and looks at what is
//! kept:
//!
//! ```
//! use piecewise::cache::{Cache, CacheOptions};
//! use piecewise::planner::{ModelledCosts, PlanRequest, ReadOptions, plan, read_log};
//! use piecewise::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let dir = folder.path().to_str().ok_or("a path in UTF-8")?;
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-qwen3");
//! let log = "{\"tokens\":2}\n".repeat(50) + &"{\"tokens\":7}\n".repeat(9);
//! let traffic = read_log(log.as_bytes(), ReadOptions::default())?.traffic;
//! let request = PlanRequest { max_graphs: Some(2), ..PlanRequest::default() };
//! let chosen = plan(request.on(&traffic, &ModelledCosts::default().costs()))?.sizes;
//! let sizes = chosen.capture_num_tokens.into_iter().map(u64::from);
//!
//! let file = "max_num_tokens = 16\nmax_num_seqs = 4\nmax_seq_len = 64";
//! let layers = ConfigLayers::new().file("serving.toml", file)?.set("cache.dir", dir)?;
//! let planned = Assembly::folder(model)?.configure(layers).capture_sizes(sizes).plan()?;
//! let compiled: usize = planned.artifacts()?.iter().map(Vec::len).sum();
//! assert!(planned.ledger()?.total() > planned.ledger()?.weights);
//!
//! // On the same machine, or after the cache was exported to another.
//! let cache = Cache::open(CacheOptions::new(dir));
//! let kept = cache.entries()?;
//! assert_eq!(kept.iter().filter(|entry| entry.kind == "piece").count(), compiled);
//! assert!(cache.verify(false).is_clean());
//! # Ok(())
//! # }
//! ```

pub use piecewise_backend as backend;
pub use piecewise_cache as cache;
pub use piecewise_ir as ir;
pub use piecewise_passes as passes;
pub use piecewise_planner as planner;
pub use piecewise_runtime as runtime;

pub mod assembly;
pub mod bisect;
pub mod device;
pub mod encoding;
pub mod models;
mod op_check;
pub mod prelude;
pub mod session;
pub mod trial;

/// What computes, and the traits by which custom ops are implemented: the crate `piecewise-kernels`, with
/// the check of an op's declarations.
pub mod kernels {
    #[doc(inline)]
    pub use piecewise_kernels::*;

    /// Implementations of custom ops, and whether they are what they declare.
    pub mod op {
        pub use crate::op_check::{OpCase, OpCheckError, OpFault, OpReport, check, check_beside};
        #[doc(inline)]
        pub use piecewise_kernels::op::*;
    }
}
