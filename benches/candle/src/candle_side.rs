//! Candle's side of a contest: its Qwen3, with the newest token's logits and their argmax.

use crate::contest::Side;
use crate::model::Model;
use anyhow::bail;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen3::ModelForCausalLM;

/// Candle's types, as it may run on the CPU.
pub const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Decodes with candle.
pub struct Candle<'p> {
    name: String,
    model: ModelForCausalLM,
    pool: &'p rayon::ThreadPool,
    last: u32,
    position: usize,
}

impl<'p> Candle<'p> {
    pub fn new(model: &Model, dtype: DType, pool: &'p rayon::ThreadPool) -> anyhow::Result<Self> {
        let tensors = model.weights.0.clone();
        let vars = VarBuilder::from_tensors(tensors, dtype, &Device::Cpu);
        Ok(Self {
            name: format!("candle {}", dtype.as_str()),
            model: ModelForCausalLM::new(&model.candle, vars)?,
            pool,
            last: 0,
            position: 0,
        })
    }

    fn forward(&mut self, ids: &[u32]) -> anyhow::Result<u32> {
        let Self { model, pool, position, .. } = self;
        let logits = pool.install(|| {
            let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
            model.forward(&input, *position)?.argmax(D::Minus1)?.flatten_all()?.to_vec1::<u32>()
        })?;
        let [id] = logits[..] else { bail!("{} ids for one row", logits.len()) };
        self.position += ids.len();
        self.last = id;
        Ok(id)
    }
}

impl Side for Candle<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&mut self, prompt: &[u32], _: usize) -> anyhow::Result<u32> {
        self.model.clear_kv_cache();
        self.position = 0;
        self.forward(prompt)
    }

    fn step(&mut self) -> anyhow::Result<u32> {
        let last = self.last;
        self.forward(&[last])
    }

    fn bytes_read(&self, _: u64) -> u64 {
        0
    }
}
