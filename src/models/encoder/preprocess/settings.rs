//! How images are made ready, by `preprocessor_config.json`.

use super::super::vision::VisionConfig;
use super::super::vit::VitFamily;
use super::error::MOST_RATIO;
use super::resample::Filter;
use crate::models::config::fields::Fields;
use crate::models::config::{ConfigError, parse_json, read};
use serde_json::Value;
use std::path::Path;

/// What is done to an image, in this order.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Settings {
    pub(super) resize: Option<Resize>,
    pub(super) filter: Filter,
    /// Rows and columns of the middle that is kept.
    pub(super) crop: Option<[u32; 2]>,
    /// What values are multiplied by.
    pub(super) rescale: Option<f64>,
    /// Mean and standard deviation of each channel.
    pub(super) normalize: Option<[[f32; 3]; 2]>,
}

/// The size that an image gets before it is cropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resize {
    /// Rows and columns.
    Exact([u64; 2]),
    /// The shorter side; the ratio stays.
    ShortestEdge(u64),
    /// Multiples of `side` near the image's own, and so many pixels.
    Within { least: u64, most: u64, side: u64 },
}

const CLIP: [[f64; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]];
const HALF: [[f64; 3]; 2] = [[0.5; 3]; 2];
/// The longest side that a setting may ask for.
const SIDE: std::ops::RangeInclusive<usize> = 1..=1 << 14;
const PIXELS: std::ops::RangeInclusive<usize> = 1..=1 << 40;

/// What a processor does where its file does not say.
struct Defaults {
    /// What its class is called, without `Fast` and the like at the end.
    names: &'static [&'static str],
    filter: Filter,
    statistics: [[f64; 3]; 2],
    crops: bool,
    keeps_ratio: bool,
}

impl Defaults {
    fn of(tower: &VisionConfig) -> Self {
        let exact = Self {
            names: &["SiglipImageProcessor"],
            filter: Filter::Bicubic,
            statistics: HALF,
            crops: false,
            keeps_ratio: false,
        };
        match tower {
            VisionConfig::Vit(config) => match config.family {
                VitFamily::Siglip => exact,
                VitFamily::Vit => Self {
                    names: &["ViTImageProcessor", "ViTFeatureExtractor"],
                    filter: Filter::Bilinear,
                    ..exact
                },
                VitFamily::Clip => Self {
                    names: &["CLIPImageProcessor", "CLIPFeatureExtractor"],
                    statistics: CLIP,
                    crops: true,
                    keeps_ratio: true,
                    ..exact
                },
            },
            VisionConfig::QwenVl(_) => {
                Self { names: &["Qwen2VLImageProcessor"], statistics: CLIP, ..exact }
            }
        }
    }
}

impl Settings {
    pub(super) fn load(folder: &Path, tower: &VisionConfig) -> Result<Self, ConfigError> {
        let (own, shared) =
            (folder.join("preprocessor_config.json"), folder.join("processor_config.json"));
        if own.exists() {
            let value = parse_json(&read(&own)?, &own)?;
            return Self::parse(&Fields::root(&own, &value)?, tower);
        }
        if shared.exists() {
            let value = parse_json(&read(&shared)?, &shared)?;
            if let Some(fields) = Fields::root(&shared, &value)?.child("image_processor")? {
                return Self::parse(&fields, tower);
            }
        }
        Err(ConfigError::NoProcessor { folder: folder.to_path_buf() })
    }

