//! Graph documents: declarations and statements.

use super::cursor::{Failed, Parsed, Parser};
use crate::dim::SymbolDecl;
use crate::dtype::DType;
use crate::entity::{Symbol, Value};
use crate::graph::{Graph, Loc};
use crate::literal::Scalar;
use crate::text::error::ParseErrorKind;
use crate::text::lexer::Token;
use crate::types::TensorType;
use rustc_hash::{FxHashMap, FxHashSet};

/// A graph under construction and the names in sight.
pub(super) struct Scope {
    pub(super) graph: Graph,
    /// Values by their token: `v0`, `%name`.
    pub(super) values: FxHashMap<String, Value>,
    pub(super) symbols: FxHashMap<String, Symbol>,
    /// What lines that failed would have defined; uses of it are no errors of their own.
    pub(super) failed: FxHashSet<String>,
    states: FxHashSet<String>,
    /// The letter of results: `v` in a graph, `a` in the body of a region.
    results: char,
}

impl Scope {
    pub(super) fn new(graph: Graph, results: char) -> Self {
        let symbols =
            graph.symbols().iter().map(|(symbol, decl)| (decl.name.clone(), symbol)).collect();
        Self {
            graph,
            values: FxHashMap::default(),
            symbols,
            failed: FxHashSet::default(),
            states: FxHashSet::default(),
            results,
        }
    }

    fn is_body(&self) -> bool {
        self.results == 'a'
    }
}

impl<'t> Parser<'t> {
    /// `graph @name { ... }`
    pub(super) fn graph_document(&mut self) -> Parsed<Graph> {
        self.skip_newlines();
        let scope = self.named_graph()?;
        self.end_of_line()?;
        Ok(scope.graph)
    }

    /// The same without what ends the line, with the names of its values.
    pub(super) fn named_graph(&mut self) -> Parsed<Scope> {
        self.expect_word("graph")?;
        let name = self.optional_at().unwrap_or_default();
        self.expect('{')?;
        let mut scope = Scope::new(Graph::new(name), 'v');
        self.block(&mut scope)?;
        Ok(scope)
    }

    /// The lines of a graph up to its `}`.
    pub(super) fn block(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.end_of_line()?;
        let mut returned = false;
        let cell = std::cell::RefCell::new(scope);
        self.lines(
            |p| {
                if returned {
                    return p.fail(ParseErrorKind::Structure(
                        "nothing may follow `ret`: it is the last line of a graph".to_owned(),
                    ));
                }
                returned = *p.peek() == Token::Word("ret");
                p.line(&mut cell.borrow_mut())
            },
            |p, start| {
                let names = p.names_defined_at(start);
                cell.borrow_mut().failed.extend(names);
            },
        )?;
        if !returned {
            let brace = self.at.saturating_sub(1);
            self.at = brace;
            let missing = "a graph ends with `ret` and the values that it returns";
            let failed = self.fail(ParseErrorKind::Structure(missing.to_owned()));
            self.advance();
            return failed;
        }
        Ok(())
    }

    fn line(&mut self, scope: &mut Scope) -> Parsed<()> {
        if *self.peek_at(1) == Token::Punct(':') {
            return self.statement(scope);
        }
        match *self.peek() {
            Token::Word(word @ ("dim" | "input")) if scope.is_body() => {
                let message = format!(
                    "`{word}` can't be declared in a region: its symbols are those of the graph \
                     around it, its inputs are its parameters"
                );
                self.fail(ParseErrorKind::Structure(message))
            }
            Token::Word("dim") => self.dim_decl(scope),
            Token::Word("input") => self.input_decl(scope),
            Token::Word("weight") => self.weight_decl(scope),
            Token::Word("state") => self.state_decl(scope),
            Token::Word("ret") => self.ret(scope),
            Token::Word(_) => self.statement(scope),
            _ => self.expected("a declaration, a statement or `ret`"),
        }
    }

    fn dim_decl(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.advance();
        let span = self.span();
        let name = self.symbol_name()?;
        if scope.symbols.contains_key(&name) {
            return self.fail_at(span, ParseErrorKind::Duplicate { what: "symbol", name });
        }
        self.expect_word("in")?;
        self.expect('[')?;
        let min = self.unsigned("the smallest value")?;
        self.expect_token(&Token::DotDot)?;
        let max = self.unsigned("the largest value")?;
        self.expect(']')?;
        let role = self.optional_role()?;
        let symbol = scope.graph.add_symbol(SymbolDecl { name: name.clone(), min, max, role });
        scope.symbols.insert(name, symbol);
        Ok(())
    }

    fn input_decl(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.advance();
        let name = self.input_name(scope)?;
        self.expect(':')?;
        let ty = self.ty(scope)?;
        let (padding, role) = self.padding_and_role(ty.dtype)?;
        let value = scope.graph.add_input(name.clone(), ty, padding, role);
        scope.values.insert(format!("%{name}"), value);
        Ok(())
    }

