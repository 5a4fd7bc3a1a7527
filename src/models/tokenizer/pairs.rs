//! Two texts as a model reads them together, such as a query and a document.

use super::contained::contained;
use super::{TextTokenizer, TokenizerError, check_token_ids};
use tokenizers::Encoding;

/// A text that stands before others, and is read once.
#[derive(Debug)]
pub struct FirstOfPairs<'t> {
    tokenizer: &'t TextTokenizer,
    first: Encoding,
}

impl TextTokenizer {
    /// Reads a text that stands before others.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer fails.
    pub fn first_of_pairs(&self, first: &str) -> Result<FirstOfPairs<'_>, TokenizerError> {
        Ok(FirstOfPairs { tokenizer: self, first: self.alone(first)? })
    }

    /// A text without what the post-processor adds.
    fn alone(&self, text: &str) -> Result<Encoding, TokenizerError> {
        contained(|| self.inner.encode(text, false))
            .map_err(|source| TokenizerError::Encode { source })
    }
}

impl FirstOfPairs<'_> {
    /// The tokens of it alone.
    pub fn tokens(&self) -> usize {
        self.first.len()
    }

    /// The token ids of it and a second text, as the tokenizer's own post-processor joins them, and of
    /// each token the number of its text.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the tokenizer fails, [`TokenizerError::NoIds`] or
    /// [`TokenizerError::IdOutOfRange`].
    pub fn with(&self, second: &str) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let mut second = self.tokenizer.alone(second)?;
        second.set_type_ids(vec![1; second.len()]);
        let (inner, first) = (&self.tokenizer.inner, self.first.clone());
        let pair = contained(|| inner.post_process(first, Some(second), true))
            .map_err(|source| TokenizerError::Encode { source })?;
        check_token_ids(pair.get_ids(), self.tokenizer.vocab_size)?;
        Ok((pair.get_ids().to_vec(), pair.get_type_ids().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    /// A tokenizer of words with this post-processor.
    fn tokenizer(post_processor: &Value) -> TextTokenizer {
        let vocab = json!({"[CLS]": 0, "[SEP]": 1, "one": 2, "two": 3, "three": 4, "?": 5});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": post_processor,
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"},
        });
        TextTokenizer::parse(file.to_string().as_bytes(), 6, Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn a_text_that_is_read_once_gives_what_each_pair_gives_by_itself() {
        let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
        let special =
            |id: &str, type_id: u32| json!({"SpecialToken": {"id": id, "type_id": type_id}});
        let template = json!({
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)],
            "pair": [
                special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0),
                sequence("B", 1), special("[SEP]", 1),
            ],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [1], "tokens": ["[SEP]"]},
            },
        });
        let marks = json!({"sep": ["[SEP]", 1], "cls": ["[CLS]", 0]});
        let of = |kind: &str, more: Value| {
            let mut all = marks.clone();
            all["type"] = json!(kind);
            all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            all
        };
        let roberta = json!({"trim_offsets": true, "add_prefix_space": false});
        for processor in [
            Value::Null,
            template,
            of("BertProcessing", json!({})),
            of("RobertaProcessing", roberta),
        ] {
            let tokenizer = tokenizer(&processor);
            let first = tokenizer.first_of_pairs("one two").unwrap();
            for second in ["three", "one three four two", ""] {
                let whole = tokenizer.inner.encode(("one two", second), true).unwrap();
                let expected = (whole.get_ids().to_vec(), whole.get_type_ids().to_vec());
                assert_eq!(first.with(second).unwrap(), expected, "{processor} {second:?}");
            }
        }
        let plain = tokenizer(&Value::Null);
        let nothing = plain.first_of_pairs("").unwrap().with("");
        assert!(matches!(nothing, Err(TokenizerError::NoIds)), "{nothing:?}");
    }
}
