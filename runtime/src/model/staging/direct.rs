//! Steps that are filled straight into their host block, where nobody reads them on the host.

use super::{Filling, Staging};
use crate::model::pieces::GAP;
use crate::words::{InputSource, ModelError, StepData};
use piecewise_backend::device::{ByteRows, Device};

impl<D: Device> Staging<D> {
    /// Fills block `turn` in place of the mirror, which nobody is to read: with all that is staged of the
    /// step but the later pieces of what is large.
    pub(crate) fn fill_direct(
        &mut self,
        device: &mut D,
        turn: usize,
        step: &StepData<'_>,
        (counts, sizes): (&[u64], &[u64]),
    ) -> Result<(), ModelError> {
        self.ends[turn].wait(device)?;
        self.is_direct = true;
        let block = self.in_blocks[turn];
        let bytes = device.host_bytes_mut(block, block.all())?;
        match step.source {
            Some(source) => self.fill_from(bytes, source, (counts, sizes))?,
            None => self.fill_prefix(bytes, step, (counts, sizes), Filling::Read)?,
        }
        self.pieces.fill_first(bytes, None, step);
        Ok(())
    }

    /// Has a source fill a block, and pads it.
    fn fill_from(
        &mut self,
        prefix: &mut [u8],
        source: &dyn InputSource,
        (counts, sizes): (&[u64], &[u64]),
    ) -> Result<(), ModelError> {
        self.begin(prefix, counts);
        for &i in &self.order {
            let input = &self.inputs[i];
            let start = input.offset;
            let columns =
                source.fill(i, &mut prefix[start..][..input.ty.bytes(counts) as usize])?;
            let (rows, padded) = (input.rows(columns, counts)?, input.rows(columns, sizes)?);
            let real = rows.bytes() as usize;
            let about = (i, input.name.as_str(), input.ty.dtype);
            self.slots.check(about, std::iter::once(&prefix[start..][..real]))?;
            if columns.is_none() {
                // The padding of floats nobody may depend on.
                let all = if input.ty.dtype.is_float() { real } else { padded.width as usize };
                let at = start..start + all.max(real);
                input.pad(&mut prefix[at.clone()][real..], false);
                self.pieces.push(at, None);
                continue;
            }
            let all = ByteRows { count: padded.count.max(rows.count), ..rows };
            let used = start..start + all.span() as usize;
            if used.len() > GAP {
                // They follow one another, as they are copied.
                input.pad(&mut prefix[start..][real..all.bytes() as usize], false);
                self.apart.push((start, all));
                continue;
            }
            let target = &mut prefix[used.clone()];
            spread(target, rows);
            let padding = target.chunks_mut(rows.pitch.max(1) as usize).skip(rows.count as usize);
            padding.for_each(|row| input.pad(&mut row[..rows.width as usize], false));
            self.pieces.push(used, None);
        }
        self.pieces.cut();
        Ok(())
    }
}

/// Moves rows that follow one another to where they lie apart, the last first.
fn spread(bytes: &mut [u8], rows: ByteRows) {
    let (width, pitch) = (rows.width as usize, rows.pitch as usize);
    for row in (1..rows.count as usize).rev().filter(|_| width < pitch) {
        bytes.copy_within(row * width..(row + 1) * width, row * pitch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread() {
        let rows = |width, pitch, count| ByteRows { width, pitch, count };
        for (rows, expected) in [
            (rows(2, 3, 3), &[1, 2, 3, 3, 4, 6, 5, 6][..]),
            (rows(2, 2, 3), &[1, 2, 3, 4, 5, 6]),
            (rows(3, 5, 2), &[1, 2, 3, 4, 5, 4, 5, 6]),
            (rows(0, 4, 2), &[1, 2, 3, 4]),
            (rows(2, 3, 1), &[1, 2]),
            (rows(2, 3, 0), &[]),
        ] {
            let mut bytes = Vec::from_iter(1..=rows.span() as u8);
            spread(&mut bytes, rows);
            assert_eq!(bytes, expected, "{rows:?}");
        }
    }
}
