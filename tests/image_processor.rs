//! Image files to items: against the processors of transformers, and what is refused.

use crate::text_encoders::folder;
use piecewise::encoding::{ImageItem, ImageProcessor};
use piecewise::models::encoder::VisionConfig;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::Path;

const TOWERS: [&str; 5] = ["siglip", "clip", "vit", "qwen2_5_vl_vision", "qwen3_vl_vision"];

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder("images").join(name)).unwrap()
}

/// The name of each image, its bytes, and the item that the reference makes of it.
fn goldens(tower: &str) -> Vec<(String, Vec<u8>, ImageItem)> {
    let bytes = std::fs::read(folder(tower).join("images.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        tensors.tensor(name).unwrap().data().as_chunks().0.to_vec()
    };
    let mut files = std::fs::read_dir(folder("images"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect::<Vec<_>>();
    files.sort_unstable();
    let config = VisionConfig::load(&folder(tower)).unwrap();
    let item = |i: usize| {
        let name = format!("pixel_values_{i}");
        let values = Vec::from_iter(words(&name).into_iter().map(f32::from_le_bytes));
        match *tensors.tensor(&name).unwrap().shape() {
            [channels, rows, columns] => {
                config.item_of_pixels(&values, [channels, rows, columns]).unwrap()
            }
            _ => {
                let grids = words("grid_thw");
                let grid = [0, 1, 2].map(|axis| u32::from_le_bytes(grids[i * 3 + axis]) as usize);
                ImageItem { grid, patches: values }
            }
        }
    };
    let golden = |(i, name): (usize, &String)| (name.clone(), file(name), item(i));
    assert_eq!(files.len(), 6);
    files.iter().enumerate().map(golden).collect()
}

#[test]
fn items_equal_those_of_the_reference() {
    for tower in TOWERS {
        let processor = ImageProcessor::load(&folder(tower)).unwrap();
        for (name, bytes, expected) in goldens(tower) {
            let found = processor.item(&bytes).unwrap();
            assert_eq!(found.grid, expected.grid, "{tower}: {name}");
            // Another decoder of JPEG may round to a level beside; 0.26 is the least deviation.
            let levels = if name.ends_with(".jpg") { 2.0 } else { 0.0 };
            let tolerance = levels / 255.0 / 0.26 + 1e-6 * levels;
            let pairs = found.patches.iter().zip(&expected.patches);
            let furthest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(furthest <= tolerance, "{tower}: {name} is off by {furthest}");
        }
    }
}

#[test]
fn samples_of_sixteen_bits_are_their_high_bytes() {
    let sample = |x: u32, y: u32, channel: u32| (x * 1_021 + y * 2_389 + channel * 20_011) as u16;
    fn png(image: impl Into<image::DynamicImage>) -> Vec<u8> {
        let mut png = std::io::Cursor::new(Vec::new());
        image.into().write_to(&mut png, image::ImageFormat::Png).unwrap();
        png.into_inner()
    }
    let high = |sample: u16| (sample >> 8) as u8;
    let of = |x, y| [0, 1, 2, 3].map(|channel| sample(x, y, channel));
    let (width, height) = (60, 40);
    let same = [
        (
            png(image::ImageBuffer::from_fn(width, height, |x, y| image::Rgba(of(x, y)))),
            png(image::ImageBuffer::from_fn(width, height, |x, y| image::Rgba(of(x, y).map(high)))),
        ),
        (
            png(image::ImageBuffer::from_fn(width, height, |x, y| {
                image::Rgb([0, 1, 2].map(|channel| sample(x, y, channel)))
            })),
            png(image::ImageBuffer::from_fn(width, height, |x, y| {
                image::Rgb([0, 1, 2].map(|channel| high(sample(x, y, channel))))
            })),
        ),
        (
            png(image::ImageBuffer::from_fn(width, height, |x, y| image::Luma([sample(x, y, 0)]))),
            png(image::ImageBuffer::from_fn(width, height, |x, y| {
                image::Luma([high(sample(x, y, 0))])
            })),
        ),
    ];
    let processor = ImageProcessor::load(&folder("siglip")).unwrap();
    for (wide, narrow) in same {
        assert_eq!(processor.item(&wide).unwrap(), processor.item(&narrow).unwrap());
    }
}

#[test]
fn what_is_behind_the_end_of_a_jpeg_is_not_looked_at() {
    let processor = ImageProcessor::load(&folder("siglip")).unwrap();
    let photo = file("a_turned.jpg");
    let item = processor.item(&photo).unwrap();
    let scan = b"\x12\xff\xda\x00\x33\x55\x55";
    for behind in [&[0; 100][..], b"\0\0\0\x18ftypmp42", scan, &photo, &photo[..photo.len() / 2]] {
        assert_eq!(processor.item(&[&photo, behind].concat()).unwrap(), item);
    }
    // A comment that has the marks of an end and of a scan in it is neither.
    let comment = b"\xff\xfe\x00\x08\xff\xd9\xff\xda\xff\xd9";
    let commented = [&photo[..2], comment, &photo[2..]].concat();
    assert_eq!(processor.item(&commented).unwrap(), item);
    for end in [8, 60, commented.len() / 2, commented.len() - 2, commented.len() - 1] {
        let error = processor.item(&commented[..end]).unwrap_err().to_string();
        assert!(error.contains("can't be decoded"), "{end}: {error}");
    }
}

/// A PNG of one colour that says that it has `width` x `height` pixels, of which none follow.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    bytes.extend([8, 2, 0, 0, 0]);
    // The checksum, bit by bit.
    let crc = bytes[12..].iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    });
    bytes.extend((!crc).to_be_bytes());
    bytes.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e\0\0\0\0IEND\xae\x42\x60\x82");
    bytes
}

