//! The place in the tokens, the errors so far, and recovery.

use crate::text::error::{MAX_ERRORS, ParseErrorKind, Spanned};
use crate::text::lexer::{Token, lex};
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

/// Levels of regions, recipes and graphs inside each other.
const MAX_DEPTH: usize = 32;
/// Bytes that regions may repeat in any text, and for each byte of it.
const COPIES: (usize, usize) = (16 << 20, 64);

/// What a failed rule returns; the error has been recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failed;

/// The result of a rule.
pub(super) type Parsed<T> = Result<T, Failed>;

/// The state of a parse.
pub(super) struct Parser<'t> {
    tokens: Vec<(Token<'t>, Range<usize>)>,
    pub(super) at: usize,
    pub(super) errors: Vec<Spanned>,
    pub(super) gave_up: bool,
    depth: usize,
    copies: usize,
}

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let (tokens, errors) = lex(text);
        let gave_up = errors.len() >= MAX_ERRORS;
        let copies = COPIES.0.saturating_add(text.len().saturating_mul(COPIES.1));
        Self { tokens, at: 0, errors, gave_up, depth: 0, copies }
    }

    pub(super) fn peek(&self) -> &Token<'t> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> &Token<'t> {
        self.tokens.get(self.at + ahead).map_or(&Token::End, |(token, _)| token)
    }

    pub(super) fn span(&self) -> Range<usize> {
        let last = self.tokens.len() - 1;
        self.tokens[self.at.min(last)].1.clone()
    }

    pub(super) fn advance(&mut self) -> Token<'t> {
        let token = self.peek().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    /// Records an error at the current token.
    pub(super) fn fail<T>(&mut self, kind: ParseErrorKind) -> Parsed<T> {
        self.fail_at(self.span(), kind)
    }

    /// Records an error at `span`.
    pub(super) fn fail_at<T>(&mut self, span: Range<usize>, kind: ParseErrorKind) -> Parsed<T> {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(Spanned { span, kind });
        } else {
            self.gave_up = true;
        }
        Err(Failed)
    }

    /// Records that the current token is not what the grammar has here. The lexer has reported
    /// an unreadable one already.
    pub(super) fn expected<T>(&mut self, what: impl Into<String>) -> Parsed<T> {
        if *self.peek() == Token::Bad {
            return Err(Failed);
        }
        let found = self.peek().describe();
        let kind = ParseErrorKind::Expected { expected: what.into(), found };
        let span = match self.peek() {
            Token::End => self.end_of_content(),
            _ => self.span(),
        };
        self.fail_at(span, kind)
    }

    /// The place after the last token that is no line end.
    fn end_of_content(&self) -> Range<usize> {
        let content = |token: &Token<'_>| !matches!(token, Token::Newline | Token::End);
        let last = self.tokens.iter().rev().find(|(token, _)| content(token));
        last.map_or(0..0, |(_, span)| span.end..span.end)
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        self.eat_token(&Token::Punct(c))
    }

    pub(super) fn expect(&mut self, c: char) -> Parsed<()> {
        self.expect_token(&Token::Punct(c))
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        self.eat_token(&Token::Word(word))
    }

    fn eat_token(&mut self, token: &Token<'_>) -> bool {
        let found = self.peek() == token;
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Parsed<()> {
        self.expect_token(&Token::Word(word))
    }

    pub(super) fn expect_token(&mut self, token: &Token<'_>) -> Parsed<()> {
        if self.eat_token(token) { Ok(()) } else { self.expected(token.describe()) }
    }

    /// What the current token says, if it is one of those that `of` knows.
    pub(super) fn take<T>(
        &mut self,
        what: &str,
        of: impl FnOnce(&Token<'t>) -> Option<T>,
    ) -> Parsed<T> {
        match of(self.peek()) {
            Some(said) => {
                self.advance();
                Ok(said)
            }
            None => self.expected(what),
        }
    }

    pub(super) fn word(&mut self, what: &str) -> Parsed<&'t str> {
        self.take(what, |token| match token {
            Token::Word(word) => Some(*word),
            _ => None,
        })
    }

    /// A word that `T` knows; where it is another, the message asks for `what`.
    pub(super) fn named<T: FromStr>(&mut self, what: &str) -> Parsed<T> {
        self.take(what, |token| match token {
            Token::Word(word) => word.parse().ok(),
            _ => None,
        })
    }

    pub(super) fn string(&mut self, what: &str) -> Parsed<String> {
        self.take(what, |token| match token {
            Token::Str(value) => Some(value.clone().into_owned()),
            _ => None,
        })
    }

    /// The value of the number that `text` at `span` is; without one it is not what is expected.
    pub(super) fn number<T>(
        &mut self,
        value: Option<T>,
        span: Range<usize>,
        text: impl Display,
        expected: impl Display,
    ) -> Parsed<T> {
        let Some(value) = value else {
            let (text, expected) = (text.to_string(), expected.to_string());
            return self.fail_at(span, ParseErrorKind::Number { text, expected });
        };
        Ok(value)
    }

    /// `@name`, or nothing.
    pub(super) fn optional_at(&mut self) -> Option<String> {
        let Token::At(name) = self.peek() else { return None };
        let name = name.clone().into_owned();
        self.advance();
        Some(name)
    }

    pub(super) fn skip_newlines(&mut self) {
        while *self.peek() == Token::Newline {
            self.advance();
        }
    }

    /// The end of a statement.
    pub(super) fn end_of_line(&mut self) -> Parsed<()> {
        match self.peek() {
            Token::Newline => {
                self.advance();
                Ok(())
            }
            Token::End => Ok(()),
            _ => self.expected("the end of the line"),
        }
    }

    /// Items with commas between them up to `close`, over several lines if need be.
    pub(super) fn list(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Parsed<()>,
    ) -> Parsed<()> {
        self.skip_newlines();
        if self.eat(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            let after_item = self.at;
            self.skip_newlines();
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(',') {
                // The next line is most likely a statement: this one lacks its end.
                self.at = after_item;
                return self.expected(format!("`,` or `{close}`"));
            }
            self.skip_newlines();
        }
    }

    /// The items of a list between `open` and `close`.
    pub(super) fn items<T>(
        &mut self,
        [open, close]: [char; 2],
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        self.list(close, |p| {
            items.push(item(p)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// Runs `rule` one level deeper, if there may be one.
    pub(super) fn nested<T>(&mut self, rule: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_DEPTH {
            return self.fail(ParseErrorKind::Depth { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let result = rule(self);
        self.depth -= 1;
        result
    }

    /// Accounts for `bytes` that repeat something written elsewhere.
    pub(super) fn charge(&mut self, bytes: usize) -> Parsed<()> {
        match self.copies.checked_sub(bytes) {
            Some(left) => {
                self.copies = left;
                Ok(())
            }
            None => {
                self.gave_up = true;
                self.fail(ParseErrorKind::Size)
            }
        }
    }

    /// The lines of a block up to its `}`. A line that fails is skipped, with the block that it
    /// opens if it opens one.
    pub(super) fn lines(
        &mut self,
        mut line: impl FnMut(&mut Self) -> Parsed<()>,
        mut skipped: impl FnMut(&mut Self, usize),
    ) -> Parsed<()> {
        loop {
            self.skip_newlines();
            if self.eat('}') {
                return Ok(());
            }
            if *self.peek() == Token::End {
                return self.expected("`}`");
            }
            let start = self.at;
            if line(self).and_then(|()| self.end_of_line()).is_err() {
                if self.gave_up || self.errors.len() >= MAX_ERRORS {
                    self.gave_up = true;
                    return Err(Failed);
                }
                skipped(self, start);
                self.recover(start);
            }
        }
    }

    /// The names that the line at token `start` would have defined: those before a colon, and
    /// the symbol of a `dim`.
    pub(super) fn names_defined_at(&self, start: usize) -> Vec<String> {
        let is_dim = self.tokens[start].0 == Token::Word("dim");
        let line = self.tokens[start..].windows(2).enumerate();
        line.take_while(|(_, pair)| !matches!(pair[0].0, Token::Newline | Token::Punct('=')))
            .filter(|&(i, pair)| pair[1].0 == Token::Punct(':') || (is_dim && i == 1))
            .filter_map(|(_, pair)| match &pair[0].0 {
                Token::Word(word) => Some((*word).to_owned()),
                Token::Str(name) => Some(name.clone().into_owned()),
                Token::Percent(name) => Some(format!("%{name}")),
                _ => None,
            })
            .collect()
    }

    fn opens_block(&self, index: usize) -> bool {
        let mut after = self.tokens[index + 1..].iter().map(|(token, _)| token);
        self.tokens[index].0 == Token::Punct('{')
            && after.find(|t| !matches!(t, Token::Hash(_) | Token::At(_))) == Some(&Token::Newline)
    }

    /// Moves past the line that began at token `start` and past the block that it opens.
    fn recover(&mut self, start: usize) {
        let mut depth = 0usize;
        for index in start..self.tokens.len() {
            let first = index == 0 || self.tokens[index - 1].0 == Token::Newline;
            match self.tokens[index].0 {
                Token::Punct('{') if self.opens_block(index) => depth += 1,
                Token::Punct('}') if first && depth == 0 && index >= self.at => {
                    self.at = index;
                    return;
                }
                Token::Punct('}') if first => depth = depth.saturating_sub(1),
                Token::Newline if depth == 0 && index >= self.at => {
                    self.at = index + 1;
                    return;
                }
                _ => {}
            }
        }
        // The block has no end: skip the line alone.
        let rest = self.tokens[self.at..].iter().position(|(t, _)| *t == Token::Newline);
        self.at = rest.map_or(self.tokens.len() - 1, |n| self.at + n + 1);
    }
}