    /// `%name` that no other input has.
    pub(super) fn input_name(&mut self, scope: &Scope) -> Parsed<String> {
        let Token::Percent(name) = self.peek() else { return self.expected("a name with `%`") };
        let name = name.clone().into_owned();
        let token = format!("%{name}");
        if scope.values.contains_key(&token) {
            return self.fail(ParseErrorKind::Duplicate { what: "input", name: token });
        }
        self.advance();
        Ok(name)
    }

    /// `pad -1 role "kv.slots"`, each or none.
    pub(super) fn padding_and_role(
        &mut self,
        dtype: DType,
    ) -> Parsed<(Option<Scalar>, Option<String>)> {
        let padding = if self.eat_word("pad") { Some(self.scalar(dtype)?) } else { None };
        Ok((padding, self.optional_role()?))
    }

    fn optional_role(&mut self) -> Parsed<Option<String>> {
        if self.eat_word("role") { self.string("a role in quotes").map(Some) } else { Ok(None) }
    }

    fn weight_decl(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.advance();
        let name = self.numbered(scope, 'w', "weight")?;
        self.expect(':')?;
        let ty = self.ty(scope)?;
        self.expect('=')?;
        let recipe = self.weight_recipe(scope, &ty)?;
        let value = scope.graph.add_weight(ty, recipe);
        scope.values.insert(name, value);
        Ok(())
    }

    fn state_decl(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.advance();
        let token = self.numbered(scope, 's', "state")?;
        self.expect(':')?;
        let ty = self.ty(scope)?;
        self.expect('=')?;
        let span = self.span();
        let name = self.string("the state's name in quotes")?;
        if !scope.states.insert(name.clone()) {
            return self.fail_at(span, ParseErrorKind::Duplicate { what: "state", name });
        }
        let role = self.optional_role()?;
        let value = scope.graph.add_state(name, ty, role);
        scope.values.insert(token, value);
        Ok(())
    }

    /// A letter and a number that no other value of the graph has.
    fn numbered(&mut self, scope: &Scope, letter: char, what: &'static str) -> Parsed<String> {
        let Token::Word(word) = *self.peek() else {
            return self.expected(format!("`{letter}` and a number"));
        };
        let digits = word.strip_prefix(letter).unwrap_or_default();
        if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
            return self.expected(format!("`{letter}` and a number"));
        }
        if scope.values.contains_key(word) {
            let name = word.to_owned();
            return self.fail(ParseErrorKind::Duplicate { what, name });
        }
        self.advance();
        Ok(word.to_owned())
    }

    /// An operand: a value that an earlier line defines.
    pub(super) fn operand(&mut self, scope: &Scope) -> Parsed<Value> {
        let name = match self.peek() {
            Token::Word(word) => (*word).to_owned(),
            Token::Percent(name) => format!("%{name}"),
            _ => return self.expected("a value"),
        };
        match scope.values.get(&name) {
            Some(&value) => {
                self.advance();
                Ok(value)
            }
            None if scope.failed.contains(&name) => Err(Failed),
            None => {
                let help = match scope.is_body() {
                    true => "a region sees its parameters and what earlier lines of it define",
                    false => "an earlier line must define it",
                };
                self.fail(ParseErrorKind::Unknown { what: "value", name, help })
            }
        }
    }

    /// `v0: f32[T], v1: i32[T] = op ...`, or an op without results.
    fn statement(&mut self, scope: &mut Scope) -> Parsed<()> {
        let mut names: Vec<String> = Vec::new();
        let mut types: Vec<TensorType> = Vec::new();
        if *self.peek_at(1) == Token::Punct(':') {
            let mut fresh = FxHashSet::default();
            loop {
                let name = self.numbered(scope, scope.results, "value")?;
                if !fresh.insert(name.clone()) {
                    let kind = ParseErrorKind::Duplicate { what: "value", name };
                    self.at -= 1;
                    return self.fail(kind);
                }
                names.push(name);
                self.expect(':')?;
                types.push(self.ty(scope)?);
                if !self.eat(',') {
                    break;
                }
            }
            self.expect('=')?;
        }
        let parsed = self.op(scope, types.first())?;
        let loc = match parsed.loc {
            Some(loc) => loc,
            None => self.loc(),
        };
        let node = scope.graph.push_node(parsed.op, parsed.operands, types, loc);
        for (name, &value) in names.into_iter().zip(&scope.graph.node(node).results) {
            scope.values.insert(name, value);
        }
        Ok(())
    }

    /// `#"scope" @"file:line"`, each or none.
    pub(super) fn loc(&mut self) -> Loc {
        let mut loc = Loc::default();
        if let Token::Hash(scope) = self.peek() {
            loc.scope = scope.clone().into_owned();
            self.advance();
        }
        loc.source = self.optional_at().unwrap_or_default();
        loc
    }

    fn ret(&mut self, scope: &mut Scope) -> Parsed<()> {
        self.advance();
        let mut outputs = Vec::new();
        if !matches!(self.peek(), Token::Newline | Token::End) {
            outputs.push(self.operand(scope)?);
            while self.eat(',') {
                outputs.push(self.operand(scope)?);
            }
        }
        scope.graph.set_outputs(outputs);
        Ok(())
    }
}