#[test]
fn files_that_make_no_item_are_named() {
    let processor = ImageProcessor::load(&folder("siglip")).unwrap();
    let said = |bytes: &[u8]| match processor.item(bytes) {
        Ok(_) => panic!("{} bytes became an item", bytes.len()),
        Err(error) => error.to_string(),
    };
    let unknown = "it is no image: PNG, JPEG and WebP are read";
    assert_eq!(said(b""), unknown);
    assert_eq!(said(b"a text"), unknown);
    assert_eq!(said(b"GIF89a\x01\0\x01\0\0\0\0;"), unknown);
    for name in ["a_turned.jpg", "b_wide.png", "f_lossless.webp"] {
        let bytes = file(name);
        for end in [12, 40, bytes.len() / 2, bytes.len() * 3 / 4] {
            let said = said(&bytes[..end]);
            assert!(said.contains("can't be decoded"), "{name} up to {end}: {said}");
        }
    }
    let mut damaged = file("b_wide.png");
    damaged[2000] ^= 0x55;
    assert!(said(&damaged).contains("can't be decoded"));
    let most = "at most 134217728 are taken; make it smaller";
    assert_eq!(
        said(&png_header(50_000, 50_000)),
        format!("an image of 50000 x 50000 pixels, but {most}")
    );
    assert!(said(&png_header(0, 7)).contains("can't be decoded"));
    assert!(said(&png_header(8, 8)).contains("can't be decoded"));

    let line = |width: u32, height: u32| {
        let mut png = std::io::Cursor::new(Vec::new());
        image::RgbImage::new(width, height).write_to(&mut png, image::ImageFormat::Png).unwrap();
        png.into_inner()
    };
    let said = |tower: &str, bytes: &[u8]| {
        let processor = ImageProcessor::load(&folder(tower)).unwrap();
        processor.item(bytes).unwrap_err().to_string()
    };
    assert_eq!(
        said("qwen2_5_vl_vision", &line(1005, 5)),
        "an image of 1005 x 5 pixels: one side is more than 200 times the other; cut it"
    );
    assert_eq!(
        said("clip", &line(60_000, 1)),
        format!("an image of 3120000 x 52 pixels, but {most}")
    );
}

