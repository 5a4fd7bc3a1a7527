//! Diagnostics: coded findings about a graph or a plan, shown inside its listing.

use crate::entity::{Node, PieceId, Slot, Symbol, Value};

/// What a finding is about: where the listing shows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Anchor {
    /// The graph as a whole.
    Graph,
    /// A symbol's declaration.
    Symbol(Symbol),
    /// A declared value: input, weight or state; or the result of a node.
    Value(Value),
    /// A node of the graph.
    Node(Node),
    /// A node, and the position among its operands.
    Operand(Node, usize),
    /// A node of the body of a region: the region's node, then the body's.
    Body(Node, Node),
    /// The list of returned values.
    Outputs,
    /// A piece, split op or prologue op of the plan.
    Piece(PieceId),
    /// A slot of the plan.
    Slot(Slot),
}

/// What breaks a rule of the verifier, where, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Its stable code: `V0412`. `V` for graphs, `P` for pieces, `B` for buffers.
    pub code: &'static str,
    /// The part of the graph or plan that a listing marks.
    pub at: Anchor,
    /// The same in words, as the listing names it; empty where no graph was at hand.
    pub place: String,
    /// What is wrong, why, and what to try.
    pub message: String,
    /// Further facts: where an operand comes from.
    pub notes: Vec<String>,
}

/// Findings in the order in which they were made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnostics {
    /// In the order in which they were made; empty where nothing is wrong.
    pub items: Vec<Diagnostic>,
}

impl Diagnostics {
    /// Adds a finding without notes.
    pub fn push(&mut self, code: &'static str, at: Anchor, message: impl Into<String>) {
        self.push_with_notes(code, at, message, Vec::new());
    }

    /// Adds a finding with further facts.
    pub fn push_with_notes(
        &mut self,
        code: &'static str,
        at: Anchor,
        message: impl Into<String>,
        notes: Vec<String>,
    ) {
        let (place, message) = (String::new(), message.into());
        self.items.push(Diagnostic { code, at, place, message, notes });
    }

    /// `Ok` if there is no finding.
    ///
    /// # Errors
    /// All findings.
    pub fn into_result(self) -> Result<(), Self> {
        if self.items.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl std::fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, item) in self.items.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            let at = if item.place.is_empty() { "" } else { " at " };
            write!(f, "{newline}error[{}]{at}{}: {}", item.code, item.place, item.message)?;
            for note in &item.notes {
                write!(f, "\n  note: {note}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
