//! Work that takes long, off the threads that others wait for.

use super::error::ApiError;

/// What `work` gives, done aside.
pub(crate) async fn aside<R, E>(
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
) -> Result<R, ApiError>
where
    R: Send + 'static,
    E: Into<ApiError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(error.to_string()))?.map_err(Into::into)
}
