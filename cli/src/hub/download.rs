//! Files from the hub into its cache: each whole, checked, and only then under its name.

use super::cached::{HubCache, hub_home, variable};
use super::digest::Digest;
use super::listing::{Listing, RemoteFile};
use super::name::RepoName;
use crate::http_client::client;
use crate::logs::tell;
use crate::progress::byte_bar;
use anyhow::{Context, anyhow, bail};
use indicatif::ProgressBar;
use piecewise_cache::without_secrets;
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How often in a row nothing may come of an attempt.
const ATTEMPTS: u32 = 5;

/// Files on their way at a time.
const AT_ONCE: usize = 4;

/// Seconds without a byte after which an attempt has failed, where the environment says none.
const PATIENCE: u64 = 10;

/// The hub as the environment has it.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    client: Client,
    endpoint: String,
    token: Option<String>,
}

/// Why an attempt at a file failed.
enum Failed {
    /// It may go on from what there is.
    Cut(anyhow::Error),
    /// Another attempt would fail, too.
    Refused(anyhow::Error),
}

impl Hub {
    /// `HF_ENDPOINT`, else huggingface.co, with the token of `HF_TOKEN` or of the hub's own programs.
    pub(super) fn of_environment() -> anyhow::Result<Self> {
        let endpoint =
            variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let file = variable("HF_TOKEN_PATH").map(PathBuf::from);
        let file = file.or_else(|| hub_home().map(|home| home.join("token")));
        let kept = || Some(std::fs::read_to_string(file?).ok()?.trim().to_owned());
        let token = variable("HF_TOKEN").or_else(kept).filter(|token| !token.is_empty());
        let patience = match variable("HF_HUB_DOWNLOAD_TIMEOUT") {
            Some(text) => text.parse().ok().filter(|seconds| *seconds > 0).with_context(|| {
                format!("HF_HUB_DOWNLOAD_TIMEOUT is `{text}`; write seconds, from 1 on")
            })?,
            None => PATIENCE,
        };
        let client = client(Duration::from_secs(patience))?;
        Ok(Self { client, endpoint: endpoint.trim_end_matches('/').to_owned(), token })
    }

