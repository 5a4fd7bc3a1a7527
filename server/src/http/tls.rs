//! TLS: the certificate and its key, as they are and as they become.

use super::aside::alone;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, crypto::ring};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A certificate and its key, read again when the process gets a SIGHUP.
#[derive(derive_more::Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    #[debug(skip)]
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a certificate with those that it is signed by, and its key, both in PEM.
    ///
    /// # Errors
    /// When a file can't be read or has none, or the key is another certificate's.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, String> {
        let config = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Reads the files again for connections that come from now on; those that are there go on. Where
    /// the new ones are not in order the old ones stay.
    fn reload(&self) -> Result<(), String> {
        let config = read(&self.cert, &self.key)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Agrees on keys with who has connected.
    pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(config).accept(stream).await
    }

    /// What reloads it at every SIGHUP from now on. Must be called within a runtime.
    pub(super) fn reloads(self: &Arc<Self>) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let mut hangup = signal(SignalKind::hangup())?;
        let tls = Arc::clone(self);
        Ok(async move {
            while hangup.recv().await.is_some() {
                let again = Arc::clone(&tls);
                match alone(move || again.reload()).await {
                    Ok(Some(Ok(()))) => tracing::info!("the TLS certificate was read again"),
                    Ok(Some(Err(why))) => tracing::error!("the old TLS certificate stays: {why}"),
                    Ok(None) => {}
                    Err(error) => tracing::error!("the old TLS certificate stays: {error}"),
                }
            }
        })
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let shown = |file: &Path, error: pem::Error, is_missing: &str| match error {
        pem::Error::NoItemsFound => format!("{} has no {is_missing}", file.display()),
        error => format!("{} can't be read: {error}", file.display()),
    };
    let bad_cert = |error| shown(cert, error, "certificate in PEM (BEGIN CERTIFICATE)");
    let certs = CertificateDer::pem_file_iter(cert).map_err(bad_cert)?;
    let certs = certs.collect::<Result<Vec<_>, _>>().map_err(bad_cert)?;
    if certs.is_empty() {
        return Err(bad_cert(pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key);
    let is_missing = "unencrypted private key in PEM (BEGIN PRIVATE KEY)";
    let private = private.map_err(|error| shown(key, error, is_missing))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let config = builder.with_no_client_auth().with_single_cert(certs, private);
    let mut config = config.map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        format!("{key} does not go with {cert}: {error}; give the certificate with its own key")
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tls").join(name)
    }

    #[test]
    fn a_pair_that_is_not_one_is_refused_by_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none.pem");
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let (cert, key) = (fixture("first.cert.pem"), fixture("first.key.pem"));
        for (cert, key, says) in [
            (&none, &key, "none.pem can't be read"),
            (&cert, &none, "none.pem can't be read"),
            (&empty, &key, "empty.pem has no certificate"),
            (&cert, &empty, "empty.pem has no unencrypted private key"),
            (&key, &key, "first.key.pem has no certificate"),
            (&cert, &cert, "first.cert.pem has no unencrypted private key"),
            (&cert, &fixture("second.key.pem"), "second.key.pem does not go with"),
        ] {
            let error = Tls::read(cert, key).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        Tls::read(&cert, &key).unwrap();
    }

    #[test]
    fn a_bad_new_pair_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
        let copy = |name: &str, file: &Path| std::fs::copy(fixture(name), file).unwrap();
        copy("first.cert.pem", &cert);
        copy("first.key.pem", &key);
        let tls = Tls::read(&cert, &key).unwrap();
        let config = || Arc::clone(&tls.config.read().unwrap());
        let first = config();
        copy("second.cert.pem", &cert);
        let error = tls.reload().unwrap_err();
        assert!(error.contains("does not go with"), "{error}");
        assert!(Arc::ptr_eq(&first, &config()));
        copy("second.key.pem", &key);
        tls.reload().unwrap();
        assert!(!Arc::ptr_eq(&first, &config()));
    }
}
