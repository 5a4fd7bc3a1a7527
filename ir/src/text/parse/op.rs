//! Ops by the op table, literals and custom ops.

use super::cursor::{Parsed, Parser};
use super::graph::Scope;
use crate::custom::{Attr, Attrs, CustomCall};
use crate::dtype::DType;
use crate::entity::Value;
use crate::graph::Loc;
use crate::literal::Literal;
use crate::op::table::{Key, KeyKind};
use crate::op::{Format, Op, OpInfo, RowTreatment, op_info};
use crate::text::error::ParseErrorKind;
use crate::text::lexer::Token;
use crate::text::syntax::{AttrValue, build};
use crate::types::TensorType;

/// An op, what it reads, and its place where that stands inside it.
pub(super) struct ParsedOp {
    pub(super) op: Op,
    pub(super) operands: Vec<Value>,
    pub(super) loc: Option<Loc>,
}

impl<'t> Parser<'t> {
    /// An op and its operands; `result` is its first result type.
    pub(super) fn op(&mut self, scope: &Scope, result: Option<&TensorType>) -> Parsed<ParsedOp> {
        let span = self.span();
        let mnemonic = self.word("an op")?;
        let Some(info) = op_info(mnemonic) else {
            return self.fail_at(span, ParseErrorKind::Op(mnemonic.to_owned()));
        };
        match info.format {
            Format::Literal => {
                let op = Op::Literal(self.literal(result)?);
                Ok(ParsedOp { op, operands: Vec::new(), loc: None })
            }
            Format::Region => self.nested(|p| p.region(scope)),
            Format::Custom => self.custom(scope),
            _ => self.table_op(scope, info),
        }
    }

    fn table_op(&mut self, scope: &Scope, info: OpInfo) -> Parsed<ParsedOp> {
        let mnemonic = info.mnemonic;
        let (operands, marks) = self.operands(scope)?;
        let span = self.span();
        let given = self.table_attributes(mnemonic, info.keys)?;
        let Some(op) = build(info.format, &given) else {
            let missing = info
                .keys
                .iter()
                .filter(|key| key.kind != KeyKind::Flag && !given.iter().any(|(k, _)| k == *key))
                .map(|key| format!("`{}`", key.name))
                .collect::<Vec<_>>()
                .join(" and ");
            let problem = format!("needs the attribute {missing}");
            let op = mnemonic.to_owned();
            return self.fail_at(span, ParseErrorKind::Attribute { op, problem });
        };
        let mutated = op.mutated_operands();
        for (i, (mark, span)) in marks.into_iter().enumerate() {
            let mutates = mutated.contains(&i);
            if mark != mutates {
                let op = mnemonic.to_owned();
                return self.fail_at(span, ParseErrorKind::Mutation { op, mutates });
            }
        }
        Ok(ParsedOp { op, operands, loc: None })
    }

    /// Operands with commas between them; for each, whether `mut` is before it, and its place.
    #[allow(clippy::type_complexity, reason = "two parallel lists that live for a few lines")]
    fn operands(
        &mut self,
        scope: &Scope,
    ) -> Parsed<(Vec<Value>, Vec<(bool, std::ops::Range<usize>)>)> {
        let (mut operands, mut marks) = (Vec::new(), Vec::new());
        if matches!(self.peek(), Token::Word(word) if !matches!(*word, "rows"))
            || matches!(self.peek(), Token::Percent(_) | Token::Bad)
        {
            loop {
                let span = self.span();
                marks.push((self.eat_word("mut"), span));
                operands.push(self.operand(scope)?);
                if !self.eat(',') {
                    break;
                }
            }
        }
        Ok((operands, marks))
    }

    fn table_attributes(&mut self, op: &str, keys: &[Key]) -> Parsed<Vec<(Key, AttrValue)>> {
        let mut given: Vec<(Key, AttrValue)> = Vec::new();
        if !self.eat('{') {
            return Ok(given);
        }
        self.list('}', |p| {
            let span = p.span();
            let name = p.word("an attribute")?;
            let Some(&key) = keys.iter().find(|key| key.name == name) else {
                let known: Vec<_> = keys.iter().map(|key| format!("`{}`", key.name)).collect();
                let problem = match known.as_slice() {
                    [] => format!("has no attributes, but `{name}` is given"),
                    _ => format!("has no attribute `{name}`, only {}", known.join(", ")),
                };
                let op = op.to_owned();
                return p.fail_at(span, ParseErrorKind::Attribute { op, problem });
            };
            if given.iter().any(|(k, _)| *k == key) {
                let name = name.to_owned();
                return p.fail_at(span, ParseErrorKind::Duplicate { what: "attribute", name });
            }
            let value = match key.kind {
                KeyKind::Flag => AttrValue::Flag,
                KeyKind::Number if key.name == "axis" => {
                    p.expect('=')?;
                    AttrValue::Number(p.index("an axis")? as u64)
                }
                KeyKind::Number => {
                    p.expect('=')?;
                    AttrValue::Number(p.unsigned("an integer")?)
                }
                KeyKind::Axes => {
                    p.expect('=')?;
                    AttrValue::Axes(p.indices()?)
                }
            };
            given.push((key, value));
            Ok(())
        })?;
        Ok(given)
    }

