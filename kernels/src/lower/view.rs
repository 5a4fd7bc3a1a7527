//! Strided views: index remaps without steps.

use super::row_program::{Nest, Place, StridedAccess};

/// A value inside one row: a place seen through strides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct View {
    pub(super) place: u32,
    pub(super) offset: u64,
    pub(super) dims: Vec<Axis>,
}

/// Length and distance of the elements along it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Axis {
    pub(super) extent: u64,
    pub(super) stride: u64,
}

/// Elements from one index to the next along each axis of a dense row-major tensor.
pub(crate) fn strides(shape: &[u64]) -> Vec<u64> {
    let mut stride = 1;
    let along = shape.iter().rev().map(|&extent| {
        let along = stride;
        stride *= extent.max(1);
        along
    });
    let mut strides = Vec::from_iter(along);
    strides.reverse();
    strides
}

/// The axes of a dense row-major tensor.
pub(super) fn dense(shape: &[u64]) -> Vec<Axis> {
    let axes = shape.iter().zip(strides(shape));
    axes.map(|(&extent, stride)| Axis { extent, stride }).collect()
}

impl View {
    pub(super) fn dense(place: u32, shape: &[u64]) -> Self {
        Self { place, offset: 0, dims: dense(shape) }
    }

    pub(super) fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(|d| d.extent).collect()
    }

    pub(super) fn elements(&self) -> u64 {
        self.dims.iter().map(|d| d.extent).product()
    }

    /// Whether elements follow one another in row-major order.
    pub(super) fn is_contiguous(&self) -> bool {
        dense(&self.shape()).iter().zip(&self.dims).all(|(d, s)| d.extent == 1 || d == s)
    }

    pub(super) fn permuted(&self, perm: &[usize]) -> Self {
        let dims = perm.iter().map(|&axis| self.dims[axis]).collect();
        Self { dims, ..*self }
    }

    pub(super) fn sliced(&self, axis: usize, start: u64, extent: u64) -> Self {
        let mut view = self.clone();
        view.offset += start * view.dims[axis].stride;
        view.dims[axis].extent = extent;
        view
    }

    /// The view repeated to `shape`: outer axes are added, axes of extent 1 get stride 0.
    pub(super) fn broadcast(&self, shape: &[u64]) -> Self {
        let outer = shape.len() - self.dims.len();
        let dims = shape
            .iter()
            .enumerate()
            .map(|(i, &extent)| match i.checked_sub(outer).map(|i| self.dims[i]) {
                Some(axis) if axis.extent == extent => axis,
                _ => Axis { extent, stride: 0 },
            })
            .collect();
        Self { dims, ..*self }
    }

    /// The same elements under `shape`, if strides can say it.
    pub(super) fn reshaped(&self, shape: &[u64]) -> Option<Self> {
        if self.elements() == 0 {
            return Some(Self { dims: dense(shape), ..*self });
        }
        let from: Vec<Axis> = self.dims.iter().copied().filter(|d| d.extent != 1).collect();
        let mut dims = vec![Axis { extent: 1, stride: 0 }; shape.len()];
        let (mut i, mut j) = (0, 0);
        while i < from.len() || j < shape.len() {
            if j < shape.len() && shape[j] == 1 {
                j += 1;
                continue;
            }
            let (i0, j0) = (i, j);
            let (mut source, mut target) = (from.get(i)?.extent, *shape.get(j)?);
            (i, j) = (i + 1, j + 1);
            while source != target {
                if source < target {
                    source *= from.get(i)?.extent;
                    i += 1;
                } else {
                    target *= *shape.get(j)?;
                    j += 1;
                }
            }
            let group = &from[i0..i];
            let joined = group.windows(2).all(|w| w[0].stride == w[1].stride * w[1].extent);
            if !joined {
                return None;
            }
            let mut stride = group[group.len() - 1].stride;
            for at in (j0..j).rev() {
                dims[at] = Axis { extent: shape[at], stride };
                stride *= shape[at];
            }
        }
        Some(Self { dims, ..*self })
    }
}

