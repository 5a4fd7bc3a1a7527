//! Fields that nobody knows, where they are passed over: a header of the answer names them.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use std::sync::{Arc, Mutex, PoisonError};

/// Characters of names that are told.
const MOST: usize = 1024;

/// The names of what was passed over in a request, as far as they are told. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed(Arc<Mutex<String>>);

impl Passed {
    /// Adds a name, which is what these are together.
    pub(crate) fn add(&self, name: &[&str]) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let between = if told.is_empty() { "" } else { ", " };
        let characters = [between].into_iter().chain(name.iter().copied()).flat_map(str::chars);
        // What a header can't have is told by a sign, so that each character is a byte.
        let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
        let left = MOST - told.len();
        told.extend(characters.map(shown).take(left));
    }

    fn header(&self) -> Option<HeaderValue> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!told.is_empty()).then(|| HeaderValue::from_str(&told).ok()).flatten()
    }
}

/// Lets a request have fields that nobody knows, and names them in `x-ignored-fields`.
pub(crate) async fn name(mut request: Request, next: Next) -> Response {
    let passed = Passed::default();
    request.extensions_mut().insert(passed.clone());
    let mut response = next.run(request).await;
    if let Some(names) = passed.header() {
        response.headers_mut().insert("x-ignored-fields", names);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_names_are_kept_than_are_told() {
        let passed = Passed::default();
        assert_eq!(passed.header(), None);
        passed.add(&["a\u{e4}\n"]);
        passed.add(&["stream_options", ".", "pace"]);
        assert_eq!(passed.header().unwrap(), "a??, stream_options.pace");
        (0..100_000).for_each(|_| passed.add(&[&"x".repeat(100)]));
        assert_eq!(passed.0.lock().unwrap().len(), MOST);
        assert_eq!(passed.header().unwrap().len(), MOST);
    }
}