/// The folder of a tower with other settings of its processor.
fn with_settings(tower: &str, to: &Path, changes: &Value) -> Result<ImageProcessor, String> {
    let own = folder(tower).join("preprocessor_config.json");
    let mut settings: Value = serde_json::from_slice(&std::fs::read(own).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        settings[key] = value.clone();
    }
    std::fs::copy(folder(tower).join("config.json"), to.join("config.json")).unwrap();
    std::fs::write(to.join("preprocessor_config.json"), settings.to_string()).unwrap();
    ImageProcessor::load(to).map_err(|error| error.to_string())
}

#[test]
fn settings_that_are_not_supported_are_refused_by_name() {
    let to = tempfile::tempdir().unwrap();
    let cases = [
        ("siglip", json!({"image_processor_type": "Siglip2ImageProcessor"})),
        ("siglip", json!({"resample": 0})),
        ("siglip", json!({"do_pad": true})),
        ("siglip", json!({"size": {"height": 40, "width": 48}})),
        ("siglip", json!({"size": {"longest_edge": 48}})),
        ("siglip", json!({"image_mean": [0.5, 0.5]})),
        ("siglip", json!({"image_std": 0.0})),
        ("siglip", json!({"rescale_factor": "1/255"})),
        ("clip", json!({"crop_size": 40})),
        ("clip", json!({"size": {"shortest_edge": 48, "longest_edge": 96}})),
        ("qwen2_5_vl_vision", json!({"patch_size": 14})),
        ("qwen2_5_vl_vision", json!({"min_pixels": 4000})),
        ("qwen2_5_vl_vision", json!({"do_center_crop": true})),
    ];
    let said = cases.map(|(tower, changes)| with_settings(tower, to.path(), &changes).unwrap_err());
    let said = said.join("\n").replace(to.path().to_str().unwrap(), "DIR");
    insta::assert_snapshot!(said);
    std::fs::remove_file(to.path().join("preprocessor_config.json")).unwrap();
    let said = ImageProcessor::load(to.path()).unwrap_err().to_string();
    assert!(said.contains("has no preprocessor_config.json"), "{said}");
}

/// The older forms of sizes, and what newer folders nest in `processor_config.json`.
#[test]
fn other_ways_to_say_the_same_make_the_same_items() {
    let to = tempfile::tempdir().unwrap();
    let bytes = file("b_wide.png");
    let cases = [
        ("siglip", json!({"size": 48, "image_mean": 0.5, "image_processor_type": null})),
        ("clip", json!({"size": 52, "crop_size": 48, "image_mean": null, "resample": null})),
        ("vit", json!({"resample": null, "feature_extractor_type": "ViTFeatureExtractor"})),
        ("qwen2_5_vl_vision", json!({"min_pixels": null, "max_pixels": null, "image_std": null})),
        (
            "qwen3_vl_vision",
            json!({"size": null, "image_processor_type": "Qwen2VLImageProcessorFast"}),
        ),
    ];
    for (tower, changes) in cases {
        let expected = ImageProcessor::load(&folder(tower)).unwrap().item(&bytes).unwrap();
        let processor = with_settings(tower, to.path(), &changes).unwrap();
        assert_eq!(processor.item(&bytes).unwrap(), expected, "{tower}: {changes}");
        let own = to.path().join("preprocessor_config.json");
        let settings: Value = serde_json::from_slice(&std::fs::read(&own).unwrap()).unwrap();
        std::fs::remove_file(own).unwrap();
        let nested = json!({"image_processor": settings, "video_processor": null});
        std::fs::write(to.path().join("processor_config.json"), nested.to_string()).unwrap();
        let processor = ImageProcessor::load(to.path()).unwrap();
        assert_eq!(processor.item(&bytes).unwrap(), expected, "{tower}: nested");
    }
}
