//! What a grammar says, whatever it is written in.

use std::collections::BTreeSet;

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    Class(Class),
    /// The rule of this number.
    Rule(usize),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    /// From so many times to so many, or without an end.
    Repeat(Box<Self>, u32, Option<u32>),
}

/// One character of some.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Class {
    /// Whether it is one that is not among them.
    pub(super) is_not: bool,
    /// From one to the other, both among them.
    pub(super) ranges: Vec<(char, char)>,
}

/// The rules of a grammar, and the number of the one that texts begin with.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) bodies: Vec<Node>,
    pub(super) root: usize,
}

impl Node {
    pub(super) fn sequence(mut nodes: Vec<Self>) -> Self {
        match nodes.len() {
            0 => Self::Text(String::new()),
            1 => nodes.swap_remove(0),
            _ => Self::Sequence(nodes),
        }
    }

    pub(super) fn choice(mut nodes: Vec<Self>) -> Self {
        match nodes.len() {
            1 => nodes.swap_remove(0),
            _ => Self::Choice(nodes),
        }
    }

    fn parts(&self) -> &[Self] {
        match self {
            Self::Sequence(parts) | Self::Choice(parts) => parts,
            Self::Repeat(part, ..) => std::slice::from_ref(part),
            Self::Text(_) | Self::Class(_) | Self::Rule(_) => &[],
        }
    }

    /// Whether every rule that it refers to is one of these.
    pub(super) fn refers_only_to(&self, is_one: &dyn Fn(usize) -> bool) -> bool {
        match self {
            Self::Rule(rule) => is_one(*rule),
            _ => self.parts().iter().all(|part| part.refers_only_to(is_one)),
        }
    }
}

/// How many characters the shortest text of a rule has at least; `None` where it has none.
type Least = Option<u64>;

impl Node {
    fn least(&self, of_rules: &[Least]) -> Least {
        match self {
            Self::Text(text) => Some(text.chars().count() as u64),
            Self::Class(_) => Some(1),
            Self::Rule(rule) => of_rules[*rule],
            Self::Sequence(parts) => parts
                .iter()
                .try_fold(0, |sum: u64, part| Some(sum.saturating_add(part.least(of_rules)?))),
            Self::Choice(parts) => parts.iter().filter_map(|part| part.least(of_rules)).min(),
            Self::Repeat(_, 0, _) => Some(0),
            Self::Repeat(part, times, _) => {
                Some(part.least(of_rules)?.saturating_mul(u64::from(*times)))
            }
        }
    }
}

impl Rules {
    /// Of each rule, how long its shortest text is.
    pub(super) fn least(&self) -> Vec<Least> {
        let mut least = vec![None; self.bodies.len()];
        loop {
            let mut has_more = false;
            for (rule, body) in self.bodies.iter().enumerate().rev() {
                let found = body.least(&least);
                has_more |= found != least[rule];
                least[rule] = found;
            }
            if !has_more {
                return least;
            }
        }
    }

    /// Writes rules that refer to themselves at one end alone as repetitions: `a ::= "x" a | "y"` is
    /// `"x"* "y"`.
    pub(super) fn unroll(&mut self) {
        for (rule, body) in self.bodies.iter_mut().enumerate() {
            if !body.refers_only_to(&|other| other != rule)
                && let Some(unrolled) = unrolled(rule, body)
            {
                *body = unrolled;
            }
        }
    }

    /// Of each rule, whether it is a regular expression: it refers to nothing that comes within itself.
    pub(super) fn are_regular(&self) -> Vec<bool> {
        let mut regular = vec![false; self.bodies.len()];
        loop {
            let mut has_more = false;
            for (rule, body) in self.bodies.iter().enumerate() {
                if !regular[rule] && body.refers_only_to(&|other| regular[other]) {
                    (regular[rule], has_more) = (true, true);
                }
            }
            if !has_more {
                return regular;
            }
        }
    }
}

fn unrolled(rule: usize, body: &Node) -> Option<Node> {
    let alone = [body.clone()];
    let alternatives = if let Node::Choice(all) = body { all } else { &alone[..] };
    let is_other = |node: &Node| node.refers_only_to(&|other| other != rule);
    let (mut once, mut again, mut ends) = (Vec::new(), Vec::new(), BTreeSet::new());
    for alternative in alternatives {
        let parts = if let Node::Sequence(parts) = alternative {
            &parts[..]
        } else {
            std::slice::from_ref(alternative)
        };
        let rest = match parts {
            _ if is_other(alternative) => {
                once.push(alternative.clone());
                continue;
            }
            [rest @ .., Node::Rule(last)] if *last == rule => {
                ends.insert(End::Last);
                rest
            }
            [Node::Rule(first), rest @ ..] if *first == rule => {
                ends.insert(End::First);
                rest
            }
            _ => return None,
        };
        if !rest.iter().all(is_other) {
            return None;
        }
        again.push(Node::sequence(rest.to_vec()));
    }
    let again = Node::Repeat(Box::new(Node::choice(again)), 0, None);
    let once = if once.is_empty() { return None } else { Node::choice(once) };
    match Vec::from_iter(ends)[..] {
        [End::First] => Some(Node::Sequence(vec![once, again])),
        [End::Last] => Some(Node::Sequence(vec![again, once])),
        _ => None,
    }
}

/// Where a rule refers to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    First,
    Last,
}