    fn parse(root: &Fields<'_>, tower: &VisionConfig) -> Result<Self, ConfigError> {
        let defaults = Defaults::of(tower);
        for key in ["image_processor_type", "feature_extractor_type"] {
            let is_known = |name: &str| {
                let name = name.trim_end_matches("Fast").trim_end_matches("Pil");
                defaults.names.contains(&name)
            };
            if root.string(key)?.is_some_and(|name| !is_known(name)) {
                let names = defaults.names.join(" and ");
                return Err(root.unsupported(key, format!("of this model {names} is")));
            }
        }
        for key in ["do_pad", "do_image_splitting"] {
            if root.boolean(key)? == Some(true) {
                return Err(root.unsupported(key, "only false is"));
            }
        }
        let does = |key: &str| Ok(root.boolean(key)?.unwrap_or(true));
        let resize = match tower {
            VisionConfig::Vit(config) => {
                size(root, "size", defaults.keeps_ratio)?.unwrap_or(match defaults.keeps_ratio {
                    true => Resize::ShortestEdge(config.image_size as u64),
                    false => Resize::Exact([config.image_size as u64; 2]),
                })
            }
            VisionConfig::QwenVl(config) => {
                for (key, expected) in [
                    ("patch_size", config.patch_size),
                    ("temporal_patch_size", config.temporal_patch_size),
                    ("merge_size", config.merge_size),
                ] {
                    if root.count(key, 1..=1 << 10)?.is_some_and(|found| found != expected) {
                        let reason = format!("the tower has {expected}");
                        return Err(root.bad_value(key, reason));
                    }
                }
                within(root, (config.patch_size * config.merge_size) as u64)?
            }
        };
        let crops = root.boolean("do_center_crop")?.unwrap_or(defaults.crops);
        let crop = match (crops, tower) {
            (false, _) => None,
            (true, VisionConfig::QwenVl(_)) => {
                return Err(root.unsupported("do_center_crop", "only false is"));
            }
            (true, VisionConfig::Vit(config)) => match size(root, "crop_size", false)? {
                Some(Resize::Exact([rows, columns])) => Some([rows as u32, columns as u32]),
                Some(_) => return Err(root.unsupported("crop_size", "a height and a width are")),
                None => Some([config.image_size as u32; 2]),
            },
        };
        let factor = root.number("rescale_factor", 1e-12..=1e12)?.unwrap_or(1.0 / 255.0);
        let statistics = [("image_mean", -1e6..=1e6), ("image_std", 1e-12..=1e6)];
        let mut normalize = [[0.0; 3]; 2];
        for (i, (key, bounds)) in statistics.into_iter().enumerate() {
            let values = channels(root, key, bounds)?.unwrap_or(defaults.statistics[i]);
            normalize[i] = values.map(|value| value as f32);
        }
        let settings = Self {
            resize: does("do_resize")?.then_some(resize),
            filter: filter(root)?.unwrap_or(defaults.filter),
            crop,
            rescale: does("do_rescale")?.then_some(factor),
            normalize: does("do_normalize")?.then_some(normalize),
        };
        settings.check(root, tower)?;
        Ok(settings)
    }

    /// Refuses what could make no image that the tower takes.
    fn check(&self, root: &Fields<'_>, tower: &VisionConfig) -> Result<(), ConfigError> {
        let Some([channels, side, _]) = tower.pixels_shape() else { return Ok(()) };
        let other = |key, [rows, columns]: [u64; 2]| {
            let reason = format!("the tower takes {side} x {side}, not {rows} x {columns}");
            Err(root.bad_value(key, reason))
        };
        let made = self.crop.map(|crop| crop.map(u64::from));
        match (made, self.resize) {
            (Some(made), _) if made != [side as u64; 2] => other("crop_size", made),
            (None, Some(Resize::Exact(made))) if made != [side as u64; 2] => other("size", made),
            _ if channels != 3 => {
                Err(root.unsupported("image_mean", "a tower of three channels is"))
            }
            _ => Ok(()),
        }
    }
}

impl Resize {
    /// Rows and columns of an image that had these.
    pub(super) fn to(self, rows: u32, columns: u32) -> Result<[u64; 2], String> {
        let (rows, columns) = (u64::from(rows), u64::from(columns));
        match self {
            Self::Exact(size) => Ok(size),
            Self::ShortestEdge(shortest) => {
                // As the processor divides: in f64, towards zero.
                let longest =
                    |long: u64, short: u64| ((shortest * long) as f64 / short as f64) as u64;
                Ok(match columns <= rows {
                    true => [longest(rows, columns), shortest],
                    false => [shortest, longest(columns, rows)],
                })
            }
            Self::Within { least, most, side } => {
                let (h, w) = (rows as f64, columns as f64);
                if h.max(w) / h.min(w) > MOST_RATIO {
                    return Err(format!(
                        "one side is more than {MOST_RATIO} times the other; cut it"
                    ));
                }
                let factor = side as f64;
                let near = |x: f64| (x / factor).round_ties_even() * factor;
                let pixels = near(h) * near(w);
                let made = if pixels > most as f64 {
                    let beta = (h * w / most as f64).sqrt();
                    [h, w].map(|x| factor.max((x / beta / factor).floor() * factor))
                } else if pixels < least as f64 {
                    let beta = (least as f64 / (h * w)).sqrt();
                    [h, w].map(|x| (x * beta / factor).ceil() * factor)
                } else {
                    [near(h), near(w)]
                };
                Ok(made.map(|x| x as u64))
            }
        }
    }
}