    fn literal(&mut self, result: Option<&TensorType>) -> Parsed<Literal> {
        let dtype = match (self.peek(), result) {
            (Token::Word(_), _) | (_, None) => self.dtype()?,
            (_, Some(result)) => result.dtype,
        };
        self.expect('[')?;
        let mut scalars = Vec::new();
        self.list(']', |p| {
            let span = p.span();
            if scalars.len() == Literal::MAX_ELEMENTS {
                return p.fail(ParseErrorKind::LiteralSize { limit: Literal::MAX_ELEMENTS });
            }
            let scalar = p.scalar(dtype)?;
            if scalar.dtype != dtype {
                let text = format!("{}:0x{:x}", scalar.dtype, scalar.bits());
                let expected = format!("an element of a {dtype} literal");
                return p.fail_at(span, ParseErrorKind::Number { text, expected });
            }
            scalars.push(scalar);
            Ok(())
        })?;
        Ok(Literal::from_scalars(dtype, scalars))
    }

    fn custom(&mut self, scope: &Scope) -> Parsed<ParsedOp> {
        let name = self.string("the custom op's name in quotes")?;
        let (operands, marks) = self.operands(scope)?;
        let mutates = (0..marks.len()).filter(|&i| marks[i].0).collect();
        let mut attrs = Attrs::new();
        if self.eat('{') {
            self.list('}', |p| {
                let span = p.span();
                let key = match p.peek() {
                    Token::Str(_) => p.string("an attribute")?,
                    _ => p.word("an attribute")?.to_owned(),
                };
                let value = if p.eat('=') { p.custom_attr()? } else { Attr::Bool(true) };
                if attrs.insert(key.clone(), value).is_some() {
                    let kind = ParseErrorKind::Duplicate { what: "attribute", name: key };
                    return p.fail_at(span, kind);
                }
                Ok(())
            })?;
        }
        self.expect_word("rows")?;
        let known = RowTreatment::ALL.map(RowTreatment::name).join(", ");
        let rows: RowTreatment = self.named(&format!("a row treatment ({known})"))?;
        let splits = self.eat_word("split");
        let absorbs = if self.eat_word("absorbs") { self.indices()? } else { Vec::new() };
        let scatters = if self.eat_word("scatters") { self.scatters()? } else { Vec::new() };
        let call = CustomCall { name, attrs, mutates, rows, splits, absorbs, scatters };
        Ok(ParsedOp { op: Op::Custom(Box::new(call)), operands, loc: None })
    }

    fn scatters(&mut self) -> Parsed<Vec<(usize, usize)>> {
        self.items(['[', ']'], |p| {
            let state = p.index("the position of a state")?;
            p.expect_word("at")?;
            Ok((state, p.index("the position of slots")?))
        })
    }

    fn custom_attr(&mut self) -> Parsed<Attr> {
        let span = self.span();
        match self.peek().clone() {
            Token::Str(_) => Ok(Attr::Str(self.string("a string")?)),
            Token::Word(word @ ("true" | "false")) => {
                self.advance();
                Ok(Attr::Bool(word == "true"))
            }
            Token::Word("f64") => {
                self.advance();
                self.expect(':')?;
                Ok(Attr::Float(f64::from_bits(self.bits("the bits of an f64")?)))
            }
            Token::Word(word) if word.parse::<DType>().is_ok() => Ok(Attr::DType(self.dtype()?)),
            _ => {
                let what = "a number, a string, `true`, `false` or a dtype";
                let text = self.decimal(what)?;
                let attr = if text.contains(['.', 'e']) {
                    text.parse().ok().filter(|v: &f64| v.is_finite()).map(Attr::Float)
                } else {
                    text.parse().ok().map(Attr::Int)
                };
                self.number(attr, span, text, "a number of 64 bits")
            }
        }
    }
}
