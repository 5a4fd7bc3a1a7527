//! Requests to an object store, one at a time for each caller.

use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, parse_url_opts};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use super::failed::Failed;
use crate::options::{RemoteOptions, without_secrets};

const VENDORS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

#[derive(Debug)]
pub(super) struct Client {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
    timeout: Duration,
    /// Taken by `drop`, which ends it without waiting for its requests.
    runtime: Option<Runtime>,
}

impl Client {
    pub(super) fn open(options: &RemoteOptions) -> Result<Self, String> {
        let url = Url::parse(&options.url).map_err(|error| {
            let shown = without_secrets(&options.url);
            format!("{shown:?} is no URL ({error}); write it as s3://bucket/path")
        })?;
        let shown = without_secrets(&options.url);
        // Names without a vendor, such as REGION or TIMEOUT, may be meant for something else.
        let is_meant = |name: &str| VENDORS.iter().any(|vendor| name.starts_with(vendor));
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| is_meant(name))?;
            Some((name, value.into_string().ok()?))
        });
        let is_plain = url.scheme() == "http";
        let plain = is_plain.then(|| ("allow_http".to_owned(), "true".to_owned()));
        let (store, prefix) = parse_url_opts(&url, environment.chain(plain))
            .map_err(|error| format!("{shown}: {}", failed(error)))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("remote-cache")
            .enable_all()
            .build()
            .map_err(|error| format!("no thread for requests: {error}"))?;
        let timeout = options.timeout;
        Ok(Self { store: store.into(), prefix, shown, timeout, runtime: Some(runtime) })
    }

    pub(super) fn shown(&self) -> String {
        self.shown.clone()
    }

    pub(super) fn get(&self, place: [&str; 3], cap: u64) -> Result<Option<Vec<u8>>, Failed> {
        let (store, path, timeout) = (Arc::clone(&self.store), self.path(place), self.timeout);
        self.wait(async move {
            let found = match within(timeout, store.get(&path)).await? {
                Err(Error::NotFound { .. }) => return Ok(None),
                found => found.map_err(|error| Failed::Level(failed(error)))?,
            };
            let bytes = found.meta.size;
            if bytes > cap {
                let reason = format!("its {bytes} bytes are more than an entry can have");
                return Err(Failed::Object(reason));
            }
            let read = within(time_for(timeout, bytes), found.bytes()).await?;
            Ok(Some(read.map_err(|error| Failed::Object(failed(error)))?.to_vec()))
        })
    }

    pub(super) fn put(&self, place: [&str; 3], bytes: Vec<u8>) -> Result<(), Failed> {
        let (store, path) = (Arc::clone(&self.store), self.path(place));
        let timeout = time_for(self.timeout, bytes.len() as u64);
        self.wait(async move {
            let written = within(timeout, store.put(&path, PutPayload::from(bytes))).await?;
            written.map(|_| ()).map_err(|error| Failed::Level(failed(error)))
        })
    }

    fn path(&self, place: [&str; 3]) -> Path {
        place.into_iter().fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Runs a request on the thread for requests: the caller may itself be one of a runtime.
    fn wait<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, Failed>> + Send + 'static,
    ) -> Result<T, Failed> {
        let ended = || Failed::Level("the thread for requests has ended".to_owned());
        let (send, receive) = mpsc::sync_channel(1);
        let runtime = self.runtime.as_ref().ok_or_else(ended)?;
        runtime.spawn(async move {
            // Who no longer waits needs no answer.
            send.send(request.await).ok();
        });
        receive.recv().map_err(|_| ended())?
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn within<T>(timeout: Duration, answer: impl Future<Output = T>) -> Result<T, Failed> {
    let answer = tokio::time::timeout(timeout, answer).await;
    answer.map_err(|_| Failed::Level(format!("no answer within {timeout:?}")))
}

fn time_for(timeout: Duration, bytes: u64) -> Duration {
    timeout + Duration::from_secs(bytes >> 20)
}

/// What failed. The store's own messages show whole addresses.
fn failed(error: Error) -> String {
    let message = error.to_string();
    let words = message.split(' ').map(|word| match word.contains("://") {
        true => without_secrets(word),
        false => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
