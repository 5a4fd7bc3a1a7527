//! Rules to the text of a grammar in Lark.

use super::rules::{Class, Node, Rules};
use serde_json::json;
use std::fmt::Write;

/// Writes every rule as a rule, or as a terminal where it is a regular expression.
pub(super) fn write(mut rules: Rules) -> String {
    rules.unroll();
    let mut writer = Writer { regular: rules.are_regular(), terminals: 0, lines: String::new() };
    let root = writer.name(rules.root);
    writer.line("start", &root);
    for (rule, body) in rules.bodies.iter().enumerate() {
        let (name, body) = (writer.name(rule), writer.part(body, writer.regular[rule]));
        writer.line(&name, &body);
    }
    writer.lines
}

struct Writer {
    /// Which rules are regular expressions.
    regular: Vec<bool>,
    /// How many terminals parts of rules have become.
    terminals: usize,
    lines: String,
}

impl Writer {
    fn line(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.lines, "{name}: {body}");
    }

    fn name(&self, rule: usize) -> String {
        match self.regular[rule] {
            true => format!("RULE_{rule}"),
            false => format!("rule_{rule}"),
        }
    }

    fn is_regular(&self, node: &Node) -> bool {
        node.refers_only_to(&|rule| self.regular[rule])
    }

    /// A part, of a terminal or of a rule.
    fn part(&mut self, node: &Node, of_terminal: bool) -> String {
        match node {
            Node::Rule(rule) => self.name(*rule),
            Node::Text(text) => quoted(text),
            Node::Class(class) => expression(class),
            _ if !of_terminal && self.is_regular(node) => self.terminal(node),
            Node::Repeat(_, _, Some(0)) => quoted(""),
            Node::Repeat(inner, least, most) => {
                let inner = self.part(inner, of_terminal);
                let times = match (least, most) {
                    (0, None) => "*".to_owned(),
                    (least, None) => format!("{{{least},}}"),
                    (least, Some(most)) => format!("{{{least},{most}}}"),
                };
                format!("({inner}){times}")
            }
            Node::Sequence(parts) | Node::Choice(parts) if of_terminal => {
                let parts = Vec::from_iter(parts.iter().map(|part| self.part(part, true)));
                format!("({})", parts.join(joint(node)))
            }
            Node::Sequence(parts) => {
                // What stands side by side is one terminal.
                let runs = parts.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
                let runs = Vec::from_iter(runs.map(|run| Node::sequence(run.to_vec())));
                let runs = Vec::from_iter(runs.iter().map(|run| self.part(run, false)));
                format!("({})", runs.join(joint(node)))
            }
            Node::Choice(parts) => {
                let (regular, mut rest): (Vec<_>, Vec<_>) =
                    parts.iter().cloned().partition(|part| self.is_regular(part));
                if !regular.is_empty() {
                    rest.push(Node::choice(regular));
                }
                let rest = Vec::from_iter(rest.iter().map(|part| self.part(part, false)));
                format!("({})", rest.join(joint(node)))
            }
        }
    }

    fn terminal(&mut self, node: &Node) -> String {
        let name = format!("PART_{}", self.terminals);
        self.terminals += 1;
        let body = self.part(node, true);
        self.line(&name, &body);
        name
    }
}

fn joint(node: &Node) -> &'static str {
    if matches!(node, Node::Choice(_)) { " | " } else { " " }
}

fn quoted(text: &str) -> String {
    json!(text).to_string().replace('\x7f', "\\u007f")
}

fn expression(class: &Class) -> String {
    let mut ranges = String::new();
    for (first, last) in &class.ranges {
        let _ = write!(ranges, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(*first), u32::from(*last));
    }
    let not = if class.is_not { "^" } else { "" };
    format!("/[{not}{ranges}]/")
}
