//! Both sides give the reference tokens of the tiny model.

use crate::candle_side::Candle;
use crate::contest::Side;
use crate::model::Model;
use crate::piecewise_side::Piecewise;
use anyhow::{Context, ensure};
use candle_core::DType as CandleType;
use piecewise_ir::dtype::DType;
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
struct Golden {
    ids: Vec<u32>,
    greedy_fp32: Vec<u32>,
}

/// Holds both sides, in f32, against `golden.json`.
pub fn check(
    folder: &Path,
    model: &Model,
    pool: &rayon::ThreadPool,
    threads: usize,
    alone: bool,
) -> anyhow::Result<()> {
    let file = folder.join("golden.json");
    let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let golden: Vec<Golden> = serde_json::from_slice(&text)?;
    let mut sides: Vec<Box<dyn Side + '_>> =
        vec![Box::new(Piecewise::new(model, DType::F32, threads)?)];
    if !alone {
        sides.push(Box::new(Candle::new(model, CandleType::F32, pool)?));
    }
    for side in &mut sides {
        for Golden { ids, greedy_fp32 } in &golden {
            let mut tokens = vec![side.start(ids, greedy_fp32.len())?];
            while tokens.len() < greedy_fp32.len() {
                tokens.push(side.step()?);
            }
            ensure!(
                tokens == *greedy_fp32,
                "{} gives {tokens:?}, not {greedy_fp32:?}",
                side.name()
            );
        }
        println!("golden tokens   {} prompts equal: {}", golden.len(), side.name());
    }
    Ok(())
}
