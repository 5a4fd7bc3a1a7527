//! Files of what each pass did.

use super::error::DumpError;
use piecewise_ir::text::print_module;
use piecewise_passes::Registry;
use piecewise_passes::manager::DumpDir;
use piecewise_passes::pipeline::nearest;
use piecewise_runtime::config::DumpConfig;

/// What dumps each pass of a run, where that is asked for; `registry` has the passes that there are.
///
/// # Errors
/// When a pass is not there, or the folder can't be made.
pub fn of_passes(config: &DumpConfig, registry: &Registry) -> Result<Option<DumpDir>, DumpError> {
    let Some(dir) = &config.dir else {
        let choices = [
            ("dump.passes", !config.passes.is_empty()),
            ("dump.pieces", !config.pieces.is_empty()),
            ("dump.code", config.code),
        ];
        return match choices.into_iter().find(|(_, is_chosen)| *is_chosen) {
            Some((key, _)) => Err(DumpError::NoFolder { key }),
            None => Ok(None),
        };
    };
    for name in &config.passes {
        if !registry.names().any(|known| known == name) {
            let near = nearest(name, registry.names());
            let near = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
            let known = registry.names().collect::<Vec<_>>().join(", ");
            return Err(DumpError::NoPass { name: name.clone(), near, known });
        }
    }
    Ok(Some(DumpDir::new(dir.join("passes"), print_module)?.only(config.passes.clone())))
}
