//! The list of calls that a reply is which must call a tool.

use serde_json::Value;

use super::tool_call::ToolCallDelta;

/// Reads a list as [`Tools::structure`](super::Tools::structure) has it: of each call its name, then
/// its arguments, with any white space.
#[derive(Debug, Default)]
pub(super) struct CallList {
    /// Lists and objects that are open: the list of calls and the call are the first two.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// A call before its arguments.
    head: String,
    /// Fields of the call that have begun.
    fields: usize,
    index: usize,
}

impl CallList {
    pub(super) fn push(&mut self, text: &str) -> Vec<ToolCallDelta> {
        let mut deltas: Vec<ToolCallDelta> = Vec::new();
        for character in text.chars() {
            let is_plain = !self.in_string;
            match character {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' => self.is_escaped = self.in_string,
                '"' => self.in_string = is_plain,
                '[' | '{' if is_plain => self.depth += 1,
                ']' | '}' if is_plain => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            let is_at_call = is_plain && self.depth == 2;
            if is_plain && self.depth < 2 {
                if self.fields > 0 {
                    self.index += 1;
                }
                (self.fields, self.head) = (0, String::new());
            } else if self.fields == 2 && is_at_call && character.is_whitespace() {
                // It is beside the arguments.
            } else if self.fields == 2 {
                match deltas.last_mut().filter(|last| last.index == self.index) {
                    Some(last) => last.arguments.push(character),
                    None => deltas.push(self.delta(None, character.to_string())),
                }
            } else {
                self.head.push(character);
                if is_at_call && character == ':' {
                    self.fields += 1;
                }
                if self.fields == 2 {
                    deltas.push(self.delta(self.name(), String::new()));
                }
            }
        }
        deltas
    }

    fn delta(&self, name: Option<String>, arguments: String) -> ToolCallDelta {
        ToolCallDelta { index: self.index, id: None, name, arguments }
    }

    fn name(&self) -> Option<String> {
        let call: Value = serde_json::from_str(&format!("{}null}}", self.head)).ok()?;
        Some(call["name"].as_str()?.to_owned())
    }
}
