//! Tokens with byte spans. Line ends are tokens; comments and other white space are skipped.

use super::error::{MAX_ERRORS, ParseErrorKind, Spanned};
use super::names::{continues_name, continues_word, starts_word};
use std::borrow::Cow;
use std::ops::Range;

/// What the parser sees of the text, comments and blanks left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token<'t> {
    /// A keyword, symbol, op, dtype or numbered value.
    Word(&'t str),
    /// An integer without sign.
    Int(&'t str),
    /// A number with a fraction or an exponent, without sign.
    Float(&'t str),
    /// The digits of a hexadecimal integer.
    Hex(&'t str),
    /// A string, escapes resolved.
    Str(Cow<'t, str>),
    /// A name after `%`.
    Percent(Cow<'t, str>),
    /// A name or a source line after `@`.
    At(Cow<'t, str>),
    /// A scope after `#`.
    Hash(Cow<'t, str>),
    /// `..`
    DotDot,
    /// One of `{}()[]:,=+-*`.
    Punct(char),
    /// The end of a line.
    Newline,
    /// What could not be read; the lexer has reported it.
    Bad,
    /// The end of the text.
    End,
}

impl Token<'_> {
    /// How an error names it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Word(s) | Self::Int(s) | Self::Float(s) => format!("`{s}`"),
            Self::Hex(s) => format!("`0x{s}`"),
            Self::Str(_) => "a string".to_owned(),
            Self::Percent(s) => format!("`%{s}`"),
            Self::At(s) => format!("`@{s}`"),
            Self::Hash(_) => "a scope".to_owned(),
            Self::DotDot => "`..`".to_owned(),
            Self::Punct(c) => format!("`{c}`"),
            Self::Newline => "the end of the line".to_owned(),
            Self::Bad => "something unreadable".to_owned(),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// Reads `text` to its end. The last token is [`Token::End`].
pub(super) fn lex(text: &str) -> (Vec<(Token<'_>, Range<usize>)>, Vec<Spanned>) {
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new(), errors: Vec::new() };
    while lexer.at < text.len() && lexer.errors.len() < MAX_ERRORS {
        lexer.token();
    }
    let end = text.len();
    lexer.tokens.push((Token::End, end..end));
    (lexer.tokens, lexer.errors)
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    tokens: Vec<(Token<'t>, Range<usize>)>,
    errors: Vec<Spanned>,
}

impl<'t> Lexer<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn second(&self) -> Option<char> {
        self.text[self.at..].chars().nth(1)
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let len = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn token(&mut self) {
        let start = self.at;
        let Some(c) = self.peek() else { return };
        let token = match c {
            '\n' => {
                self.at += 1;
                Token::Newline
            }
            ';' => {
                self.take_while(|c| c != '\n');
                return;
            }
            c if c.is_whitespace() => {
                self.take_while(|c| c.is_whitespace() && c != '\n');
                return;
            }
            c if starts_word(c) => Token::Word(self.take_while(continues_word)),
            c if c.is_ascii_digit() => self.number(),
            '"' => self.string().map_or(Token::Bad, Token::Str),
            '%' => self.name().map_or(Token::Bad, Token::Percent),
            '@' => self.name().map_or(Token::Bad, Token::At),
            '#' => {
                self.at += 1;
                match self.peek() {
                    Some('"') => self.string().map_or(Token::Bad, Token::Hash),
                    _ => self.bad(start, ParseErrorKind::String("a scope is `#` and a string")),
                }
            }
            '.' if self.second() == Some('.') => {
                self.at += 2;
                Token::DotDot
            }
            '{' | '}' | '(' | ')' | '[' | ']' | ':' | ',' | '=' | '+' | '-' | '*' => {
                self.at += 1;
                Token::Punct(c)
            }
            c => {
                self.at += c.len_utf8();
                self.bad(start, ParseErrorKind::Character(c))
            }
        };
        self.tokens.push((token, start..self.at));
    }

    fn bad(&mut self, start: usize, kind: ParseErrorKind) -> Token<'t> {
        self.errors.push(Spanned { span: start..self.at, kind });
        Token::Bad
    }

    fn number(&mut self) -> Token<'t> {
        let start = self.at;
        if self.text[start..].starts_with("0x") {
            self.at += 2;
            return Token::Hex(self.take_while(|c| c.is_ascii_hexdigit()));
        }
        let digit = |c: char| c.is_ascii_digit();
        self.take_while(digit);
        let mut float = false;
        if self.peek() == Some('.') && self.second().is_some_and(digit) {
            self.at += 1;
            self.take_while(digit);
            float = true;
        }
        if self.peek() == Some('e') {
            let after = &self.text[self.at + 1..];
            let unsigned = after.strip_prefix(['+', '-']).unwrap_or(after);
            if unsigned.starts_with(digit) {
                self.at += 1 + after.len() - unsigned.len();
                self.take_while(digit);
                float = true;
            }
        }
        let text = &self.text[start..self.at];
        if float { Token::Float(text) } else { Token::Int(text) }
    }

    /// A bare or quoted name after a one-character sign.
    fn name(&mut self) -> Option<Cow<'t, str>> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some('"') => self.string(),
            Some(c) if continues_name(c) => Some(Cow::Borrowed(self.take_while(continues_name))),
            _ => {
                self.bad(start, ParseErrorKind::String("a name must follow, bare or in quotes"));
                None
            }
        }
    }

    fn string(&mut self) -> Option<Cow<'t, str>> {
        let start = self.at;
        self.at += 1;
        let body = self.at;
        self.take_while(|c| !matches!(c, '"' | '\\' | '\n'));
        if self.peek() == Some('"') {
            self.at += 1;
            return Some(Cow::Borrowed(&self.text[body..self.at - 1]));
        }
        let mut value = self.text[body..self.at].to_owned();
        let mut fault = None;
        loop {
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    break;
                }
                Some('\\') => match self.escape() {
                    Some(c) => value.push(c),
                    None => {
                        fault = fault.or(Some(
                            "no such escape; there are \\\" \\\\ \\n \\r \\t and \\u{..}",
                        ));
                    }
                },
                None | Some('\n') => {
                    fault = Some("the string does not end on its line");
                    break;
                }
                Some(_) => value.push_str(self.take_while(|c| !matches!(c, '"' | '\\' | '\n'))),
            }
        }
        match fault {
            None => Some(Cow::Owned(value)),
            Some(message) => {
                self.bad(start, ParseErrorKind::String(message));
                None
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        self.at += 1;
        let c = self.peek().filter(|&c| c != '\n')?;
        self.at += c.len_utf8();
        match c {
            '"' | '\\' => Some(c),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' if self.peek() == Some('{') => {
                self.at += 1;
                let digits = self.take_while(|c| c.is_ascii_hexdigit());
                if self.peek() != Some('}') {
                    return None;
                }
                self.at += 1;
                u32::from_str_radix(digits, 16).ok().and_then(char::from_u32)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let (tokens, errors) = lex(text);
        assert_eq!(errors, []);
        tokens.into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn numbers_stop_at_ranges() {
        let expected = [Token::Int("1"), Token::DotDot, Token::Int("8192"), Token::End];
        assert_eq!(tokens("1..8192"), expected);
        assert_eq!(tokens("1e-6"), [Token::Float("1e-6"), Token::End]);
        assert_eq!(tokens("2.5"), [Token::Float("2.5"), Token::End]);
        assert_eq!(tokens("2e"), [Token::Int("2"), Token::Word("e"), Token::End]);
    }

    #[test]
    fn strings_resolve_escapes() {
        let expected = [Token::Str("a\"\\\n\u{1}b".into()), Token::End];
        assert_eq!(tokens(r#""a\"\\\n\u{1}b""#), expected);
        assert_eq!(tokens("%\"a b\""), [Token::Percent("a b".into()), Token::End]);
    }

    #[test]
    fn faults_have_places() {
        let (_, errors) = lex("a \"b\n? \"\\q\"");
        let spans: Vec<_> = errors.iter().map(|e| e.span.clone()).collect();
        assert_eq!(spans, [2..4, 5..6, 7..11]);
    }
}
