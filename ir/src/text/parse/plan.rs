//! Plan documents: pieces and their order, slots, offsets.

use super::cursor::{Parsed, Parser};
use super::graph::Scope;
use crate::entity::{Arena, Entity, Node, PieceId, Slot, UniquePieceId};
use crate::graph::Graph;
use crate::module::{
    ArenaLayout, LiveRange, Module, PieceUse, SlotData, SlotKind, SlotTable, Step, Stitch,
    UniquePiece,
};
use crate::text::error::ParseErrorKind;
use crate::text::lexer::Token;

/// The sections of a plan as far as they are read.
#[derive(Default)]
struct Plan {
    stitch: Option<Stitch>,
    slots: Option<SlotTable>,
    layout: Option<ArenaLayout>,
}

impl<'t> Parser<'t> {
    /// A graph document, and a plan document if one follows.
    pub(super) fn module_document(&mut self) -> Parsed<Module> {
        self.skip_newlines();
        let scope = self.named_graph()?;
        self.end_of_line()?;
        self.skip_newlines();
        let mut plan = Plan::default();
        if self.eat_word("plan") {
            self.expect('{')?;
            self.end_of_line()?;
            self.lines(|p| p.plan_line(&scope, &mut plan), |_, _| {})?;
            self.skip_newlines();
        }
        if *self.peek() != Token::End {
            return self.expected("`plan` or the end of the text");
        }
        let mut module = Module::new(scope.graph);
        if let Some(stitch) = plan.stitch {
            module.set_stitch(stitch);
        }
        if let Some(slots) = plan.slots {
            module.set_slots(slots);
        }
        if let Some(layout) = plan.layout {
            module.set_layout(layout);
        }
        Ok(module)
    }

    fn plan_line(&mut self, scope: &Scope, plan: &mut Plan) -> Parsed<()> {
        let (section, given) = match *self.peek() {
            Token::Word(word @ "pieces") => (word, plan.stitch.is_some()),
            Token::Word(word @ "arena") => (word, plan.layout.is_some()),
            Token::Word(word @ "slots") => (word, plan.slots.is_some()),
            _ => return self.expected("`pieces`, `arena` or `slots`"),
        };
        if given {
            let name = section.to_owned();
            return self.fail(ParseErrorKind::Duplicate { what: "section", name });
        }
        if section == "arena" && plan.slots.is_some() {
            let message = "`arena` must come before `slots`".to_owned();
            return self.fail(ParseErrorKind::Structure(message));
        }
        self.advance();
        match section {
            "pieces" => plan.stitch = Some(self.pieces(scope)?),
            "arena" => plan.layout = Some(self.arena(&scope.graph)?),
            _ => plan.slots = Some(self.slots(scope, plan.layout.as_mut())?),
        }
        Ok(())
    }

    fn pieces(&mut self, scope: &Scope) -> Parsed<Stitch> {
        self.expect('{')?;
        self.end_of_line()?;
        let mut stitch = Stitch::default();
        let mut order: Option<Vec<Step>> = None;
        self.lines(
            |p| {
                match *p.peek() {
                    Token::Word("unique") => {
                        p.advance();
                        p.sequential::<UniquePieceId>(stitch.unique.len())?;
                        let unique = p.unique()?;
                        stitch.unique.push(unique);
                    }
                    Token::Word("order") if order.is_none() => {
                        p.advance();
                        order = Some(p.order(&stitch)?);
                    }
                    _ => {
                        let step = match p.step_keyword() {
                            Some(step) => Some(step),
                            None if p.eat_word("use") => None,
                            None => {
                                return p.expected(
                                    "`unique`, `piece`, `split`, `prologue`, `use` or `order`",
                                );
                            }
                        };
                        let id = p.sequential::<PieceId>(stitch.uses.len())?;
                        let piece = p.piece_use(scope, &stitch)?;
                        stitch.uses.push(piece);
                        stitch.steps.extend(step.map(|step| step(id)));
                    }
                }
                Ok(())
            },
            |_, _| {},
        )?;
        if let Some(order) = order {
            stitch.steps = order;
        }
        Ok(stitch)
    }

    fn step_keyword(&mut self) -> Option<fn(PieceId) -> Step> {
        let step: fn(PieceId) -> Step = match *self.peek() {
            Token::Word("prologue") => Step::Prologue,
            Token::Word("piece") => Step::Piece,
            Token::Word("split") => Step::Split,
            _ => return None,
        };
        self.advance();
        Some(step)
    }

    /// The id at `index` of its sequence.
    fn sequential<E: Entity + std::fmt::Display>(&mut self, index: usize) -> Parsed<E> {
        let expected = E::new(index).to_string();
        match *self.peek() {
            Token::Word(word) if word == expected => {
                self.advance();
                Ok(E::new(index))
            }
            Token::Word(word) => {
                self.fail(ParseErrorKind::Sequence { expected, found: word.to_owned() })
            }
            _ => self.expected(format!("`{expected}`")),
        }
    }

