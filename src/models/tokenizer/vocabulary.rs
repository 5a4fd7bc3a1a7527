//! What token ids stand for, as bytes.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

/// The bytes of every token id of a model: parts of characters too, which text can't show. Copies share
/// them.
///
/// A first space that a decoder drops at the start of a text is part of the token here.
#[derive(Debug, Clone)]
pub struct Vocabulary(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    bytes: Vec<u8>,
    /// Where the bytes of each id end.
    ends: Vec<usize>,
    special: Vec<bool>,
}

impl Vocabulary {
    pub(super) fn of(tokenizer: &Tokenizer, vocab_size: usize) -> Self {
        let spelling = Spelling::of(tokenizer);
        let added = tokenizer.get_added_tokens_decoder();
        let mut table = Table::default();
        for id in 0..u32::try_from(vocab_size).unwrap_or(u32::MAX) {
            let mut special = false;
            if let Some(token) = added.get(&id) {
                table.bytes.extend(token.content.as_bytes());
                special = token.special;
            } else if let Some(token) = tokenizer.id_to_token(id) {
                spelling.write(&token, &mut table.bytes);
            }
            table.ends.push(table.bytes.len());
            table.special.push(special);
        }
        Self(Arc::new(table))
    }

    /// Whether the texts of a tokenizer are the bytes of their ids one after the other, as those of
    /// byte-level ones are.
    pub(super) fn makes_texts_of(tokenizer: &Tokenizer) -> bool {
        let decoder = tokenizer.get_decoder().map(serde_json::to_value);
        if !decoder.is_some_and(|decoder| decoder.is_ok_and(|read| read["type"] == "ByteLevel")) {
            return false;
        }
        let spelling = Spelling::of(tokenizer);
        let added = tokenizer.get_added_tokens_decoder();
        let is_itself = |content: &str| {
            let mut spelt = Vec::new();
            spelling.write(content, &mut spelt);
            spelt == content.as_bytes()
        };
        added.values().all(|token| is_itself(&token.content))
    }

    /// The bytes of ids as text, with or without those of special ones.
    pub(super) fn text(&self, ids: &[u32], special: bool) -> String {
        let shown = ids.iter().filter(|id| special || !self.is_special(**id));
        let mut bytes = Vec::with_capacity(ids.len() * 8);
        shown.for_each(|id| bytes.extend_from_slice(self.bytes(*id)));
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// How many ids the model knows; some may stand for nothing.
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// Whether the model knows no id.
    pub fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    /// The bytes of an id; none for one that the tokenizer does not know.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Table { bytes, ends, .. } = &*self.0;
        let Some(&end) = ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| ends[before]);
        &bytes[start..end]
    }

    /// Whether an id is a special token, which texts leave out.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// How a tokenizer's file writes bytes.
struct Spelling {
    /// Characters that stand for a byte each.
    byte_level: Option<HashMap<char, u8>>,
    /// Whether `<0x0A>` is a byte.
    byte_fallback: bool,
    /// What stands for other text, a space mostly.
    replaced: Vec<(String, String)>,
}

impl Spelling {
    fn of(tokenizer: &Tokenizer) -> Self {
        let mut spelling = Self { byte_level: None, byte_fallback: false, replaced: Vec::new() };
        let decoder = tokenizer.get_decoder().map(serde_json::to_value);
        if let Some(Ok(decoder)) = decoder {
            spelling.read(&decoder);
        }
        spelling
    }

    fn read(&mut self, decoder: &Value) {
        match decoder["type"].as_str() {
            Some("ByteLevel") => self.byte_level = Some(byte_characters()),
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Metaspace") => {
                let mark = decoder["replacement"].as_str().unwrap_or("▁");
                self.replaced.push((mark.to_owned(), " ".to_owned()));
            }
            Some("Replace") => {
                if let (Some(from), Some(to)) =
                    (decoder["pattern"]["String"].as_str(), decoder["content"].as_str())
                {
                    self.replaced.push((from.to_owned(), to.to_owned()));
                }
            }
            Some("Sequence") => {
                decoder["decoders"].as_array().into_iter().flatten().for_each(|d| self.read(d));
            }
            _ => {}
        }
    }

    fn write(&self, token: &str, bytes: &mut Vec<u8>) {
        if let Some(characters) = &self.byte_level {
            let start = bytes.len();
            for character in token.chars() {
                match characters.get(&character) {
                    Some(&byte) => bytes.push(byte),
                    None => {
                        // A token that was not written so stands for itself.
                        bytes.truncate(start);
                        return bytes.extend(token.as_bytes());
                    }
                }
            }
            return;
        }
        let hexadecimal = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        let byte = hexadecimal.filter(|hex| self.byte_fallback && hex.len() == 2);
        if let Some(byte) = byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            return bytes.push(byte);
        }
        let text = self.replaced.iter();
        let text = text.fold(token.to_owned(), |text, (from, to)| text.replace(from, to));
        bytes.extend(text.as_bytes());
    }
}

/// The characters by which byte-level tokenizers write bytes: printable ones stand for themselves,
/// the others for those from U+0100 on.
fn byte_characters() -> HashMap<char, u8> {
    let mut next = 0x100_u32;
    let mut characters = HashMap::new();
    for byte in 0..=u8::MAX {
        let is_itself = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let character = if is_itself {
            Some(char::from(byte))
        } else {
            next += 1;
            char::from_u32(next - 1)
        };
        characters.extend(character.map(|character| (character, byte)));
    }
    characters
}