/// A height and a width, a shortest edge, or one number, which is what `keeps_ratio` says.
fn size(root: &Fields<'_>, key: &str, keeps_ratio: bool) -> Result<Option<Resize>, ConfigError> {
    match root.get(key) {
        None => Ok(None),
        Some(Value::Object(_)) => {
            let Some(fields) = root.child(key)? else { return Ok(None) };
            let count = |key| fields.count(key, SIDE);
            match (count("height")?, count("width")?, count("shortest_edge")?) {
                (Some(rows), Some(columns), None) => {
                    Ok(Some(Resize::Exact([rows as u64, columns as u64])))
                }
                (None, None, Some(_)) if fields.is_present("longest_edge") => {
                    Err(fields.unsupported("longest_edge", "a shortest edge alone is"))
                }
                (None, None, Some(shortest)) => Ok(Some(Resize::ShortestEdge(shortest as u64))),
                _ => Err(root.unsupported(key, "height and width are, or shortest_edge")),
            }
        }
        Some(_) => {
            let side = root.required_count(key, SIDE)? as u64;
            Ok(Some(match keeps_ratio {
                true => Resize::ShortestEdge(side),
                false => Resize::Exact([side; 2]),
            }))
        }
    }
}

/// The least and the most pixels of an image of a Qwen, by the older names and the newer ones.
fn within(root: &Fields<'_>, side: u64) -> Result<Resize, ConfigError> {
    let fields = root.child("size")?;
    let newer = |key| fields.as_ref().map_or(Ok(None), |fields| fields.count(key, PIXELS));
    let least = root.count("min_pixels", PIXELS)?.or(newer("shortest_edge")?);
    let most = root.count("max_pixels", PIXELS)?.or(newer("longest_edge")?);
    let least = least.unwrap_or(56 * 56) as u64;
    let most = most.unwrap_or(28 * 28 * 1280) as u64;
    if most < least {
        let key = if root.is_present("max_pixels") { "max_pixels" } else { "size" };
        return Err(root.bad_value(key, format!("less than the least, {least} pixels")));
    }
    Ok(Resize::Within { least, most, side })
}

/// By Pillow's numbers, which `resample` has.
fn filter(root: &Fields<'_>) -> Result<Option<Filter>, ConfigError> {
    Ok(match root.count("resample", 0..=16)? {
        None => None,
        Some(1) => Some(Filter::Lanczos),
        Some(2) => Some(Filter::Bilinear),
        Some(3) => Some(Filter::Bicubic),
        Some(_) => {
            return Err(root.unsupported("resample", "1 (Lanczos), 2 (bilinear), 3 (bicubic) are"));
        }
    })
}

/// A number for each of three channels, or one for all.
fn channels(
    root: &Fields<'_>,
    key: &str,
    bounds: std::ops::RangeInclusive<f64>,
) -> Result<Option<[f64; 3]>, ConfigError> {
    let Some(value) = root.get(key) else { return Ok(None) };
    let values = match value {
        Value::Array(items) => Vec::from_iter(items.iter().map(Value::as_f64)),
        single => vec![single.as_f64(); 3],
    };
    match *values {
        [Some(r), Some(g), Some(b)] => {
            if ![r, g, b].iter().all(|value| bounds.contains(value)) {
                let (least, most) = (bounds.start(), bounds.end());
                return Err(root.bad_value(key, format!("must be from {least:?} to {most:?}")));
            }
            Ok(Some([r, g, b]))
        }
        _ => Err(root.wrong_type(key, value, "a number, or a list of three")),
    }
}
