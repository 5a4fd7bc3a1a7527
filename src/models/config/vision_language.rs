//! The decoder of a model that reads images too: its part of the configuration, and the rope over
//! frames, rows and columns.

use super::error::ConfigError;
use super::fields::Fields;
use super::wrappers::add_shared;
use serde_json::{Map, Value};
use std::path::Path;

/// The `model_type` of such a model.
pub(in crate::models) const MODEL_TYPE: &str = "qwen2_5_vl";

/// What its configuration says of images.
const OF_IMAGES: [&str; 6] = [
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
];
/// What the names of a tower's tensors begin with.
pub(in crate::models) const TOWER: &[&str] = &["visual.", "model.visual."];

/// The configuration of the decoder in `root` as that of a decoder of text, and how many pairs of a
/// head turn by frame, by row and by column.
pub(in crate::models) fn text_part(
    root: &Fields<'_>,
    file: &Path,
) -> Result<Option<TextPart>, ConfigError> {
    if root.string("model_type")? != Some(MODEL_TYPE) {
        return Ok(None);
    }
    let nested = root.child("text_config")?;
    let of_text = |key: &str| nested.is_some() || !OF_IMAGES.contains(&key);
    let mut text: Map<String, Value> = nested
        .as_ref()
        .unwrap_or(root)
        .iter()
        .filter(|(key, _)| of_text(key))
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    add_shared(&mut text, root);
    text.insert("model_type".to_owned(), "qwen2".into());
    text.remove("architectures");
    let mut sections = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(Value::Object(rope)) = text.get_mut(key) else { continue };
        let value = Value::Object(rope.clone());
        let fields = Fields::root(file, &value)?;
        if let Some(found) = fields.counts("mrope_section", 0..=1 << 11)? {
            let found = <[usize; 3]>::try_from(found);
            let three = "frames, rows and columns have a number each";
            sections = Some(found.map_err(|_| fields.bad_value("mrope_section", three))?);
        }
        rope.remove("mrope_section");
        for key in ["type", "rope_type"] {
            if rope.get(key).is_some_and(|kind| kind == "mrope") {
                rope.insert(key.to_owned(), "default".into());
            }
        }
    }
    let rope_sections = sections.ok_or_else(|| root.missing("rope_scaling.mrope_section"))?;
    Ok(Some(TextPart { text: Value::Object(text), rope_sections }))
}

/// The decoder's fields, beside those of the tower.
pub(in crate::models) struct TextPart {
    pub(in crate::models) text: Value,
    pub(in crate::models) rope_sections: [usize; 3],
}
