//! Recipes of weights.

use super::cursor::{Parsed, Parser};
use super::graph::Scope;
use crate::text::error::ParseErrorKind;
use crate::text::lexer::Token;
use crate::types::TensorType;
use crate::weight::Recipe;

impl<'t> Parser<'t> {
    /// The recipe of a weight of type `declared`, which a plain checkpoint tensor need not repeat.
    pub(super) fn weight_recipe(&mut self, scope: &Scope, declared: &TensorType) -> Parsed<Recipe> {
        if matches!(self.peek(), Token::Str(_)) && *self.peek_at(1) != Token::Punct(':') {
            let name = self.string("a checkpoint name")?;
            return Ok(Recipe::Checkpoint { name, ty: declared.clone() });
        }
        self.recipe(scope)
    }

    fn recipe(&mut self, scope: &Scope) -> Parsed<Recipe> {
        self.nested(|p| match *p.peek() {
            Token::Str(_) => {
                let name = p.string("a checkpoint name")?;
                p.expect(':')?;
                Ok(Recipe::Checkpoint { name, ty: p.ty(scope)? })
            }
            Token::Word("graph") => Ok(Recipe::Graph(Box::new(p.named_graph()?.graph))),
            Token::Word("concat") => {
                p.advance();
                let axis = p.attributes(|p| p.keyed("axis", |p| p.index("an integer")))?;
                Ok(Recipe::Concat { axis, parts: p.items(['(', ')'], |p| p.recipe(scope))? })
            }
            Token::Word("slice") => {
                p.advance();
                let (axis, start, len) = p.attributes(|p| {
                    let axis = p.keyed("axis", |p| p.index("an integer"))?;
                    p.expect(',')?;
                    let start = p.keyed("start", |p| p.unsigned("an integer"))?;
                    p.expect(',')?;
                    Ok((axis, start, p.keyed("len", |p| p.unsigned("an integer"))?))
                })?;
                Ok(Recipe::Slice { axis, start, len, of: p.only_part(scope)? })
            }
            Token::Word("transpose") => {
                p.advance();
                let perm = p.attributes(|p| p.keyed("perm", Self::indices))?;
                Ok(Recipe::Transpose { perm, of: p.only_part(scope)? })
            }
            Token::Word("cast") => {
                p.advance();
                let to = p.attributes(|p| p.keyed("to", Self::dtype))?;
                Ok(Recipe::Cast { to, of: p.only_part(scope)? })
            }
            Token::Word("reshape") => {
                p.advance();
                let shape = p.shape()?;
                Ok(Recipe::Reshape { shape, of: p.only_part(scope)? })
            }
            Token::Word("broadcast") => {
                p.advance();
                let shape = p.shape()?;
                Ok(Recipe::Broadcast { shape, of: p.only_part(scope)? })
            }
            Token::Word("unpack") => {
                p.advance();
                let span = p.span();
                let (axis, order, less, len) = p.attributes(|p| {
                    let axis = p.keyed("axis", |p| p.index("an integer"))?;
                    p.expect(',')?;
                    let order = p.keyed("order", Self::indices)?;
                    p.expect(',')?;
                    let less = p.keyed("less", |p| p.unsigned("an integer"))?;
                    p.expect(',')?;
                    Ok((axis, order, less, p.keyed("len", |p| p.unsigned("an integer"))?))
                })?;
                let order: Option<Vec<u8>> = order.iter().map(|&at| at.try_into().ok()).collect();
                let order = order.and_then(|order| <[u8; 8]>::try_from(order).ok());
                let (Some(order), Ok(less)) = (order, u8::try_from(less)) else {
                    let problem = "`unpack` takes an order of eight places, and bytes".to_owned();
                    return p.fail_at(span, ParseErrorKind::Structure(problem));
                };
                Ok(Recipe::Unpack { axis, order, less, len, of: p.only_part(scope)? })
            }
            Token::Word(word) => {
                let known =
                    "a recipe is a string, concat, slice, transpose, cast, reshape, broadcast, unpack or graph";
                p.fail(ParseErrorKind::Structure(format!("`{word}` is no recipe: {known}")))
            }
            _ => p.expected("a recipe"),
        })
    }

    fn shape(&mut self) -> Parsed<Vec<u64>> {
        let shape = self.attributes(|p| p.keyed("shape", Self::indices))?;
        Ok(shape.into_iter().map(|extent| extent as u64).collect())
    }

    fn attributes<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.expect('{')?;
        let value = inner(self)?;
        self.expect('}')?;
        Ok(value)
    }

    fn keyed<T>(&mut self, key: &str, value: fn(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.expect_word(key)?;
        self.expect('=')?;
        value(self)
    }

    fn only_part(&mut self, scope: &Scope) -> Parsed<Box<Recipe>> {
        self.expect('(')?;
        self.skip_newlines();
        let part = self.recipe(scope)?;
        self.skip_newlines();
        self.expect(')')?;
        Ok(Box::new(part))
    }
}
