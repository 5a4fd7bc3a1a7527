//! The blocks of a reply, one behind the other: thoughts, text, and the use of tools.

use super::super::ids;
use crate::chat::{ReplyDelta, ToolCallDelta};
use serde::Serialize;
use serde_json::{Value, json};

/// A part of a reply of one kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

/// What comes to a block.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "they are the interface's names")]
pub(super) enum Piece {
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: String },
    TextDelta { text: String },
    InputJsonDelta { partial_json: String },
}

/// A block begins, grows or ends.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    Start { index: usize, block: Block },
    Add { index: usize, piece: Piece },
    Stop { index: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Thoughts,
    Text,
    /// The call of this number.
    Call(usize),
}

/// How far the blocks of a reply have come.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<Kind>,
    /// How many have ended.
    ended: usize,
}

impl Blocks {
    /// Adds the steps that a piece of a reply makes.
    pub(super) fn read(&mut self, delta: ReplyDelta, steps: &mut Vec<Step>) {
        let ReplyDelta { reasoning, content, tool_calls } = delta;
        // What comes to a call that has begun came before what stands beside it.
        let is_open = |call: &ToolCallDelta| self.open == Some(Kind::Call(call.index));
        let (rest, calls): (Vec<_>, Vec<_>) = tool_calls.into_iter().partition(is_open);
        self.read_calls(rest, steps);
        if !reasoning.is_empty() {
            let block = || Block::Thinking { thinking: String::new(), signature: String::new() };
            self.turn_to(Kind::Thoughts, block, steps);
            self.add(Piece::ThinkingDelta { thinking: reasoning }, steps);
        }
        if !content.is_empty() {
            self.turn_to(Kind::Text, || Block::Text { text: String::new() }, steps);
            self.add(Piece::TextDelta { text: content }, steps);
        }
        self.read_calls(calls, steps);
    }

    fn read_calls(&mut self, calls: Vec<ToolCallDelta>, steps: &mut Vec<Step>) {
        for ToolCallDelta { index, id, name, arguments } in calls {
            let block = || Block::ToolUse {
                id: id.unwrap_or_default(),
                name: name.unwrap_or_default(),
                input: json!({}),
            };
            self.turn_to(Kind::Call(index), block, steps);
            if !arguments.is_empty() {
                self.add(Piece::InputJsonDelta { partial_json: arguments }, steps);
            }
        }
    }

    /// Ends the block that is open.
    pub(super) fn end(&mut self, steps: &mut Vec<Step>) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thoughts {
            // Nothing is signed here, but clients send back no thoughts without a signature.
            self.add(Piece::SignatureDelta { signature: ids::next("sig") }, steps);
        }
        steps.push(Step::Stop { index: self.ended });
        self.ended += 1;
    }

    fn turn_to(&mut self, kind: Kind, block: impl FnOnce() -> Block, steps: &mut Vec<Step>) {
        if self.open != Some(kind) {
            self.end(steps);
            self.open = Some(kind);
            steps.push(Step::Start { index: self.ended, block: block() });
        }
    }

    fn add(&self, piece: Piece, steps: &mut Vec<Step>) {
        steps.push(Step::Add { index: self.ended, piece });
    }
}

impl Step {
    /// Does to a whole reply what a client does who has it step by step.
    pub(super) fn apply(self, content: &mut Vec<Block>) {
        match self {
            Self::Start { block, .. } => content.push(block),
            Self::Add { piece, .. } => {
                if let Some(block) = content.last_mut() {
                    block.add(piece);
                }
            }
            Self::Stop { .. } => {
                if let Some(Block::ToolUse { input, .. }) = content.last_mut()
                    && let Value::String(written) = input
                {
                    // One that was cut off is no object: nothing is known of what it was to be.
                    let read = serde_json::from_str(written).ok().filter(Value::is_object);
                    *input = read.unwrap_or_else(|| json!({}));
                }
            }
        }
    }
}

impl Block {
    fn add(&mut self, piece: Piece) {
        match (self, piece) {
            (Self::Thinking { thinking, .. }, Piece::ThinkingDelta { thinking: more }) => {
                thinking.push_str(&more);
            }
            (Self::Thinking { signature, .. }, Piece::SignatureDelta { signature: whole }) => {
                *signature = whole;
            }
            (Self::Text { text }, Piece::TextDelta { text: more }) => text.push_str(&more),
            // As text until it is whole.
            (Self::ToolUse { input, .. }, Piece::InputJsonDelta { partial_json }) => match input {
                Value::String(written) => written.push_str(&partial_json),
                input => *input = partial_json.into(),
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, name: &str, arguments: &str) -> ToolCallDelta {
        let of_name = |text: &str| (!name.is_empty()).then(|| text.to_owned());
        let arguments = arguments.to_owned();
        ToolCallDelta { index, id: of_name("call"), name: of_name(name), arguments }
    }

    /// The blocks of a reply that comes so, and how they are told of step by step.
    fn read(deltas: Vec<(&str, &str, Vec<ToolCallDelta>)>) -> (Value, Vec<String>) {
        let (mut blocks, mut steps) = (Blocks::default(), Vec::new());
        for (reasoning, content, tool_calls) in deltas {
            let (reasoning, content) = (reasoning.to_owned(), content.to_owned());
            blocks.read(ReplyDelta { reasoning, content, tool_calls }, &mut steps);
        }
        blocks.end(&mut steps);
        let told = |step: &Step| match step {
            Step::Start { index, .. } => format!("+{index}"),
            Step::Add { index, .. } => index.to_string(),
            Step::Stop { index } => format!("-{index}"),
        };
        let told = Vec::from_iter(steps.iter().map(told));
        let mut content = Vec::new();
        steps.into_iter().for_each(|step| step.apply(&mut content));
        let mut content = json!(content);
        for block in content.as_array_mut().unwrap() {
            if let Some(Value::String(signature)) =
                block.as_object_mut().unwrap().remove("signature")
            {
                assert!(!signature.is_empty());
            }
        }
        (content, told)
    }

    #[test]
    fn one_block_is_open_at_a_time() {
        let (content, told) = read(vec![
            ("hm", "", vec![]),
            (".", "I look", vec![]),
            ("", ".", vec![call(0, "add", "")]),
            ("", "", vec![call(0, "", "{\"a\":")]),
            // The end of one, a word, and another.
            ("", "And", vec![call(0, "", " 3}"), call(1, "clock", "")]),
        ]);
        let expected = json!([
            {"type": "thinking", "thinking": "hm."},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call", "name": "add", "input": {"a": 3}},
            {"type": "text", "text": "And"},
            {"type": "tool_use", "id": "call", "name": "clock", "input": {}},
        ]);
        assert_eq!(content, expected);
        let steps = "+0 0 0 0 -0 +1 1 1 -1 +2 2 2 -2 +3 3 -3 +4 -4";
        assert_eq!(told.join(" "), steps);
    }

    #[test]
    fn the_input_of_a_call_that_is_cut_off_is_empty() {
        let (content, _) = read(vec![("", "", vec![call(0, "add", "{\"a\": ")])]);
        assert_eq!(content[0]["input"], json!({}));
        assert_eq!(read(vec![]), (json!([]), vec![]));
    }
}