    /// An id of a sequence that has `count` so far.
    fn known<E: Entity + std::fmt::Display>(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Parsed<E> {
        let Token::Word(word) = *self.peek() else { return self.expected(what) };
        let index = word.get(1..).and_then(|digits| digits.parse::<usize>().ok());
        match index.filter(|&i| i < count && E::new(i).to_string() == word) {
            Some(index) => {
                self.advance();
                Ok(E::new(index))
            }
            None => {
                let help = "an earlier line must define it";
                self.fail(ParseErrorKind::Unknown { what, name: word.to_owned(), help })
            }
        }
    }

    fn unique(&mut self) -> Parsed<UniquePiece> {
        let name = self.optional_at().unwrap_or_default();
        let over =
            if self.eat_word("over") { Some((self.span(), self.symbol_name()?)) } else { None };
        self.expect_word("hash")?;
        let span = self.span();
        let digits = self.string("the hash in quotes")?;
        let Some(hash) = parse_hash(&digits) else {
            let message = "a hash is 64 hexadecimal digits in lower case".to_owned();
            return self.fail_at(span, ParseErrorKind::Structure(message));
        };
        self.expect('{')?;
        let mut inner = Scope::new(Graph::new(name), 'v');
        self.nested(|p| p.block(&mut inner))?;
        let over = match over {
            None => None,
            Some((span, name)) => match inner.symbols.get(&name) {
                Some(&symbol) => Some(symbol),
                None => {
                    let help = "the piece must declare it";
                    let kind = ParseErrorKind::Unknown { what: "symbol", name, help };
                    return self.fail_at(span, kind);
                }
            },
        };
        Ok(UniquePiece { over, graph: inner.graph, hash })
    }

    fn piece_use(&mut self, scope: &Scope, stitch: &Stitch) -> Parsed<PieceUse> {
        self.expect('=')?;
        let unique = self.known(stitch.unique.len(), "unique piece")?;
        self.expect_word("nodes")?;
        let nodes = self.items(['[', ']'], |p| p.node(scope))?;
        self.expect_word("operands")?;
        let operands = self.items(['[', ']'], |p| p.operand(scope))?;
        Ok(PieceUse { unique, nodes, operands })
    }

    /// A node by its first result, or by its position in the program: `v3`, `n12`.
    fn node(&mut self, scope: &Scope) -> Parsed<Node> {
        if matches!(self.peek(), Token::Word(word) if word.starts_with('n')) {
            // The parser makes nodes in program order, so that ids are positions.
            return self.known(scope.graph.node_count(), "node");
        }
        let span = self.span();
        let value = self.operand(scope)?;
        match scope.graph.defining_node(value) {
            Some(node) => Ok(node),
            None => {
                let message = "inputs, weights and states are no nodes".to_owned();
                self.fail_at(span, ParseErrorKind::Structure(message))
            }
        }
    }

    fn order(&mut self, stitch: &Stitch) -> Parsed<Vec<Step>> {
        let mut steps = Vec::new();
        if *self.peek() == Token::Newline {
            return Ok(steps);
        }
        loop {
            let Some(step) = self.step_keyword() else {
                return self.expected("`piece`, `split` or `prologue`");
            };
            steps.push(step(self.known(stitch.uses.len(), "piece")?));
            if !self.eat(',') {
                return Ok(steps);
            }
        }
    }

    fn arena(&mut self, graph: &Graph) -> Parsed<ArenaLayout> {
        self.expect_word("bounds")?;
        self.expect('[')?;
        let mut layout = ArenaLayout::default();
        self.list(']', |p| {
            let span = p.span();
            let name = p.symbol_name()?;
            let next = graph.symbols().get(Entity::new(layout.bounds.len()));
            if next.is_none_or(|decl| decl.name != name) {
                let message = "bounds name the graph's symbols in the order of declaration";
                return p.fail_at(span, ParseErrorKind::Structure(message.to_owned()));
            }
            p.expect('=')?;
            layout.bounds.push(p.unsigned("a bound")?);
            Ok(())
        })?;
        self.expect_word("align")?;
        layout.align = self.unsigned("bytes")?;
        self.expect_word("counts")?;
        layout.counts = self.unsigned("a byte offset")?;
        self.expect_word("staged")?;
        layout.staged = self.unsigned("bytes")?;
        self.expect_word("bytes")?;
        layout.bytes = self.unsigned("bytes")?;
        Ok(layout)
    }

    fn slots(&mut self, scope: &Scope, mut layout: Option<&mut ArenaLayout>) -> Parsed<SlotTable> {
        self.expect('{')?;
        self.end_of_line()?;
        let mut slots = Arena::new();
        self.lines(
            |p| {
                let slot = p.sequential::<Slot>(slots.len())?;
                p.expect(':')?;
                slots.push(p.slot(scope, slot)?);
                if let Some(layout) = layout.as_deref_mut() {
                    p.expect_word("at")?;
                    let offset = p.unsigned("a byte offset")?;
                    p.expect_word("size")?;
                    layout.sizes.push(p.unsigned("bytes")?);
                    layout.offsets.push(offset);
                } else if *p.peek() == Token::Word("at") {
                    let message = "offsets need an `arena` line before `slots`".to_owned();
                    return p.fail(ParseErrorKind::Structure(message));
                }
                Ok(())
            },
            |_, _| {},
        )?;
        Ok(SlotTable { slots })
    }

    fn slot(&mut self, scope: &Scope, slot: Slot) -> Parsed<SlotData> {
        let span = self.span();
        let ty = self.ty(scope)?;
        let kind: SlotKind = self.named("`input`, `boundary`, `local` or `output`")?;
        let value = self.operand(scope)?;
        let declared = scope.graph.ty(value);
        if ty != *declared {
            let symbols = scope.graph.symbols();
            let expected = declared.display(symbols).to_string();
            let found = ty.display(symbols).to_string();
            let what = format!("the value of {slot}");
            return self.fail_at(span, ParseErrorKind::Type { what, expected, found });
        }
        self.expect_word("live")?;
        let start = self.index("the first position")?;
        self.expect_token(&Token::DotDot)?;
        let end = self.index("the last position")?;
        Ok(SlotData { value, kind, live: LiveRange { start, end } })
    }
}

fn parse_hash(digits: &str) -> Option<[u8; 32]> {
    let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() != 64 || !digits.bytes().all(lower) {
        return None;
    }
    let mut hash = [0; 32];
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}
