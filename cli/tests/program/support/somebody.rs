//! Runs of the program as a user for whom the permissions of files hold.

use crate::bounded::Bound as _;
use rustix::process::geteuid;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The user that owns nothing on most systems.
const NOBODY: u32 = 65534;

/// Lets a command run as nobody where the tests run as root, who may write everywhere; what is in
/// `folder` becomes nobody's. The reason if that can't be.
pub(crate) fn as_somebody(mut command: Command, folder: &Path) -> Result<Command, String> {
    if !geteuid().is_root() {
        return Ok(command);
    }
    give_away(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut probe = Command::new(command.get_program());
    let probe = probe.arg("--version").uid(NOBODY).gid(NOBODY).stdout(Stdio::null());
    match probe.bounded().map(|mut probe| probe.wait()) {
        Ok(status) if status.success() => {
            command.uid(NOBODY).gid(NOBODY);
            Ok(command)
        }
        Ok(status) => Err(format!("another user's run of the program: {status}")),
        Err(error) => Err(format!("another user can't run the program: {error}")),
    }
}

fn give_away(path: &Path) -> std::io::Result<()> {
    chown(path, Some(NOBODY), Some(NOBODY))?;
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give_away(&entry?.path())?;
        }
    }
    Ok(())
}
