//! Fields that nobody knows, where they are passed over: a header of the answer names them.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use std::sync::{Arc, Mutex, PoisonError};

/// Characters of names that are told.
const MOST: usize = 1024;

/// The names of what was passed over in a request. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed(Arc<Mutex<Vec<String>>>);

impl Passed {
    pub(crate) fn add(&self, names: impl Iterator<Item = String>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(names);
    }

    fn header(&self) -> Option<HeaderValue> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names: String = all.join(", ").chars().take(MOST).collect();
        let names = names.replace(|c: char| !c.is_ascii_graphic() && c != ' ', "?");
        (!all.is_empty()).then(|| HeaderValue::from_str(&names).ok()).flatten()
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
