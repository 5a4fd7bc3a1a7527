//! A call of a tool as it comes.

/// What a piece of text added to one tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Which call of the reply, from 0.
    pub index: usize,
    /// Its id, with its name.
    pub id: Option<String>,
    /// The tool that it calls, once.
    pub name: Option<String>,
    /// The text by which its arguments, JSON in all, grow.
    pub arguments: String,
}