    async fn get(&self, url: &str, from: u64) -> Result<Response, Failed> {
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let answer =
            request.send().await.map_err(|error| Failed::Cut(error.without_url().into()))?;
        let status = answer.status();
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(answer);
        }
        let why = anyhow!("the hub says {status}");
        let is_passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Err(if is_passing { Failed::Cut(why) } else { Failed::Refused(why) })
    }

    async fn list(&self, name: &RepoName) -> anyhow::Result<Listing> {
        let RepoName { owner, name: model, revision } = name;
        let revision = revision.replace('/', "%2F");
        let url =
            format!("{}/api/models/{owner}/{model}/revision/{revision}?blobs=true", self.endpoint);
        let mut failures = 0;
        let text = loop {
            let failed = match self.get(&url, 0).await {
                Ok(answer) => match answer.text().await {
                    Ok(text) => break text,
                    Err(error) => Failed::Cut(error.without_url().into()),
                },
                Err(failed) => failed,
            };
            failures += 1;
            match failed {
                Failed::Cut(_) if failures < ATTEMPTS => pause(failures).await,
                Failed::Cut(error) => return Err(error),
                Failed::Refused(error) => return Err(error.context(self.why_refused(name))),
            }
        };
        Listing::read(&text).context("what it says of the model can't be used")
    }

    fn why_refused(&self, name: &RepoName) -> String {
        let key = match self.token {
            Some(_) => "the token that was sent may not read it",
            None => "it may want a token: set HF_TOKEN",
        };
        format!(
            "there is no folder {name} here, and no such model at the hub, or {key}; where its page asks for consent, give it there"
        )
    }

    /// Brings what is missing of a model, and gives its folder.
    ///
    /// # Errors
    /// When the hub does not have it or can't be reached, sends other bytes than it lists, or there is no
    /// room for them.
    pub(super) async fn bring(&self, name: &RepoName, cache: &HubCache) -> anyhow::Result<PathBuf> {
        let from = without_secrets(&self.endpoint);
        let listing =
            self.list(name).await.with_context(|| format!("{name} can't be had from {from}"))?;
        let repo = cache.repo(name);
        let folder = repo.join("snapshots").join(&listing.commit);
        let place = Arc::new(Place {
            repo: repo.clone(),
            folder: folder.clone(),
            base: self.base(name, &listing),
        });
        let failed = || {
            format!(
                "{name} can't be had whole from {from}; started again, it goes on from what there is"
            )
        };
        let small: Vec<_> = listing.small_files().cloned().collect();
        self.bring_all(&place, name, small).await.with_context(failed)?;
        let index = std::fs::read_to_string(folder.join("model.safetensors.index.json")).ok();
        let weights =
            listing.weights(index.as_deref()).with_context(|| format!("{name} can't be run"))?;
        let weights = weights.into_iter().cloned().collect();
        self.bring_all(&place, name, weights).await.with_context(failed)?;
        if name.commit().is_none() {
            let file = repo.join("refs").join(&name.revision);
            write_whole(&file, listing.commit.as_bytes())?;
        }
        Ok(folder)
    }

    fn base(&self, name: &RepoName, listing: &Listing) -> String {
        format!("{}/{}/{}/resolve/{}", self.endpoint, name.owner, name.name, listing.commit)
    }

    async fn bring_all(
        &self,
        place: &Arc<Place>,
        name: &RepoName,
        files: Vec<RemoteFile>,
    ) -> anyhow::Result<()> {
        let missing: Vec<_> = files.into_iter().filter(|file| !place.has(file)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let total = missing.iter().filter_map(|file| file.bytes).sum();
        let count = missing.len();
        tell(&format!("downloading {name}: {count} files, {}", crate::amounts::shown_bytes(total)));
        let bar = byte_bar("downloading", total);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let mut under_way = JoinSet::new();
        for file in missing {
            let (hub, place, turns, bar) =
                (self.clone(), Arc::clone(place), Arc::clone(&turns), bar.clone());
            under_way.spawn(async move {
                let _turn = turns.acquire().await;
                hub.bring_one(&place, &file, &bar).await.with_context(|| file.path.clone())
            });
        }
        while let Some(done) = under_way.join_next().await {
            // The others stop where one fails; what they have is kept.
            done??;
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn bring_one(
        &self,
        place: &Place,
        file: &RemoteFile,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let blobs = place.repo.join("blobs");
        std::fs::create_dir_all(&blobs)
            .with_context(|| format!("can't make {}", blobs.display()))?;
        let known = file.digest.as_ref().map(|digest| digest.name().to_owned());
        let part_name = known.clone().unwrap_or_else(|| file.path.replace('/', "--"));
        let part = blobs.join(format!("{part_name}.incomplete"));
        // Whoever else brings the same waits here, and finds it there.
        let lock = Arc::new(File::create(blobs.join(format!("{part_name}.lock")))?);
        let held = Arc::clone(&lock);
        tokio::task::spawn_blocking(move || held.lock()).await??;
        if place.has(file) {
            return Ok(());
        }
        if !known.as_ref().is_some_and(|known| blobs.join(known).is_file()) {
            self.fetch(place, file, &part, bar).await?;
            let (checked, digest) = (part.clone(), file.digest.clone());
            let found = tokio::task::spawn_blocking(move || match digest {
                Some(digest) => Ok::<_, std::io::Error>(digest.is_of(&checked)?.then_some(digest)),
                None => Digest::of(&checked).map(Some),
            });
            let Some(digest) = found.await?? else {
                // Whoever begins again has nothing of it.
                std::fs::remove_file(&part)?;
                bail!(
                    "its bytes are not those that the hub lists: they were changed on their way, or the list is wrong; what came is dropped"
                );
            };
            let blob = blobs.join(digest.name());
            std::fs::rename(&part, &blob)
                .with_context(|| format!("can't write {}", blob.display()))?;
            return place.link(file, digest.name());
        }
        place.link(file, &known.unwrap_or_default())
    }

    /// Brings the rest of a file, attempt by attempt, as long as some of it comes.
    async fn fetch(
        &self,
        place: &Place,
        file: &RemoteFile,
        part: &Path,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        bar.inc(length(part));
        let mut failures = 0;
        loop {
            let before = length(part);
            if file.bytes == Some(before) && before > 0 {
                return Ok(());
            }
            match self.fetch_rest(place, file, part, before, bar).await {
                Ok(()) => return Ok(()),
                Err(Failed::Refused(error)) => return Err(error),
                Err(Failed::Cut(error)) => {
                    failures = if length(part) > before { 0 } else { failures + 1 };
                    if failures >= ATTEMPTS {
                        return Err(error.context(format!("nothing came in {ATTEMPTS} attempts")));
                    }
                    tracing::debug!("{}: {error:#}; going on", file.path);
                    if failures > 0 {
                        pause(failures).await;
                    }
                }
            }
        }
    }

    async fn fetch_rest(
        &self,
        place: &Place,
        file: &RemoteFile,
        part: &Path,
        have: u64,
        bar: &ProgressBar,
    ) -> Result<(), Failed> {
        let refused = |error: std::io::Error| {
            Failed::Refused(
                anyhow::Error::from(error).context(format!("can't write {}", part.display())),
            )
        };
        let url = format!("{}/{}", place.base, escaped(&file.path));
        let mut answer = self.get(&url, have).await?;
        let goes_on = answer.status() == StatusCode::PARTIAL_CONTENT && {
            let range = answer.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
            range.is_some_and(|range| range.starts_with(&format!("bytes {have}-")))
        };
        // Whoever does not go on where it was asked to begins anew.
        let mut out = OpenOptions::new();
        let out = out.create(true).write(true).append(goes_on).truncate(!goes_on).open(part);
        let mut out = out.map_err(refused)?;
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(Failed::Cut(anyhow!("the hub has no more of it than there is")));
        }
        let mut written = if goes_on { have } else { 0 };
        loop {
            let chunk = answer.chunk().await;
            let chunk = chunk.map_err(|error| Failed::Cut(error.without_url().into()))?;
            let Some(bytes) = chunk else { break };
            written += bytes.len() as u64;
            if let Some(listed) = file.bytes.filter(|listed| written > *listed) {
                drop(std::fs::remove_file(part));
                let why = anyhow!(
                    "more than the {listed} bytes come that the hub lists; what came is dropped"
                );
                return Err(Failed::Refused(why));
            }
            out.write_all(&bytes).map_err(refused)?;
            bar.inc(bytes.len() as u64);
        }
        match file.bytes {
            Some(listed) if written < listed => {
                Err(Failed::Cut(anyhow!("it ended after {written} of {listed} bytes")))
            }
            _ => Ok(()),
        }
    }
}

/// Where the files of a model go.
struct Place {
    repo: PathBuf,
    /// Of the commit.
    folder: PathBuf,
    /// What the addresses of files begin with.
    base: String,
}

impl Place {
    fn has(&self, file: &RemoteFile) -> bool {
        // A link whose file is gone is none.
        self.folder.join(&file.path).is_file()
    }

    /// Has the snapshot name the bytes.
    fn link(&self, file: &RemoteFile, blob: &str) -> anyhow::Result<()> {
        let link = self.folder.join(&file.path);
        let failed = || format!("can't write {}", link.display());
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder).with_context(failed)?;
        }
        let above = "../".repeat(file.path.split('/').count() + 1);
        drop(std::fs::remove_file(&link));
        std::os::unix::fs::symlink(format!("{above}blobs/{blob}"), &link).with_context(failed)
    }
}

/// A path as an address has it.
fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(one).collect()
}

/// Writes a small file under its name once it is whole.
fn write_whole(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let failed = || format!("can't write {}", file.display());
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(failed)?;
    }
    let part = file.with_extension("new");
    std::fs::write(&part, bytes).with_context(failed)?;
    std::fs::rename(&part, file).with_context(failed)
}

/// Waits longer the more often nothing came.
async fn pause(failures: u32) {
    tokio::time::sleep(Duration::from_millis(100 << failures.min(6))).await;
}
