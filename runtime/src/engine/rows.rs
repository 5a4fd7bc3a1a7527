//! Rows in the place of tokens: taken in, and given to the requests that name them.

use super::batching::Engine;
use super::error::EngineError;
use super::request::{GivenRows, Request, RowSource};
use crate::batch::TokenValues;
use crate::memory::{RowsError, RowsId};
use crate::words::roles;

impl Engine {
    /// Says that no request to come brings these rows; they are gone once those that do are.
    ///
    /// # Errors
    /// When they are not there.
    pub fn remove_rows(&mut self, rows: RowsId) -> Result<(), EngineError> {
        Ok(self.embeddings.remove(rows)?)
    }

    /// How many rows can still be added.
    pub fn free_rows(&self) -> u64 {
        self.embeddings.free_rows()
    }

    /// Takes rows that stand for tokens of requests to come, until they are removed.
    ///
    /// # Errors
    /// When the graph has no state of role `embeddings`, or no room in it, the rows are not of its
    /// width, or the device fails.
    pub fn add_rows(&mut self, source: RowSource<'_>) -> Result<RowsId, EngineError> {
        let (width, bytes) = (self.embeddings.width, 4 * self.embeddings.width);
        match source {
            RowSource::Values(values) => {
                let count = values.len().checked_div(width as usize).unwrap_or(0);
                let (rows, state) = self.embeddings.take(count)?;
                if count * width as usize != values.len() || count == 0 {
                    let found = format!("{} values", values.len());
                    return Err(RowsError::Shape { found, width }.into());
                }
                for run in runs(&rows, None) {
                    let to = state.offset(u64::from(rows[run.start]) * bytes);
                    let values = &values[run.start * width as usize..run.end * width as usize];
                    let values = values.iter().flat_map(|value| value.to_le_bytes());
                    self.model.device_mut().write(to, &Vec::from_iter(values))?;
                }
                Ok(self.embeddings.keep(rows))
            }
            RowSource::Output { model, output, rows: taken } => {
                let (mut rows, state) = self.embeddings.take(taken.len())?;
                let (from, count) = model.last_rows(output, width)?;
                if let Some(&row) = taken.iter().find(|&&row| u64::from(row) >= count) {
                    return Err(RowsError::NoRow { row, rows: count }.into());
                }
                // Rows that lie side by side are copied as one: the order is that of the other model,
                // and tokens find theirs by number.
                let mut order = Vec::from_iter(0..taken.len());
                order.sort_by_key(|&token| taken[token]);
                let sources = Vec::from_iter(order.iter().map(|&token| taken[token]));
                for run in runs(&rows, Some(&sources)) {
                    let to = state.offset(u64::from(rows[run.start]) * bytes);
                    let from = from.offset(u64::from(sources[run.start]) * bytes);
                    let copied = run.len() as u64 * bytes;
                    self.model.device_mut().copy_from(model.device_mut(), from, copied, to)?;
                }
                let mut of_tokens = vec![0; rows.len()];
                for (token, row) in order.into_iter().zip(rows.drain(..)) {
                    of_tokens[token] = row;
                }
                Ok(self.embeddings.keep(of_tokens))
            }
        }
    }

    /// What a request brings for its tokens, its rows among them.
    pub(super) fn values_of(&self, request: &Request) -> Result<Vec<TokenValues>, EngineError> {
        let mut values = request.values.clone();
        let tokens = request.prompt.len();
        for (at, TokenValues { name, width, values: numbers, .. }) in values.iter().enumerate() {
            let bad = |reason: &str| {
                let name = name.to_string();
                Err(EngineError::Values { name, reason: reason.to_owned() })
            };
            if &**name == roles::TOKEN_EMBEDDINGS {
                return bad("rows in the place of tokens are given as `rows`");
            }
            if values[..at].iter().any(|earlier| earlier.name == *name) {
                return bad("they are given twice");
            }
            if *width == 0 || numbers.len() % *width != 0 || numbers.len() / *width > tokens {
                return bad("there are not so many for each of the first tokens of the prompt");
            }
        }
        self.check_coordinates(request)?;
        if request.rows.is_empty() {
            return Ok(values);
        }
        if !self.roles.has(roles::TOKEN_EMBEDDINGS) {
            return Err(RowsError::NoState.into());
        }
        let mut numbers = vec![-1; tokens];
        for GivenRows { position, rows: id } in &request.rows {
            let rows = self.embeddings.rows(*id)?;
            let start = usize::try_from(*position).unwrap_or(usize::MAX);
            let places = numbers.get_mut(start..).and_then(|rest| rest.get_mut(..rows.len()));
            let places = places.filter(|places| places.iter().all(|&place| place == -1));
            let Some(places) = places else {
                return Err(EngineError::RowsPlace { rows: *id, position: *position });
            };
            places.iter_mut().zip(rows).for_each(|(place, &row)| *place = row as i32);
        }
        let name = roles::TOKEN_EMBEDDINGS.into();
        values.push(TokenValues { name, width: 1, values: numbers, rest: -1 });
        Ok(values)
    }

    /// Coordinates are places in tables as long as the longest sequence.
    fn check_coordinates(&self, request: &Request) -> Result<(), EngineError> {
        let given = request.values.iter().find(|v| &*v.name == roles::TOKEN_COORDINATES);
        let Some(TokenValues { width, values, rest, .. }) = given else { return Ok(()) };
        let bound = self.options.max_seq_len;
        let fits = |value: i64| u64::try_from(value).is_ok_and(|value| value < bound);
        let first_later = (values.len() / width) as i64 + i64::from(*rest);
        let is_good = *width == 3
            && *rest <= 0
            && values.iter().all(|&value| fits(i64::from(value)))
            && fits(first_later);
        if is_good && self.roles.has(roles::TOKEN_COORDINATES) {
            return Ok(());
        }
        let reason = match self.roles.has(roles::TOKEN_COORDINATES) {
            true => format!("three for each token, from 0 up to max_seq_len ({bound}), are"),
            false => "the model has no input of that role".to_owned(),
        };
        Err(EngineError::Values { name: roles::TOKEN_COORDINATES.to_owned(), reason })
    }

    pub(super) fn begin_rows(&mut self, request: &Request) {
        request.rows.iter().for_each(|given| self.embeddings.begin_use(given.rows));
    }
}

/// Runs of places at which `rows`, and `others` beside them, count up by one.
fn runs(rows: &[u32], others: Option<&[u32]>) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..rows.len() {
        let goes_on = |list: &[u32]| list[at] == list[at - 1].wrapping_add(1);
        match runs.last_mut() {
            Some(run) if goes_on(rows) && others.is_none_or(goes_on) => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}
