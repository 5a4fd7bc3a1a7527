//! Token ids to rows and embeddings.

use super::super::progress::watcher;
use super::args::EncodeArgs;
use super::items::{Named, Output, encode_items};
use crate::tensor_file::{TensorFile, Tensors};
use anyhow::bail;
use piecewise::encoding::{TextEncoder, TextItem};
use piecewise::models::Checkpoint;
use piecewise::models::encoder::{TextEncoderConfig, TextOutput};
use piecewise_runtime::config::ConfigLayers;

pub(super) fn encode(
    args: &EncodeArgs,
    layers: ConfigLayers,
    file: &TensorFile,
) -> anyhow::Result<(Vec<Output>, usize)> {
    let folder = &args.model.model;
    let config = TextEncoderConfig::load(folder)?;
    let kinds = config.outputs(&Checkpoint::open(folder)?);
    let items = items(&file.tensors()?)?;
    // Longer ones are refused.
    let rows = |item: &TextItem| item.ids.len().min(config.longest());
    let load = |layers| Ok(TextEncoder::load(folder, layers, &kinds, watcher())?);
    let results = encode_items(args, layers, items, rows, load)?;
    let (mut outputs, mut failed) = (Vec::new(), 0);
    for (number, result) in results {
        let Ok(values) = result else {
            failed += 1;
            continue;
        };
        for (kind, values) in kinds.iter().zip(values) {
            let width = config.hidden_size();
            let (name, shape) = match kind {
                TextOutput::Rows => ("last_hidden_state", vec![values.len() / width, width]),
                TextOutput::Embedding => ("embedding", vec![values.len()]),
                TextOutput::Pooler => ("pooler_output", vec![values.len()]),
                TextOutput::Scores => ("logits", vec![values.len()]),
            };
            outputs.push(Output { name: format!("{name}_{number}"), shape, values });
        }
    }
    Ok((outputs, failed))
}

fn items(tensors: &Tensors<'_>) -> anyhow::Result<Vec<Named<TextItem>>> {
    let numbers = tensors.numbers("ids");
    if numbers.is_empty() {
        bail!("{} has no items: of a text encoder they are ids_0, ids_1, .. [n]", tensors.file());
    }
    let item = |number: u64| {
        let ids = tensors.list(&format!("ids_{number}"))?;
        let types = format!("token_types_{number}");
        let token_types = if tensors.has(&types) { tensors.list(&types)? } else { Vec::new() };
        if token_types.is_empty() && tensors.has(&types) && !ids.is_empty() {
            bail!("`{types}` is empty, but there are {} tokens", ids.len());
        }
        Ok(TextItem { ids, token_types })
    };
    let named = |number| Named { name: format!("ids_{number}"), number, item: item(number) };
    Ok(numbers.into_iter().map(named).collect())
}
