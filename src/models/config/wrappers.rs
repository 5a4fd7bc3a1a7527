//! Configurations of models that read images too, whose decoder is one of text: the fields that count are
//! in `text_config`, and images are none of what such a model is given here.

use super::error::ConfigError;
use super::fields::Fields;
use serde_json::{Map, Value};

/// A `model_type` around another, and the one of the decoder where `text_config` does not say it.
pub(in crate::models) const WRAPPERS: [(&str, &str); 2] =
    [("gemma3", "gemma3_text"), ("mistral3", "mistral")];

/// What the names of tensors begin with that are of images alone.
pub(in crate::models) const TOWERS: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// The field of the decoder's configuration.
pub(in crate::models) const TEXT: &str = "text_config";

/// What the root says where `text_config` does not.
const SHARED: [&str; 5] =
    ["tie_word_embeddings", "dtype", "torch_dtype", "bos_token_id", "eos_token_id"];

/// Takes from the root what the configuration of a decoder inside it leaves out.
pub(super) fn add_shared(text: &mut Map<String, Value>, root: &Fields<'_>) {
    for key in SHARED {
        if let (None, Some(value)) = (text.get(key), root.get(key)) {
            text.insert(key.to_owned(), value.clone());
        }
    }
}

/// The configuration of the decoder in a wrapper; `None` of one that is none.
pub(in crate::models) fn decoder_within(root: &Fields<'_>) -> Result<Option<Value>, ConfigError> {
    let model_type = root.string("model_type")?;
    let wrapper = WRAPPERS.iter().find(|(wrapper, _)| model_type == Some(*wrapper));
    let Some((_, of_text)) = wrapper else { return Ok(None) };
    let nested = root.child(TEXT)?.ok_or_else(|| root.missing(TEXT))?;
    let mut text: Map<String, Value> =
        nested.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    add_shared(&mut text, root);
    if let (None, Some(value)) = (text.get(QUANTIZATION), root.get(QUANTIZATION)) {
        text.insert(QUANTIZATION.to_owned(), value.clone());
    }
    if nested.get("model_type").is_none() {
        text.insert("model_type".to_owned(), (*of_text).into());
    }
    text.remove("architectures");
    Ok(Some(Value::Object(text)))
}

const QUANTIZATION: &str = "quantization_config";