/// Makes one nest of views of equal shape: axes of extent 1 vanish, and neighbours that all
/// views walk as one loop are joined. Loops before `kept` and after it are never joined with one
/// another; the returned number says how many loops stay of the first `kept` axes. Views of
/// lower rank (outputs of reductions) cover the first axes only.
pub(super) fn nest_of(
    places: &[Place],
    views: &[&View],
    kept: usize,
    may_fold: bool,
) -> (Nest, Vec<StridedAccess>, usize) {
    let rank = views.iter().map(|v| v.dims.len()).max().unwrap_or(0);
    let full = views.iter().find(|v| v.dims.len() == rank);
    let extents: Vec<u64> =
        full.map(|v| v.dims.iter().map(|d| d.extent).collect()).unwrap_or_default();
    let mut loops: Vec<(u64, Vec<Option<u64>>, bool)> = Vec::new();
    for (axis, &axis_extent) in extents.iter().enumerate() {
        if axis_extent == 1 {
            continue;
        }
        let is_kept = axis < kept;
        let strides: Vec<Option<u64>> =
            views.iter().map(|v| v.dims.get(axis).map(|d| d.stride)).collect();
        if let Some((extent, outer, outer_kept)) = loops.last_mut()
            && *outer_kept == is_kept
            && outer.iter().zip(&strides).all(|(outer, inner)| match (outer, inner) {
                (Some(outer), Some(inner)) => *outer == inner * axis_extent,
                (outer, inner) => outer == inner,
            })
        {
            *extent *= axis_extent;
            *outer = strides;
            continue;
        }
        loops.push((axis_extent, strides, is_kept));
    }
    let kept_loops = loops.iter().filter(|l| l.2).count();
    if loops.len() == kept_loops && kept < rank {
        loops.push((1, vec![Some(0); views.len()], false));
    }
    if loops.is_empty() {
        // A line of one element, walked with the stride of the rows so that they fold.
        let strides = views.iter().map(|v| Some(places[v.place as usize].row_stride));
        loops.push((1, strides.collect(), true));
    }
    let folds = may_fold
        && loops.len() == 1
        && views.iter().zip(&loops[0].1).all(|(v, stride)| {
            places[v.place as usize].row_stride == stride.unwrap_or(0) * loops[0].0
        });
    let accesses = views
        .iter()
        .enumerate()
        .map(|(i, v)| StridedAccess {
            place: v.place,
            offset: v.offset,
            strides: loops.iter().filter_map(|l| l.1[i]).collect(),
        })
        .collect();
    let nest = Nest { extents: loops.iter().map(|l| l.0).collect(), fold_rows: folds };
    (nest, accesses, kept_loops)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(view: &View) -> Vec<u64> {
        let mut all = vec![view.offset];
        for d in &view.dims {
            all =
                all.iter().flat_map(|&at| (0..d.extent).map(move |i| at + i * d.stride)).collect();
        }
        all
    }

    #[test]
    fn reshape_keeps_the_order_of_elements_or_declines() {
        let base = View::dense(0, &[2, 3, 4]);
        let views = [
            base.clone(),
            base.sliced(2, 1, 2),
            base.permuted(&[1, 0, 2]),
            base.sliced(0, 1, 1),
            base.sliced(1, 1, 2),
            View::dense(0, &[4]).broadcast(&[6, 4]),
        ];
        let shapes: [&[u64]; 9] = [
            &[24],
            &[6, 4],
            &[2, 12],
            &[12],
            &[3, 4],
            &[1, 6, 2, 1],
            &[6, 2, 2],
            &[3, 2, 4],
            &[16],
        ];
        let mut done = 0;
        for view in &views {
            for shape in shapes {
                if shape.iter().product::<u64>() != view.elements() {
                    continue;
                }
                if let Some(reshaped) = view.reshaped(shape) {
                    assert_eq!(elements(&reshaped), elements(view), "{view:?} to {shape:?}");
                    assert_eq!(reshaped.shape(), shape);
                    done += 1;
                }
            }
        }
        assert!(done >= 10, "{done}");
        assert_eq!(base.permuted(&[1, 0, 2]).reshaped(&[24]), None);
        assert_eq!(base.sliced(2, 1, 2).reshaped(&[12]), None);
    }
}
