//! Images as the inputs of a tower, and its outputs in their order.

use super::inputs::Values;
use super::qwen_vl::{
    COLUMNS, CORNER_WEIGHTS, CORNERS, FIRSTS, LONGEST_SIDE, PATCHES, QwenVlConfig, QwenVlKind,
    ROWS, WINDOW_LENGTHS, WINDOW_STARTS,
};
use super::vision::VisionConfig;
use super::vit::VitConfig;

/// An image or a video as its processor leaves it.
#[derive(Clone, PartialEq, Debug)]
pub struct ImageItem {
    /// Frames (of a video: groups of them), rows and columns, in patches.
    pub grid: [usize; 3],
    /// `[frames * rows * columns, patch width]`. Of a SigLIP, a CLIP or a ViT, row by row, channel, then y, then x.
    /// Of a Qwen, in blocks of merged patches, row by row, and within a block row by row; channel,
    /// then frame, then y, then x.
    pub patches: Vec<f32>,
}

impl VisionConfig {
    /// The tokens that an item becomes: patches and class row, or merged patches.
    ///
    /// # Errors
    /// What is wrong with its grid or its patches.
    pub fn tokens_of(&self, item: &ImageItem) -> Result<u64, String> {
        let [frames, rows, columns] = item.grid;
        let shown = format!("a grid of {frames} x {rows} x {columns} patches");
        let (width, block, class) = match self {
            Self::Vit(config) => {
                let side = config.side();
                if item.grid != [1, side, side] {
                    return Err(format!("{shown}, but the model takes 1 x {side} x {side}"));
                }
                (config.patch_width(), 1, usize::from(config.has_class_row()))
            }
            Self::QwenVl(config) => {
                let (merge, most) = (config.merge_size, LONGEST_SIDE as usize);
                let side = |n: usize| n > 0 && n <= most && n.is_multiple_of(merge);
                if frames == 0 || !side(rows) || !side(columns) {
                    return Err(format!(
                        "{shown}, but there must be frames, and sides must be multiples of {merge} \
                         up to {most}"
                    ));
                }
                (config.patch_width(), config.block(), 0)
            }
        };
        let patches = frames.checked_mul(rows * columns);
        let elements = patches.and_then(|patches| patches.checked_mul(width));
        match patches {
            Some(patches) if elements == Some(item.patches.len()) => {
                Ok((patches / block + class) as u64)
            }
            _ => Err(format!(
                "{shown} of {width} elements each, but there are {} elements",
                item.patches.len()
            )),
        }
    }

    /// The tokens of every image, where all have as many.
    pub fn fixed_tokens(&self) -> Option<u64> {
        match self {
            Self::Vit(config) => Some(config.rows() as u64),
            Self::QwenVl(_) => None,
        }
    }

    /// Every input of a step of these items, row-major, in the order of the items.
    pub fn fill<'a>(&self, items: &[&'a ImageItem]) -> Vec<(&'static str, Values<'a>)> {
        match self {
            Self::Vit(config) => fill_vit(config, items),
            Self::QwenVl(config) => fill_qwen(config, items),
        }
    }

    /// The row of the tower of each of an image's tokens, in raster order, frame by frame.
    pub fn raster_rows(&self, grid: [usize; 3]) -> Vec<u32> {
        let order = match self {
            Self::Vit(config) => (0..config.rows()).collect(),
            Self::QwenVl(config) => Windows::of(config, grid).order,
        };
        let mut rows = vec![0; order.len()];
        for (row, place) in (0..).zip(order) {
            rows[place] = row;
        }
        rows
    }
}

/// What a class row has instead of a patch, piece by piece.
static ZEROS: [f32; 1024] = [0.0; 1024];

fn fill_vit<'a>(config: &VitConfig, items: &[&'a ImageItem]) -> Vec<(&'static str, Values<'a>)> {
    let (rows, count) = (config.rows(), items.len());
    let class_width = usize::from(config.has_class_row()) * config.patch_width();
    let mut patches = Vec::with_capacity(2 * count);
    for item in items {
        let zeros = (0..class_width).step_by(ZEROS.len());
        patches.extend(zeros.map(|at| &ZEROS[..ZEROS.len().min(class_width - at)]));
        patches.push(item.patches.as_slice());
    }
    vec![
        (PATCHES, Values::Parts(patches)),
        ("positions", Values::I32((0..count).flat_map(|_| 0..rows as i32).collect())),
        ("starts", Values::I32((0..count).map(|i| (i * rows) as i32).collect())),
        ("lengths", Values::I32(vec![rows as i32; count])),
    ]
}

