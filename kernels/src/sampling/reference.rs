//! Sampling for the reference evaluator: the steps of the CPU's sampler, which fix every bit, over
//! operands as their dtypes hold them.

use crate::cpu::Isa;
use crate::cpu::sampling::{ControlArgs, SampleArgs, sample, sample_scratch_bytes};
use crate::inputs::DETAIL_WORDS;
use piecewise_ir::dtype::DType;
use piecewise_ir::eval::Array;

const ALIGN: usize = 64;

/// The ids; of the op with controls also what is told of them, and the state of tokens afterwards.
pub(super) fn evaluate(operands: &[Array]) -> Result<Vec<Array>, String> {
    let [logits, temperature, top_k, top_p, seed, position, rest @ ..] = operands else {
        return Err("takes logits and five parameters".to_owned());
    };
    let (rows, vocabulary) = (logits.shape[0], logits.row_len());
    let mut ids = vec![0; rows];
    let controlled = rest.len() == 4;
    let mut scratch = vec![0; sample_scratch_bytes(vocabulary, controlled, 1) + ALIGN];
    let aligned = scratch.as_ptr().align_offset(ALIGN);
    let seeds = Vec::from_iter(seed.data.iter().map(|&seed| seed as i64));
    let (mut details, mut tokens) = (vec![0; rows * DETAIL_WORDS], Vec::new());
    let (mut words, mut penalties, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    if let [controls, of_rows, allowed, state] = rest {
        (words, penalties, masks) = (ints(controls), floats(of_rows), ints(allowed));
        tokens = ints(state);
    }
    let controls = controlled.then_some(ControlArgs {
        controls: &words,
        penalties: &penalties,
        masks: &masks,
        tokens: &mut tokens,
        details: &mut details,
    });
    let args = SampleArgs {
        logits: &floats(logits),
        vocabulary,
        temperature: &floats(temperature),
        top_k: &ints(top_k),
        top_p: &floats(top_p),
        seed: &seeds,
        position: &ints(position),
        controls,
        out: &mut ids,
        scratch: &mut scratch[aligned..],
    };
    sample(Isa::detected(), args).map_err(|error| error.to_string())?;
    let array = |shape, words: &[i32]| Array {
        dtype: DType::I32,
        shape,
        data: words.iter().map(|&word| word.into()).collect(),
    };
    let mut made = vec![array(vec![rows], &ids)];
    if let [.., state] = rest {
        made.push(array(vec![rows, DETAIL_WORDS], &details));
        made.push(array(state.shape.clone(), &tokens));
    }
    Ok(made)
}

fn floats(array: &Array) -> Vec<f32> {
    array.data.iter().map(|&x| x as f32).collect()
}

fn ints(array: &Array) -> Vec<i32> {
    array.data.iter().map(|&x| x as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{ControlledSample, NO_ID, Sample, SampleControls, mask_words, token_words};
    use super::*;
    use piecewise_ir::custom::{Attrs, CustomOpDef};

    fn array(dtype: DType, shape: &[usize], data: &[f64]) -> Array {
        Array { dtype, shape: shape.to_vec(), data: data.to_vec() }
    }

    /// Greedy rows of three logits, with the parameters of the op.
    fn operands(logits: &[f64]) -> Vec<Array> {
        let rows = logits.len() / 3;
        let each = |dtype, value: f64| array(dtype, &[rows], &vec![value; rows]);
        vec![
            array(DType::F32, &[rows, 3], logits),
            each(DType::F32, 0.0),
            each(DType::I32, 0.0),
            each(DType::F32, 1.0),
            each(DType::I64, 0.0),
            each(DType::I32, 0.0),
        ]
    }

    #[test]
    fn the_evaluator_gives_the_largest_and_no_id_where_there_is_none() {
        let (nan, infinity) = (f64::NAN, f64::INFINITY);
        let logits = [1.0, 3.0, 2.0, 1.0, nan, 2.0, -infinity, -infinity, 0.5, 0.0, infinity, 0.0];
        let mut operands = operands(&logits);
        let ids = [1.0, f64::from(NO_ID), 2.0, f64::from(NO_ID)];
        let made = Sample.evaluate(&operands, &Attrs::new(), &[]).unwrap();
        assert_eq!(made, [array(DType::I32, &[4], &ids)]);
        // One bias for each row that counts, in rows of states of their own.
        let controls = SampleControls { tokens: Some(0), counts: true, ..Default::default() };
        let words = controls.words().map(f64::from);
        operands.push(array(DType::I32, &[4, 4], &[words, [0.0; 4], [0.0; 4], [0.0; 4]].concat()));
        operands.push(array(DType::F32, &[4, 4], &[0.0, 0.0, 0.0, 1.0].repeat(4)));
        operands.push(Array::zeros(DType::I32, vec![1, mask_words(3) as usize]));
        operands.push(Array::zeros(DType::I32, vec![1, token_words(3) as usize]));
        let made = ControlledSample.evaluate(&operands, &Attrs::new(), &[]).unwrap();
        assert_eq!(made[0].data, ids);
        assert_eq!(made[1], Array::zeros(DType::I32, vec![4, DETAIL_WORDS]));
        // Id 1 came once: the upper half of the first word.
        assert_eq!((made[2].data[0], made[2].data[1]), (65536.0, 0.0));
    }
}
