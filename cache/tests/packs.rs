//! An archive as it lies gives the entries that it was made of, and nothing else, whatever became of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::damage::{archive, damage, sealed};
use crate::support::*;
use piecewise_cache::{ArchiveFault, CacheError, DecodeError, Pack, Trust};
use proptest::prelude::*;

const COUNT: u64 = 5;

/// The bytes of an archive of the first sample entries.
fn archived(dir: &Path) -> Vec<u8> {
    let cache = open(&dir.join("exporter"));
    (0..COUNT).for_each(|i| put(&cache, i));
    let file = dir.join("exported");
    cache.export(&file, |_| true).unwrap();
    fs::read(file).unwrap()
}

fn pack(dir: &Path, bytes: &[u8]) -> Result<Pack, CacheError> {
    let file = dir.join("some.pack");
    fs::write(&file, bytes).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    Pack::open(&file, Trust::Own)
}

#[test]
fn a_pack_gives_what_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = archived(dir.path());
    let pack = pack(dir.path(), &bytes).unwrap();
    assert_eq!(pack.entries() as u64, COUNT);
    for i in 0..COUNT {
        assert_eq!(pack.get(KIND, &key(i)).unwrap(), Some(payload(i)));
        assert_eq!(pack.get("other", &key(i)).unwrap(), None);
    }
    assert_eq!(pack.get(KIND, &key(COUNT)).unwrap(), None);
    assert_eq!(fs::read(pack.path()).unwrap(), bytes);
}

#[test]
fn an_entry_that_changes_under_a_pack_is_told_by_name_and_those_beside_it_are_given() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = archived(dir.path());
    let pack = pack(dir.path(), &bytes).unwrap();
    let wanted = payload(2);
    let at = bytes.windows(wanted.len()).position(|part| part == wanted).unwrap();
    bytes[at] ^= 1;
    fs::write(pack.path(), &bytes).unwrap();
    let error = pack.get(KIND, &key(2)).unwrap_err();
    let CacheError::Pack { entry, .. } = &error else { panic!("{error}") };
    assert_eq!(entry.reason, DecodeError::Checksum { part: "payload" });
    assert!(error.to_string().contains("some.pack"), "{error}");
    assert_eq!(pack.get(KIND, &key(3)).unwrap(), Some(payload(3)));
}

#[test]
fn what_is_no_pack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = archived(dir.path());
    let fault = |bytes: &[u8]| match pack(dir.path(), bytes).unwrap_err() {
        CacheError::CutPack { reason, .. } => reason,
        error => panic!("{error}"),
    };
    let message = pack(dir.path(), b"PNG and so on").unwrap_err().to_string();
    assert!(message.contains("nothing of it is used"), "{message}");
    assert_eq!(fault(b"PNG and so on"), ArchiveFault::Magic);
    assert_eq!(fault(&bytes[..bytes.len() - 1]), ArchiveFault::Truncated);
    assert_eq!(fault(&[&bytes[..], b"?"].concat()), ArchiveFault::Trailing { bytes: 1 });
    assert!(matches!(Pack::open(dir.path(), Trust::Own), Err(CacheError::Io { .. })));
    let missing = Pack::open(&dir.path().join("none.pack"), Trust::Own).unwrap_err();
    assert!(missing.to_string().contains("none.pack"), "{missing}");
}

#[test]
fn a_pack_that_every_user_can_write_to_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let file = pack(dir.path(), &archived(dir.path())).unwrap().path().to_owned();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let error = Pack::open(&file, Trust::Own).unwrap_err().to_string();
    assert!(
        error.contains("every user can write to it") && error.contains("--cache-shared"),
        "{error}"
    );
    assert_eq!(Pack::open(&file, Trust::Shared).unwrap().entries() as u64, COUNT);
}

/// Right checksums over the payload of another key.
#[test]
fn an_entry_under_the_place_of_another_is_not_given() {
    let dir = tempfile::tempdir().unwrap();
    let header = [&[KIND.len() as u8][..], KIND.as_bytes(), &[0, 0]].concat();
    let bytes = archive(&[sealed(&header, &payload(1))]);
    let pack = pack(dir.path(), &bytes).unwrap();
    assert_eq!(pack.get(KIND, &key(1)).unwrap(), None);
    assert_eq!(pack.get(KIND, &key(0)).unwrap(), Some(payload(1)), "it says that it is this one");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_damaged_pack_gives_right_bytes_or_none(damages in proptest::collection::vec(damage(), 1..4)) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = archived(dir.path());
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        if let Ok(pack) = pack(dir.path(), &bytes) {
            for i in 0..COUNT {
                if let Ok(Some(found)) = pack.get(KIND, &key(i)) {
                    prop_assert_eq!(found, payload(i));
                }
            }
        }
    }
}
