//! Items on their way through an encoder.

use super::super::encoder_args::{in_calls, with_room_for};
use super::super::logs::say;
use super::args::EncodeArgs;
use piecewise::encoding::{Encoder, ItemEncoder, ItemOutputs};
use piecewise_runtime::config::ConfigLayers;

/// An item, or why it is none.
pub(super) struct Named<T> {
    /// By which errors name the item.
    pub(super) name: String,
    /// The number in the names of its outputs.
    pub(super) number: u64,
    pub(super) item: anyhow::Result<T>,
}

pub(super) struct Output {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f32>,
}

/// The number and the outputs of each item in the order of `items`, of one that has none the reason;
/// reasons are said too. `load` makes the encoder for items of so many rows at most.
pub(super) fn encode_items<M: ItemEncoder>(
    args: &EncodeArgs,
    layers: ConfigLayers,
    items: Vec<Named<M::Item>>,
    rows: impl Fn(&M::Item) -> usize,
    load: impl FnOnce(ConfigLayers) -> anyhow::Result<Encoder<M>>,
) -> anyhow::Result<Vec<(u64, anyhow::Result<ItemOutputs>)>> {
    let largest = items.iter().filter_map(|named| named.item.as_ref().ok()).map(rows).max();
    let mut good = Vec::with_capacity(items.len());
    let mut names = Vec::with_capacity(items.len());
    let mut results = Vec::with_capacity(items.len());
    for Named { name, number, item } in items {
        let item = item.map(|item| good.push(item));
        names.push(name);
        results.push((number, item.map(|()| ItemOutputs::new())));
    }
    if let Some(largest) = largest {
        let mut encoder = load(with_room_for(layers, &args.model.model, largest as u64)?)?;
        args.encoder.prepare(&mut encoder)?;
        let encoded = in_calls("encoding", good.len(), |call| encoder.encode(&good[call]));
        let served = results.iter_mut().filter(|(_, result)| result.is_ok());
        for ((_, result), outputs) in served.zip(encoded) {
            *result = outputs.map_err(anyhow::Error::new);
        }
        args.encoder.finish(&mut encoder)?;
    }
    for (name, (_, result)) in names.iter().zip(&results) {
        if let Err(error) = result {
            let error = format!("{error:#}");
            let named = if error.contains(name) { error } else { format!("{name}: {error}") };
            say(&format!("error: {named}"));
        }
    }
    Ok(results)
}
