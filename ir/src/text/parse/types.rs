//! Types, dimensions, numbers, scalars.

use super::cursor::{Parsed, Parser};
use super::graph::Scope;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::entity::Symbol;
use crate::literal::Scalar;
use crate::text::error::ParseErrorKind;
use crate::text::lexer::Token;
use crate::text::scalar;
use crate::types::{Shape, TensorType};
use std::collections::BTreeMap;

/// What a term and a sum of terms have to be.
const DIMENSION: &str = "a dimension of 64 bits";

impl<'t> Parser<'t> {
    pub(super) fn dtype(&mut self) -> Parsed<DType> {
        self.named("a dtype (f32, f16, bf16, i32, i64, u8, bool)")
    }

    /// `bf16[T,64]`
    pub(super) fn ty(&mut self, scope: &Scope) -> Parsed<TensorType> {
        let dtype = self.dtype()?;
        let shape = Shape::from_vec(self.items(['[', ']'], |p| p.dim(scope))?);
        Ok(TensorType { dtype, shape })
    }

    /// `2*T+1`
    fn dim(&mut self, scope: &Scope) -> Parsed<Dim> {
        let start = self.span().start;
        let mut constant = 0i64;
        let mut terms: BTreeMap<Symbol, i64> = BTreeMap::new();
        let mut negative = self.eat('-');
        loop {
            let (coefficient, symbol) = self.term(scope, negative)?;
            let sum = match symbol {
                Some(symbol) => terms.entry(symbol).or_insert(0),
                None => &mut constant,
            };
            let span = start..self.span().start;
            *sum = self.number(sum.checked_add(coefficient), span, "this sum", DIMENSION)?;
            negative = match self.peek() {
                Token::Punct('+') => false,
                Token::Punct('-') => true,
                _ => return Ok(Dim::affine(constant, terms)),
            };
            self.advance();
        }
    }

    fn term(&mut self, scope: &Scope, negative: bool) -> Parsed<(i64, Option<Symbol>)> {
        let sign = if negative { -1 } else { 1 };
        let Token::Int(digits) = *self.peek() else {
            return Ok((sign, Some(self.symbol(scope)?)));
        };
        let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
        let coefficient = self.number(signed.parse().ok(), self.span(), signed, DIMENSION)?;
        self.advance();
        let symbol = if self.eat('*') { Some(self.symbol(scope)?) } else { None };
        Ok((coefficient, symbol))
    }

    /// A symbol's name: a word or a string.
    pub(super) fn symbol_name(&mut self) -> Parsed<String> {
        self.take("a dimension: a number or a symbol", |token| match token {
            Token::Word(word) => Some((*word).to_owned()),
            Token::Str(name) => Some(name.clone().into_owned()),
            _ => None,
        })
    }

    pub(super) fn symbol(&mut self, scope: &Scope) -> Parsed<Symbol> {
        let span = self.span();
        let name = self.symbol_name()?;
        match scope.symbols.get(&name) {
            Some(&symbol) => Ok(symbol),
            None if scope.failed.contains(&name) => Err(super::cursor::Failed),
            None => {
                let help = "declare it before its first use: `dim T in [1..8192]`";
                self.fail_at(span, ParseErrorKind::Unknown { what: "symbol", name, help })
            }
        }
    }

    /// An integer in decimal or hexadecimal.
    pub(super) fn unsigned(&mut self, what: &str) -> Parsed<u64> {
        let (text, value) = match *self.peek() {
            Token::Int(digits) => (digits.to_owned(), digits.parse().ok()),
            Token::Hex(digits) => (format!("0x{digits}"), u64::from_str_radix(digits, 16).ok()),
            _ => return self.expected(what),
        };
        let value = self.number(value, self.span(), text, "an integer of 64 bits")?;
        self.advance();
        Ok(value)
    }

    pub(super) fn index(&mut self, what: &str) -> Parsed<usize> {
        let span = self.span();
        let value = self.unsigned(what)?;
        self.number(usize::try_from(value).ok(), span, value, "an index of this machine")
    }

    /// `[0, 1]`
    pub(super) fn indices(&mut self) -> Parsed<Vec<usize>> {
        self.items(['[', ']'], |p| p.index("an axis"))
    }

    /// An optional sign and a number, as text.
    pub(super) fn decimal(&mut self, what: &str) -> Parsed<String> {
        let sign = if self.eat('-') { "-" } else { "" };
        self.take(what, |token| match token {
            Token::Int(digits) | Token::Float(digits) => Some(format!("{sign}{digits}")),
            _ => None,
        })
    }

    /// A scalar: a number of `dtype`, `true` or `false`, or the bits of any dtype.
    pub(super) fn scalar(&mut self, dtype: DType) -> Parsed<Scalar> {
        let span = self.span();
        if let Token::Word(word) = *self.peek() {
            if dtype == DType::Bool && (word == "true" || word == "false") {
                self.advance();
                return Ok(Scalar::from_bits(dtype, u64::from(word == "true")));
            }
            let dtype = self.dtype()?;
            self.expect(':')?;
            let bits = self.bits(&format!("the bits of a {dtype}"))?;
            let (text, size) = (format_args!("0x{bits:x}"), dtype.bits());
            let expected = format_args!("the bits of a {dtype}: they are {size}");
            return self.number(scalar::from_bits(dtype, bits), span, text, expected);
        }
        let what = match dtype {
            DType::Bool => "`true` or `false`",
            _ => "a number, or bits such as `f32:0x7fc00000`",
        };
        let text = self.decimal(what)?;
        let scalar = scalar::parse_decimal(dtype, &text);
        self.number(scalar, span, text, format_args!("a value of {dtype}"))
    }

    /// A hexadecimal integer.
    pub(super) fn bits(&mut self, what: &str) -> Parsed<u64> {
        match self.peek() {
            Token::Hex(_) => self.unsigned(what),
            _ => self.expected(format!("{what}, in hexadecimal")),
        }
    }
}
