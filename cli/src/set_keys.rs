//! Keys of the configuration set by flags.

use anyhow::{Context, bail};
use piecewise_runtime::config::{ConfigLayers, Source};

/// The flag that sets any key.
pub(crate) const SET: &str = "--set";

/// Sets a key by the flag of its name, if that was given: `cache.dir` by `--cache-dir`.
pub(crate) fn put(
    layers: ConfigLayers,
    key: &str,
    value: Option<impl serde::Serialize>,
) -> anyhow::Result<ConfigLayers> {
    put_by(layers, &format!("--{}", key.replace(['_', '.'], "-")), key, value)
}

/// Sets a key of the table `[server]` by the flag of its name: `server.host` by `--host`.
pub(crate) fn put_server(
    layers: ConfigLayers,
    key: &str,
    value: Option<impl serde::Serialize>,
) -> anyhow::Result<ConfigLayers> {
    let flag = format!("--{}", key.replace('_', "-"));
    put_by(layers, &flag, &format!("server.{key}"), value)
}

/// Sets a key to true by the switch of its name.
pub(crate) fn turn_on(layers: ConfigLayers, key: &str, on: bool) -> anyhow::Result<ConfigLayers> {
    put(layers, key, on.then_some(true))
}

/// Sets a key to false by the switch `--no-` of its name.
pub(crate) fn turn_off(layers: ConfigLayers, key: &str, off: bool) -> anyhow::Result<ConfigLayers> {
    put_by(layers, &format!("--no-{}", key.replace('_', "-")), key, off.then_some(false))
}

/// Sets a key by a flag of another name, if that was given.
pub(crate) fn put_by(
    layers: ConfigLayers,
    flag: &str,
    key: &str,
    value: Option<impl serde::Serialize>,
) -> anyhow::Result<ConfigLayers> {
    let Some(value) = value else { return Ok(layers) };
    if matches!(layers.source(key), Some(Source::Flag(other)) if other == SET) {
        bail!("{key} is set twice, by {SET} and by {flag}; leave one out");
    }
    let value =
        toml::Value::try_from(value).with_context(|| format!("{flag} can't be a setting"))?;
    Ok(layers.flag(key, value, flag)?)
}