/// Merged tokens of an item in the order in which the tower takes them.
struct Windows {
    /// The place in raster order, frame by frame, of each token.
    order: Vec<usize>,
    /// Tokens of each window; a window lies within a frame.
    lengths: Vec<usize>,
}

impl Windows {
    /// Window by window, row by row, ragged at the right and lower edge; whole frames where the
    /// tower has no windows.
    fn of(config: &QwenVlConfig, [frames, rows, columns]: [usize; 3]) -> Self {
        let (rows, columns) = (rows / config.merge_size, columns / config.merge_size);
        let side = match config.kind {
            QwenVlKind::Qwen25 { window_side, .. } => window_side,
            QwenVlKind::Qwen3 { .. } => rows.max(columns),
        };
        let (mut order, mut lengths) = (Vec::new(), Vec::new());
        for frame in 0..frames {
            for top in (0..rows).step_by(side) {
                for left in (0..columns).step_by(side) {
                    let before = order.len();
                    for row in top..rows.min(top + side) {
                        let first = (frame * rows + row) * columns;
                        order.extend((left..columns.min(left + side)).map(|column| first + column));
                    }
                    lengths.push(order.len() - before);
                }
            }
        }
        Self { order, lengths }
    }
}

fn fill_qwen<'a>(
    config: &QwenVlConfig,
    items: &[&'a ImageItem],
) -> Vec<(&'static str, Values<'a>)> {
    let (merge, block) = (config.merge_size, config.block());
    let token = block * config.patch_width();
    let mut patches = Vec::new();
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    let (mut starts, mut lengths) = (Vec::new(), Vec::new());
    let (mut window_starts, mut window_lengths) = (Vec::new(), Vec::new());
    let (mut corners, mut weights) = ([const { Vec::new() }; 4], Vec::new());
    for item in items {
        let [frames, height, width] = item.grid;
        let windows = Windows::of(config, item.grid);
        let mut window_start = rows.len();
        for &length in &windows.lengths {
            window_starts.push(window_start as i32);
            window_lengths.push((length * block) as i32);
            window_start += length * block;
        }
        for frame in 0..frames {
            starts.push((rows.len() + frame * height * width) as i32);
            lengths.push((height * width) as i32);
        }
        let per_row = width / merge;
        for &place in &windows.order {
            patches.push(&item.patches[place * token..][..token]);
            let (top, left) = (place / per_row % (height / merge), place % per_row);
            for patch in 0..block {
                let (row, column) = (top * merge + patch / merge, left * merge + patch % merge);
                rows.push(row as i32);
                columns.push(column as i32);
                if let QwenVlKind::Qwen3 { table_side, .. } = config.kind {
                    let sampled = bilinear(table_side, [(row, height), (column, width)]);
                    for ((place, weight), corner) in sampled.into_iter().zip(&mut corners) {
                        corner.push(place as i32);
                        weights.push(weight);
                    }
                }
            }
        }
    }
    let firsts = (0..rows.len()).step_by(block).map(|row| row as i32).collect();
    let firsts = (block > 1).then_some((FIRSTS, Values::I32(firsts)));
    let mut inputs = vec![
        (PATCHES, Values::Parts(patches)),
        (ROWS, Values::I32(rows)),
        (COLUMNS, Values::I32(columns)),
        ("starts", Values::I32(starts)),
        ("lengths", Values::I32(lengths)),
    ];
    inputs.extend(firsts);
    match config.kind {
        QwenVlKind::Qwen25 { .. } => {
            inputs.push((WINDOW_STARTS, Values::I32(window_starts)));
            inputs.push((WINDOW_LENGTHS, Values::I32(window_lengths)));
        }
        QwenVlKind::Qwen3 { .. } => {
            inputs.extend(CORNERS.into_iter().zip(corners.map(Values::I32)));
            inputs.push((CORNER_WEIGHTS, Values::F32(weights)));
        }
    }
    inputs
}

/// The places of the table around patch `(row, of rows)`, `(column, of columns)`, and their
/// weights: the corners of the table lie on those of the frame.
fn bilinear(side: usize, at: [(usize, usize); 2]) -> [(usize, f32); 4] {
    let [row, column] = at.map(|(i, n)| {
        // In f32, as the model's own code has it.
        let at = if n > 1 { i as f32 * ((side - 1) as f32 / (n - 1) as f32) } else { 0.0 };
        let low = (at as usize).min(side - 1);
        (low, (low + 1).min(side - 1), at - low as f32)
    });
    let ((top, bottom, down), (left, right, across)) = (row, column);
    [
        (top * side + left, (1.0 - down) * (1.0 - across)),
        (top * side + right, (1.0 - down) * across),
        (bottom * side + left, down * (1.0 - across)),
        (bottom * side + right, down * across),
    ]
}
