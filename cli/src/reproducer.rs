//! What a pass panicked over, left in a file.

use piecewise::assembly::AssemblyError;
use piecewise_passes::PassError;
use piecewise_runtime::pipeline::PlanError;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The failure of a pass, if that is what an error tells.
fn of_pass<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a PassError> {
    if let Some(AssemblyError::Plan(plan)) = error.downcast_ref() {
        return of_pass(&**plan);
    }
    match error.downcast_ref() {
        Some(PlanError::Pass(error)) => Some(error),
        Some(_) => None,
        None => error.downcast_ref(),
    }
}

/// Leaves what a pass panicked over in a file of `folder`, unless a dump has it, and says where.
pub(crate) fn leave(error: &anyhow::Error, folder: &Path) -> Option<PathBuf> {
    let PassError::Panicked { pass, before, kept: None, .. } = error.chain().find_map(of_pass)?
    else {
        return None;
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let pass = String::from_iter(pass.chars().map(plain));
    // Never a file that is there: who else writes to the folder is not known.
    (0..100).find_map(|n| {
        let file = folder.join(format!("piecewise-{pass}-{}-{n}.pw", std::process::id()));
        let mut open = OpenOptions::new().write(true).create_new(true).open(&file).ok()?;
        open.write_all(before.as_bytes()).ok()?;
        Some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pass_panicked_over_is_left_once_and_over_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let panicked = |kept| PassError::Panicked {
            pass: "swap/all".to_owned(),
            said: "no".to_owned(),
            spec: "swap/all".to_owned(),
            before: "graph @g {\n}\n".to_owned(),
            kept,
        };
        let plan = PlanError::from(panicked(None));
        let in_chain = anyhow::Error::from(AssemblyError::from(plan)).context("planning");
        let errors = [in_chain, panicked(None).into()];
        let left = errors.each_ref().map(|error| leave(error, folder.path()).unwrap());
        assert_ne!(left[0], left[1]);
        for file in left {
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "graph @g {\n}\n");
            assert!(file.to_str().unwrap().contains("piecewise-swap-all-"), "{}", file.display());
        }
        assert_eq!(leave(&panicked(Some("dump/01".into())).into(), folder.path()), None);
        assert_eq!(leave(&anyhow::anyhow!("something else"), folder.path()), None);
    }
}
