//! When images are kept, and by whom.

use super::*;

/// A store that takes its time to keep an image, and refuses a piece whose images it has not.
#[derive(Default)]
struct ImagesFirst(MemoryStore);

impl Store for ImagesFirst {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(kind, key)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        if entry.kind == PIECE_KIND {
            let piece = StoredPiece::decode(entry.bytes).unwrap();
            let lacks = |&&image: &&Digest| self.0.get(IMAGE_KIND, image).unwrap().is_none();
            assert_eq!(piece.images().iter().find(lacks), None);
        } else {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(self.0.get(entry.kind, entry.key).unwrap(), None, "kept twice");
        }
        self.0.put(entry)
    }
}

/// Pieces of several sizes have an image in common, which one thread keeps.
#[test]
fn no_piece_is_kept_before_its_images_whoever_keeps_those() {
    let (store, cold) = filled();
    let made = ImagesFirst::default();
    assert_eq!(compile_with(&module(256), 8, &made).artifacts, cold.artifacts);
    assert!(made.0.entries().keys().eq(store.entries().keys()));
}

/// A store that can't keep the first image that it gets.
#[derive(Default)]
struct FullAtFirst {
    inner: MemoryStore,
    refused: Mutex<Option<Digest>>,
}

impl Store for FullAtFirst {
    fn get(&self, kind: &'static str, key: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(kind, key)
    }

    fn put(&self, entry: Entry<'_>) -> Result<(), StoreError> {
        let mut refused = self.refused.lock().unwrap();
        if entry.kind == IMAGE_KIND && refused.is_none() {
            *refused = Some(entry.key);
            let reason = "the disk is full".to_owned();
            return Err(StoreError { action: "write", kind: entry.kind, key: entry.key, reason });
        }
        self.inner.put(entry)
    }
}

/// The next piece that has the image keeps it.
#[test]
fn an_image_that_could_not_be_kept_is_not_taken_for_kept() {
    let store = FullAtFirst::default();
    compile_with(&module(256), 1, &store);
    let entries = store.inner.entries();
    assert!(entries.contains_key(&(IMAGE_KIND, store.refused.lock().unwrap().unwrap())));
    for key in keys_of(&entries, PIECE_KIND) {
        let piece = StoredPiece::decode(&entries[&(PIECE_KIND, key)].bytes).unwrap();
        let lacks = |&&image: &&Digest| !entries.contains_key(&(IMAGE_KIND, image));
        assert_eq!(piece.images().iter().find(lacks), None);
    }
}
