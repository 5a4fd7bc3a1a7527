//! An encoder of one's own with two paths: a page is seen once as a whole, and in tiles as far as
//! it is large. Each path is a graph with budgets of its own; small pages skip the second.
//!
//! The items of a call share steps on each path apart, and the model puts a page together again:
//! its tiles, the page as a whole, and a row of ones behind them.

#![allow(clippy::print_stdout, reason = "an example shows what it did")]

use piecewise::encoding::{
    Encoder, EncoderBounds, EncoderPath, ItemEncoder, ItemError, ItemOutputs, OutputRows, PathSize,
    TokenRange, Values,
};
use piecewise::prelude::*;
use std::error::Error;

const PATCH: u64 = 12;
const HIDDEN: u64 = 32;
const HEAD: u64 = 8;
/// Patches of a whole page, and of a tile.
const PATCHES: [u64; 2] = [16, 9];
const PAGE: usize = 0;
const TILES: usize = 1;

/// Patches, row-major.
#[derive(Clone)]
struct Page {
    whole: Vec<f32>,
    /// Of every tile, one after the other.
    tiles: Vec<f32>,
}

impl Page {
    /// What it brings to a path.
    fn patches(&self, path: usize) -> &[f32] {
        if path == PAGE { &self.whole } else { &self.tiles }
    }
}

struct PageModel;

impl ItemEncoder for PageModel {
    type Item = Page;

    fn sizes(&self, page: &Page) -> Result<Vec<PathSize>, ItemError> {
        let size = |path: usize| {
            let (elements, view) = (page.patches(path).len() as u64, PATCHES[path] * PATCH);
            if elements % view != 0 || (path == PAGE && elements != view) {
                let reason = format!("{elements} elements are no views of {view} each");
                return Err(ItemError::Invalid { reason });
            }
            let tokens = elements / PATCH;
            Ok(PathSize { rows: tokens, tokens, frames: 0 })
        };
        [PAGE, TILES].into_iter().map(size).collect()
    }

    fn range(&self, path: usize) -> TokenRange {
        match path {
            PAGE => TokenRange::always(PATCHES[PAGE]),
            _ => TokenRange { least: 9, most: 9 * 6, multiple_of: 9 },
        }
    }

    fn fill<'a>(&self, path: usize, pages: &[&'a Page]) -> Vec<(&'static str, Values<'a>)> {
        let patches = Values::Parts(pages.iter().map(|page| page.patches(path)).collect());
        let views = patches.len() as u64 / (PATCHES[path] * PATCH);
        let starts = (0..views).map(|view| (view * PATCHES[path]) as i32).collect();
        let lengths = (0..views).map(|_| PATCHES[path] as i32).collect();
        vec![
            ("patches", patches),
            ("starts", Values::I32(starts)),
            ("lengths", Values::I32(lengths)),
        ]
    }

    fn outputs(&self, _path: usize) -> Vec<OutputRows> {
        vec![OutputRows::PerRow(HIDDEN as usize)]
    }

    fn assemble(&self, _: &Page, paths: Vec<ItemOutputs>) -> Result<ItemOutputs, ItemError> {
        let [whole, tiles] = [PAGE, TILES].map(|path| paths[path].concat());
        Ok(vec![[tiles, whole, vec![1.0; HIDDEN as usize]].concat()])
    }
}

/// The patches of a view see each other: `h + attention(h) out`, where `h = patches in`.
fn graph(path: usize, bounds: EncoderBounds) -> Result<Graph, BuildErrors> {
    let b = Builder::new("views").weight_dtype(DType::F32);
    let rows = b.symbol_with_role("T", 1, bounds.max_rows, roles::TOKENS);
    let views = b.symbol_with_role("V", 1, bounds.max_rows / PATCHES[path], "rows.views");
    let index = |name| b.input(name, DType::I32, [views]).padding(0.0);
    let segments = Segments { starts: index("starts"), lengths: index("lengths") };
    let h = b.input("patches", DType::F32, (rows, PATCH)).padding(0.0);
    let h = h.linear(b.weight("in", [HIDDEN, PATCH]));
    let [q, k, v] = ["q", "k", "v"].map(|n| h.linear(b.weight(n, [HIDDEN, HIDDEN])).heads(HEAD));
    let spec = AttentionSpec { scale: (HEAD as f64).powf(-0.5), causal: false };
    let mixed = q.segment_attention(k, v, [segments; 2], spec);
    b.finish([h + mixed.linear(b.weight("out", [HIDDEN, HIDDEN]))])
}

fn waves(count: u64, phase: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.7 + phase).sin() * 0.4).collect()
}

