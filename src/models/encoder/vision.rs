//! Encoders of images: from patches to rows.

use super::super::checkpoint::Checkpoint;
use super::super::config::fields::Fields;
use super::super::config::{ConfigError, parse_json, read};
use super::inputs::{EncoderBounds, OutputRows, PackedRows};
use super::qwen_vl::{self, QwenVlConfig, QwenVlKind};
use super::text::EncoderError;
use super::vit::{self, VitConfig, VitFamily};
use piecewise_ir::builder::Builder;
use piecewise_ir::dtype::DType;
use piecewise_ir::graph::Graph;
use std::path::Path;

/// A vision tower, alone or inside a checkpoint of a larger model.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum VisionConfig {
    /// `siglip_vision_model`, `clip_vision_model` and `vit`, or a `vision_config` of one of these.
    Vit(VitConfig),
    /// `qwen2_5_vl_vision`, `qwen3_vl_vision` and `qwen3_vl_moe_vision`, or a `vision_config` of one
    /// of these.
    QwenVl(QwenVlConfig),
}

/// Which tower a `model_type` has.
enum Tower {
    Vit(VitFamily),
    QwenVl { is_qwen3: bool },
}

impl Tower {
    fn of(model_type: &str) -> Option<Self> {
        Some(match model_type {
            "siglip_vision_model" | "siglip" => Self::Vit(VitFamily::Siglip),
            "clip_vision_model" | "clip" => Self::Vit(VitFamily::Clip),
            "vit" => Self::Vit(VitFamily::Vit),
            "qwen2_5_vl_vision" | "qwen2_5_vl" => Self::QwenVl { is_qwen3: false },
            "qwen3_vl_vision" | "qwen3_vl" | "qwen3_vl_moe_vision" | "qwen3_vl_moe" => {
                Self::QwenVl { is_qwen3: true }
            }
            _ => return None,
        })
    }

    /// By the `model_type`, or by that of the `vision_config`: many larger models have a tower of
    /// another one.
    fn of_root(root: &Fields<'_>) -> Result<Option<Self>, ConfigError> {
        if let Some(tower) = root.string("model_type")?.and_then(Self::of) {
            return Ok(Some(tower));
        }
        let inner = root.child("vision_config")?.map(|tower| tower.string("model_type"));
        Ok(inner.transpose()?.flatten().and_then(Self::of))
    }
}

impl VisionConfig {
    /// Reads `config.json` of `folder`.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the file and the field.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let file = folder.join("config.json");
        Self::parse(&read(&file)?, &file)
    }

    /// Reads the text of a `config.json`; `file` is only named in errors.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the field.
    pub fn parse(text: &[u8], file: &Path) -> Result<Self, ConfigError> {
        let value = parse_json(text, file)?;
        let root = Fields::root(file, &value)?;
        let tower = root.child("vision_config")?;
        if root.is_present("quantization_config") {
            return Err(root.unsupported("quantization_config", "weights must be floats"));
        }
        let fields = tower.as_ref().unwrap_or(&root);
        match Tower::of_root(&root)? {
            Some(Tower::Vit(family)) => Ok(Self::Vit(VitConfig::read(fields, family)?)),
            Some(Tower::QwenVl { is_qwen3 }) => {
                Ok(Self::QwenVl(QwenVlConfig::read(fields, is_qwen3)?))
            }
            None if root.string("model_type")?.is_none() => Err(root.missing("model_type")),
            None => {
                let supported =
                    "vision towers are those of siglip, clip, vit, qwen2_5_vl and qwen3_vl";
                Err(root.unsupported("model_type", supported))
            }
        }
    }

    /// Whether this `model_type` is of a tower, or of a larger model that always has it.
    pub(super) fn is_tower(model_type: &str) -> bool {
        Tower::of(model_type).is_some()
    }

    /// Whether this configuration is of a tower, or of a larger model with one.
    pub(super) fn is_in(root: &Fields<'_>) -> Result<bool, ConfigError> {
        Ok(Tower::of_root(root)?.is_some())
    }

    /// As the tower in `checkpoint` is: a ViT for classification has no pooler, and its
    /// configuration does not say so.
    #[must_use]
    pub fn of_checkpoint(mut self, checkpoint: &Checkpoint) -> Self {
        let prefix = self.prefix(checkpoint);
        if let Self::Vit(config) = &mut self
            && config.family == VitFamily::Vit
        {
            let dot = if prefix.is_empty() { "" } else { "." };
            let pooler = format!("{prefix}{dot}pooler.dense.weight");
            config.has_pooled = checkpoint.dtype_of(&pooler).is_some();
        }
        self
    }

    /// What the configuration says that weights are stored as.
    pub fn stored_dtype(&self) -> Option<DType> {
        match self {
            Self::Vit(config) => config.dtype,
            Self::QwenVl(config) => config.dtype,
        }
    }

    /// What the graph returns, in its order: of a SigLIP, a CLIP or a ViT its rows and, where it pools
    /// them, the result; of a Qwen the merged tokens, then each deepstack output.
    pub fn outputs(&self) -> Vec<OutputRows> {
        match self {
            Self::Vit(VitConfig { hidden_size, has_pooled, .. }) => {
                let pooled = has_pooled.then_some(OutputRows::PerItem(*hidden_size));
                std::iter::once(OutputRows::PerRow(*hidden_size)).chain(pooled).collect()
            }
            Self::QwenVl(config) => {
                let deepstack = match &config.kind {
                    QwenVlKind::Qwen25 { .. } => 0,
                    QwenVlKind::Qwen3 { deepstack, .. } => deepstack.len(),
                };
                vec![OutputRows::PerRow(config.out_hidden_size); 1 + deepstack]
            }
        }
    }

    /// The graph of the tower over the tensors of `checkpoint`, with outputs in `returned`.
    ///
    /// # Errors
    /// When it does not fit its own configuration.
    pub fn graph(
        &self,
        checkpoint: &Checkpoint,
        activations: DType,
        returned: DType,
        bounds: &EncoderBounds,
    ) -> Result<Graph, EncoderError> {
        let b = Builder::new("vision_encoder")
            .weight_dtype(self.stored_dtype().unwrap_or(DType::F32))
            .weight_dtypes(checkpoint.dtypes());
        let prefix = self.prefix(checkpoint);
        let outputs = match self {
            Self::Vit(config) => {
                let packed = PackedRows::declare(&b, bounds);
                vit::rows_and_pooled(&b, config, activations, &packed, prefix)
            }
            Self::QwenVl(config) => qwen_vl::merged_rows(&b, config, activations, bounds, prefix),
        };
        Ok(b.finish(outputs.into_iter().map(|output| output.cast(returned)))?)
    }

    /// What stands before the names of the tower's tensors in `checkpoint`.
    fn prefix(&self, checkpoint: &Checkpoint) -> &'static str {
        let (prefixes, probe): (&[&'static str], _) = match self {
            Self::Vit(config) if config.family == VitFamily::Vit => {
                (&["vit"], "embeddings.patch_embeddings.projection.weight")
            }
            Self::Vit(_) => (
                &["vision_model", "vision_tower.vision_model", "model.vision_tower.vision_model"],
                "embeddings.patch_embedding.weight",
            ),
            Self::QwenVl(_) => (&["visual", "model.visual"], "patch_embed.proj.weight"),
        };
        let has = |prefix: &&&str| checkpoint.dtype_of(&format!("{prefix}.{probe}")).is_some();
        prefixes.iter().find(has).copied().unwrap_or_default()
    }
}