fn weight(path: usize, name: &str) -> Vec<f32> {
    let columns = if name == "in" { PATCH } else { HIDDEN };
    waves(HIDDEN * columns, name.bytes().map(f32::from).sum::<f32>() + path as f32)
}

/// At most so many rows, and so many pages, of each path.
const BOUNDS: [EncoderBounds; 2] = [
    EncoderBounds { max_rows: 64, max_items: 8, max_frames: u64::MAX },
    EncoderBounds { max_rows: 90, max_items: 8, max_frames: u64::MAX },
];

fn path(path: usize, device: DeviceSpec) -> Result<EncoderPath, BuildErrors> {
    let weights = ["in", "q", "k", "v", "out"].iter().fold(InMemoryWeights::new(), |weights, n| {
        let columns = if *n == "in" { PATCH } else { HIDDEN };
        weights.with(n, [HIDDEN, columns], weight(path, n))
    });
    let (name, bounds) = (["page", "tiles"][path].to_owned(), BOUNDS[path]);
    let assembly = Assembly::graph(graph(path, bounds)?).weights(weights).device(device);
    // Explicit budgets for the tiles; those of the page follow from what it may have.
    let assembly = if path == TILES { assembly.capture_sizes([9, 27, 54]) } else { assembly };
    Ok(EncoderPath { name, assembly, bounds })
}

/// The same in f64, a view at a time.
fn reference(path: usize, patches: &[f32]) -> Vec<f64> {
    let product = |name: &str, x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let weight = weight(path, name);
        let row = |x: &Vec<f64>| {
            let rows = weight.chunks(x.len());
            rows.map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
        };
        x.iter().map(row).collect()
    };
    let of_view = |view: &[f32]| {
        let rows = view.chunks(PATCH as usize).map(|row| row.iter().map(|&x| x.into()).collect());
        let h = product("in", &Vec::from_iter(rows));
        let [q, k, v] = ["q", "k", "v"].map(|name| product(name, &h));
        let mut mixed = vec![vec![0.0; HIDDEN as usize]; h.len()];
        for (i, column) in (0..h.len()).flat_map(|i| (0..HIDDEN as usize).map(move |c| (i, c))) {
            let head = column / HEAD as usize * HEAD as usize;
            let columns = head..head + HEAD as usize;
            let dot = |j: usize| -> f64 { columns.clone().map(|c| q[i][c] * k[j][c]).sum() };
            let weights = (0..h.len()).map(|j| f64::exp(dot(j) / (HEAD as f64).sqrt()));
            let weights = Vec::from_iter(weights);
            let sum: f64 = weights.iter().zip(&v).map(|(weight, v)| weight * v[column]).sum();
            mixed[i][column] = sum / weights.iter().sum::<f64>();
        }
        let out = product("out", &mixed).concat();
        h.concat().into_iter().zip(out).map(|(h, out)| h + out).collect::<Vec<f64>>()
    };
    patches.chunks((PATCHES[path] * PATCH) as usize).flat_map(of_view).collect()
}

/// What follows `--device`; the CPU without it.
fn device() -> Result<DeviceSpec, String> {
    let after = std::env::args().skip_while(|arg| arg != "--device").nth(1);
    after.map_or(Ok(DeviceSpec::Cpu), |name| name.parse())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = device()?;
    let paths = vec![path(PAGE, device)?, path(TILES, device)?];
    let mut encoder = Encoder::of_paths(PageModel, paths)?;
    // Two small pages, one of 1 tile, one of 4, and one of 7, which is more than the largest budget.
    let page = |(i, tiles): (usize, u64)| Page {
        whole: waves(PATCHES[PAGE] * PATCH, i as f32),
        tiles: waves(tiles * PATCHES[TILES] * PATCH, 3.0 + i as f32),
    };
    let pages: Vec<Page> = [0, 4, 7, 0, 1].into_iter().enumerate().map(page).collect();
    let together = encoder.encode(&pages);
    println!("{}", encoder.statistics());

    encoder.one_by_one(true);
    let alone = encoder.encode(&pages);
    let mut largest = 0.0_f64;
    for ((page, together), alone) in pages.iter().zip(together).zip(alone) {
        let (found, alone) = (together?.concat(), alone?.concat());
        let mut expected = reference(TILES, &page.tiles);
        expected.extend(reference(PAGE, &page.whole));
        expected.extend([1.0; HIDDEN as usize]);
        assert_eq!((found.len(), alone.len()), (expected.len(), expected.len()));
        for ((found, alone), expected) in found.into_iter().zip(alone).zip(expected) {
            largest = largest.max((f64::from(found) - expected).abs());
            largest = largest.max((f64::from(alone) - expected).abs());
        }
    }
    assert!(largest < 1e-5, "off by {largest}");
    println!("together and alone, each page is within 1e-5 of the reference");
    Ok(())
}
