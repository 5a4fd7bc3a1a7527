//! Bad weights are errors that name the file and the tensor, never a panic, and cost no more memory
//! than the file is long.

use std::path::Path;

use crate::support::counting_allocator::peak_bytes;
use crate::support::safetensors_file::{described, file, folder_with, valid, write};
use piecewise::models::{Checkpoint, CheckpointError};
use piecewise_ir::dtype::DType;
use piecewise_testing::soak;
use proptest::prelude::*;
use proptest::sample::Index;

/// Bytes that opening may hold beside a few times what the headers have.
const CONSTANT: usize = 32 << 10;

/// Opens a folder; whatever comes of it, the memory used is bounded by `size`, the bytes of its
/// headers.
fn open_bounded(folder: &Path, size: usize) -> Result<Checkpoint, CheckpointError> {
    let (result, peak) = peak_bytes(|| Checkpoint::open(folder));
    assert!(peak <= 6 * size + CONSTANT, "{peak} bytes allocated for {size} bytes of header");
    result
}

/// Checks that a folder with this `model.safetensors` is refused by an error that names the file
/// and has each of `parts`.
fn refuses(contents: &[u8], parts: &[&str]) -> CheckpointError {
    let folder = folder_with(contents);
    let error = open_bounded(folder.path(), contents.len()).expect_err("the file is accepted");
    let text = error.to_string();
    assert!(text.contains("model.safetensors: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
    error
}

#[test]
fn a_well_formed_file_is_read() {
    let folder = folder_with(&valid());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.names().eq(["a.weight", "b", "empty", "scalar"]));
    let view = checkpoint.tensor("a.weight").unwrap();
    assert_eq!((view.dtype, view.shape, view.bytes), (DType::F32, &[2, 3][..], &[7; 24][..]));
    assert_eq!(checkpoint.tensor("scalar").unwrap().shape, [0_usize; 0]);
    assert_eq!(checkpoint.tensor("empty").unwrap().bytes, [0; 0]);
    assert_eq!(checkpoint.tensor("c"), None);
    assert_eq!(checkpoint.dtype_of("b"), Some(DType::BF16));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = valid();
    for length in 0..whole.len() {
        refuses(&whole[..length], &[]);
    }
    refuses(&[], &["truncated", "byte 8", "has 0"]);
    refuses(&whole[..100], &["truncated", "has 100"]);
    refuses(&whole[..whole.len() - 1], &["`scalar`", "truncated", "32 bytes of data"]);
    refuses(&[whole.as_slice(), &[0]].concat(), &["not fully covered"]);

    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen2");
    let whole = std::fs::read(fixture.join("model.safetensors")).unwrap();
    for length in (0..whole.len()).step_by(9973).chain([7, 8, 9, whole.len() - 1]) {
        refuses(&whole[..length], &[]);
    }
}

#[test]
fn a_huge_header_length_is_refused_without_allocating() {
    for length in [1 << 20, 99_999_999, 100_000_001, 1 << 40, 1 << 63, u64::MAX - 8, u64::MAX] {
        let mut contents = length.to_le_bytes().to_vec();
        contents.extend(b"{}");
        let folder = folder_with(&contents);
        let (result, peak) = peak_bytes(|| Checkpoint::open(folder.path()));
        let error = result.unwrap_err();
        assert!(
            matches!(
                error,
                CheckpointError::Truncated { .. } | CheckpointError::HeaderTooLarge { .. }
            ),
            "{error}"
        );
        assert!(peak < 4096, "{peak} bytes for a header of {length}");
    }
}

#[test]
fn headers_that_would_need_much_memory_to_refuse_are_refused_with_little() {
    let dimensions = "1,".repeat(1 << 20);
    let long_shape =
        format!(r#"{{"w":{{"dtype":"U8","shape":[{dimensions}1],"data_offsets":[0,1]}}}}"#);
    for header in [
        long_shape.clone(),
        long_shape.replace("\"shape\":[", "\"shape\":[["),
        long_shape.replace("\"dtype\":\"U8\"", "\"dtype\":[1]"),
        long_shape.replace("\"dtype\":\"U8\",", ""),
        "[".repeat(1 << 20),
        r#"{"a":"#.repeat(1 << 18),
        format!(r#"{{"{}":1}}"#, "x".repeat(1 << 20)),
        format!(r#"{{"__metadata__":[{dimensions}1]}}"#),
    ] {
        let contents = file(&header, &[0]);
        let folder = folder_with(&contents);
        let (result, peak) = peak_bytes(|| Checkpoint::open(folder.path()));
        let text = result.unwrap_err().to_string();
        assert!(text.len() < 2000, "an error of {} bytes", text.len());
        assert!(peak <= contents.len() + CONSTANT, "{peak} bytes for {}", contents.len());
    }
}

#[test]
fn headers_that_are_not_the_formats_json_are_refused() {
    for header in [
        "",
        "{",
        "[]",
        "null",
        "\u{0}",
        "{}{}",
        r#"{"w":1}"#,
        r#"{"w":{}}"#,
        r#"{"w":{"dtype":"U8","shape":[1]}}"#,
        r#"{"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#,
        r#"{"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}}"#,
        r#"{"w":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}"#,
        r#"{"w":{"dtype":"U8","shape":1,"data_offsets":[0,1]}}"#,
        r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}}"#,
        r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#,
        r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999]}}"#,
        r#"{"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
        r#"{"__metadata__":{"format":1},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
    ] {
        refuses(&file(header, &[0]), &["header"]);
    }
    refuses(&file(r#"{"w":{"dtype":"U8"}}"#, &[0]), &["`w`", "`shape`"]);
    let mut not_utf8 = file("{ }", &[]);
    not_utf8[9] = 0xFF;
    refuses(&not_utf8, &["header", "utf-8"]);
}

#[test]
fn tensors_that_contradict_the_file_are_refused_by_name() {
    let one = |dtype, shape: &[u64], begin, end| {
        file(&format!("{{{}}}", described("w", dtype, shape, begin, end)), &[0; 16])
    };
    for dtype in ["F64", "F8_E5M2", "I4", "I8", "U16", "C64", "F4", "float32", "f32", ""] {
        let error = refuses(&one(dtype, &[4], 0, 16), &["`w`", "supported are"]);
        assert!(
            matches!(error, CheckpointError::UnsupportedDtype { dtype: named, .. } if named == dtype)
        );
    }
    refuses(&one("F32", &[5], 0, 16), &["`w`", "f32[5]", "has 20", "span 16"]);
    refuses(&one("F32", &[3], 0, 16), &["`w`", "has 12"]);
    refuses(&one("F32", &[4], 16, 0), &["`w`", "end before they begin"]);
    refuses(&one("F32", &[5], 0, 20), &["`w`", "after the file's 16 bytes"]);
    refuses(&one("F32", &[4], 1, 17), &["`w`", "after the file's 16 bytes"]);
    refuses(&one("F32", &[1 << 62, 4], 0, 16), &["`w`", "overflows"]);
    refuses(&one("F32", &[u64::MAX], 0, 16), &["`w`", "overflows"]);
    refuses(&one("F32", &[0, u64::MAX, u64::MAX], 0, 16), &["`w`"]);
    refuses(&one("F32", &[1; 9], 0, 4), &["`w`", "9 dimensions"]);
    refuses(&one("F32", &[2], 8, 16), &["`w`", "offset"]);
    refuses(&one("F32", &[2], 0, 8), &["not fully covered"]);
    refuses(&file("{}", &[0]), &["not fully covered"]);

    let two = |second: &str, begin, end, bytes| {
        let parts = [described("a", "U8", &[8], 0, 8), described(second, "U8", &[8], begin, end)];
        file(&format!("{{{}}}", parts.join(",")), &vec![0; bytes])
    };
    refuses(&two("b", 4, 12, 12), &["offset", "`b`"]);
    refuses(&two("b", 0, 8, 8), &["offset"]);
    refuses(&two("b", 9, 17, 17), &["offset", "`b`"]);
    refuses(&two("a", 8, 16, 16), &["`a`", "twice"]);
    // A name twice that describes the same bytes would pass the format's own check.
    refuses(&two("a", 0, 8, 8), &["`a`", "twice"]);
    refuses(&two("\\u0061", 0, 8, 8), &["`a`", "twice"]);
}

#[test]
fn a_folder_without_weights_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::NoWeights { .. }), "{error}");
    assert!(error.to_string().contains("model.safetensors.index.json"));
    let missing = folder.path().join("missing");
    assert!(matches!(Checkpoint::open(&missing), Err(CheckpointError::NoWeights { .. })));
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { .. }), "{error}");
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn weights_that_do_not_fit_the_model_are_refused() {
    let folder = folder_with(&valid());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    checkpoint.weight("a.weight", &[2, 3]).unwrap();
    for (name, shape, part) in [
        ("c.weight", &[2, 3][..], "no tensor `c.weight`"),
        ("a.weight", &[3, 2], "has shape [2, 3], but config.json asks for [3, 2]"),
        ("a.weight", &[6], "asks for [6]"),
        ("scalar", &[], "stored as u8"),
    ] {
        let error = checkpoint.weight(name, shape).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(name), "{error}");
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// A folder of two shards, `1.safetensors` with `a` and `b`, `2.safetensors` with `c`.
fn sharded(index: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let first = [described("a", "U8", &[2], 0, 2), described("b", "U8", &[1], 2, 3)].join(",");
    let second = described("c", "U8", &[3], 0, 3);
    write(folder.path(), "1.safetensors", &file(&format!("{{{first}}}"), &[1, 2, 3]));
    write(folder.path(), "2.safetensors", &file(&format!("{{{second}}}"), &[4, 5, 6]));
    write(folder.path(), INDEX, index.as_bytes());
    folder
}

const GOOD_INDEX: &str = r#"{"metadata":{"total_size":6},"weight_map":
    {"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#;

#[test]
fn shards_are_read_through_their_index() {
    let folder = sharded(GOOD_INDEX);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.names().eq(["a", "b", "c"]));
    assert_eq!(checkpoint.tensor("b").unwrap().bytes, [3]);
    assert_eq!(checkpoint.tensor("c").unwrap().bytes, [4, 5, 6]);
    assert!(checkpoint.file_of("c").unwrap().ends_with("2.safetensors"));
}

#[test]
fn an_index_that_contradicts_its_shards_is_refused() {
    for (index, parts) in [
        (r#"{"weight_map":{"a":"3.safetensors"}}"#, &["3.safetensors", "`a`", INDEX][..]),
        (
            r#"{"weight_map":{"a":"1.safetensors","d":"1.safetensors"}}"#,
            &["1.safetensors", "no tensor `d`", INDEX],
        ),
        (
            r#"{"weight_map":{"a":"1.safetensors","c":"1.safetensors"}}"#,
            &["1.safetensors", "no tensor `c`"],
        ),
        (
            r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors"}}"#,
            &["2.safetensors", "no tensor `a`"],
        ),
        (r#"{"weight_map":{"a":"../1.safetensors"}}"#, &["../1.safetensors", "`a`", INDEX]),
        (r#"{"weight_map":{"a":"/1.safetensors"}}"#, &["/1.safetensors", "`a`", INDEX]),
        (r#"{"weight_map":{"a":"x/1.safetensors"}}"#, &["x/1.safetensors", "`a`", INDEX]),
        (r#"{"weight_map":{"a":"."}}"#, &["\".\"", "`a`", INDEX]),
        (r#"{"weight_map":{}}"#, &[INDEX, "empty"]),
        (r#"{"weight_map":[]}"#, &[INDEX, "invalid type"]),
        (r"{}", &[INDEX, "weight_map"]),
        (r#"{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}"#, &[INDEX, "`a`", "twice"]),
    ] {
        let folder = sharded(index);
        let error = open_bounded(folder.path(), 1024).expect_err(index).to_string();
        for part in parts {
            assert!(error.contains(part), "{index}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn an_index_cut_anywhere_is_refused() {
    for length in 0..GOOD_INDEX.len() {
        let folder = sharded(&GOOD_INDEX[..length]);
        let error = open_bounded(folder.path(), 1024).unwrap_err();
        assert!(matches!(&error, CheckpointError::Index { .. }), "{error}");
        assert!(error.to_string().contains(INDEX));
    }
}

#[test]
fn bad_shards_are_named() {
    let folder = sharded(GOOD_INDEX);
    let twice = file(&format!("{{{}}}", described("a", "U8", &[3], 0, 3)), &[0; 3]);
    write(folder.path(), "2.safetensors", &twice);
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::DuplicateTensor { tensor, first, second }
            if tensor == "a" && first.ends_with("1.safetensors") && second.ends_with("2.safetensors")),
        "{error}"
    );
    for length in 0..twice.len() {
        write(folder.path(), "2.safetensors", &twice[..length]);
        let error = open_bounded(folder.path(), 1024).unwrap_err().to_string();
        assert!(error.contains("2.safetensors"), "{error}");
    }
    std::fs::remove_file(folder.path().join("2.safetensors")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::MissingShard { tensor, .. } if tensor == "c"),
        "{error}"
    );
}

/// Opens bytes as a file and checks what must hold of any: memory is bounded, an error names the
/// file, tensors lie within the file, and nothing is accepted that the format's reference
/// implementation refuses.
fn check_any(contents: &[u8]) -> Result<(), TestCaseError> {
    let folder = folder_with(contents);
    let reference = safetensors::SafeTensors::deserialize(contents);
    match open_bounded(folder.path(), contents.len()) {
        Err(error) => prop_assert!(error.to_string().contains("model.safetensors: ")),
        Ok(checkpoint) => {
            let reference = reference.unwrap();
            prop_assert_eq!(checkpoint.names().len(), reference.len());
            for (name, tensor) in reference.iter() {
                let view = checkpoint.tensor(name).unwrap();
                prop_assert_eq!((view.shape, view.bytes), (tensor.shape(), tensor.data()));
                prop_assert_eq!(view.dtype.name(), tensor.dtype().to_string().to_lowercase());
            }
        }
    }
    Ok(())
}

/// A change of a file's bytes.
#[derive(Debug, Clone)]
enum Mutation {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Cut(Index),
    Copy(Index, Index, usize),
    Length(u64),
}

impl Mutation {
    fn apply(self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, byte) => *at.get_mut(bytes) = byte,
            Self::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new);
            }
            Self::Remove(at, count) => {
                let at = at.index(bytes.len());
                bytes.drain(at..bytes.len().min(at + count));
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Self::Copy(from, to, count) => {
                let from = from.index(bytes.len());
                let copied = bytes[from..bytes.len().min(from + count)].to_vec();
                let to = to.index(bytes.len());
                bytes.splice(to..to, copied);
            }
            Self::Length(length) => {
                let length = length.to_le_bytes();
                let count = bytes.len().min(length.len());
                bytes[..count].copy_from_slice(&length[..count]);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    // Bytes that mean something in a header, beside any.
    let byte = prop_oneof![prop::sample::select(b"{}[]\",:0123456789-eE\\ ".to_vec()), any::<u8>()];
    let number = prop_oneof![0_u64..4096, any::<u64>()].prop_map(|number| number.to_string());
    prop_oneof![
        4 => (at(), byte.clone()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        2 => (at(), prop::collection::vec(byte, 1..6))
            .prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (at(), number).prop_map(|(at, text)| Mutation::Insert(at, text.into_bytes())),
        2 => (at(), 1_usize..12).prop_map(|(at, count)| Mutation::Remove(at, count)),
        1 => at().prop_map(Mutation::Cut),
        2 => (at(), at(), 1_usize..80).prop_map(|(from, to, count)| Mutation::Copy(from, to, count)),
        1 => prop_oneof![0_u64..600, any::<u64>()].prop_map(Mutation::Length),
    ]
}

/// Puts the length of the header right again, so that what was changed inside it is looked at.
fn mend_length(bytes: &mut [u8], data: usize) {
    if let Some(header) = bytes.len().checked_sub(8 + data) {
        bytes[..8].copy_from_slice(&(header as u64).to_le_bytes());
    }
}

/// A header of a few tensors that mostly lie one after the other.
fn described_tensors() -> impl Strategy<Value = (String, usize)> {
    let dtype = prop::sample::select(vec![
        ("F32", 4),
        ("BF16", 2),
        ("F16", 2),
        ("U8", 1),
        ("BOOL", 1),
        ("I64", 8),
        ("F64", 8),
    ]);
    let tensor = ("[a-c]{1,2}", dtype, prop::collection::vec(0_u64..4, 0..4), -1_i64..20);
    prop::collection::vec(tensor, 0..6).prop_map(|tensors| {
        let mut end = 0;
        let mut parts = Vec::new();
        for (name, (dtype, size), shape, slip) in tensors {
            // Only a slip of -1 and of 1 moves a tensor, so that most are right.
            let slip = if slip.abs() == 1 { slip } else { 0 };
            let begin = i64::try_from(end).unwrap().saturating_add(slip).max(0).unsigned_abs();
            end = begin + size * shape.iter().product::<u64>();
            parts.push(described(&name, dtype, &shape, begin, end));
        }
        (format!("{{{}}}", parts.join(",")), usize::try_from(end).unwrap())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak(2000)))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_any(&bytes)?;
    }

    #[test]
    fn any_bytes_as_a_header(header in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        check_any(&bytes)?;
    }

    #[test]
    fn a_valid_file_mutated(mutations in prop::collection::vec(mutation(), 1..5), mend in any::<bool>()) {
        let mut bytes = valid();
        for mutation in mutations {
            mutation.apply(&mut bytes);
        }
        if mend {
            mend_length(&mut bytes, 33);
        }
        check_any(&bytes)?;
    }

    /// Two readers agree: what the reference implementation accepts is accepted here, but for types
    /// that the IR cannot declare and names that occur twice.
    #[test]
    fn tensors_of_any_layout((header, data) in described_tensors()) {
        let contents = file(&header, &vec![1; data]);
        check_any(&contents)?;
        let names: Vec<_> = header.split('"').filter(|part| part.chars().all(|c| "abc".contains(c)) && !part.is_empty()).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        let reference = safetensors::SafeTensors::deserialize(&contents);
        let accepted = reference.is_ok() && unique.len() == names.len() && !header.contains("F64");
        let folder = folder_with(&contents);
        prop_assert_eq!(Checkpoint::open(folder.path()).is_ok(), accepted);
    }

    #[test]
    fn an_index_mutated(mutations in prop::collection::vec(mutation(), 1..5)) {
        let mut index = GOOD_INDEX.as_bytes().to_vec();
        for mutation in mutations {
            mutation.apply(&mut index);
        }
        let folder = sharded(GOOD_INDEX);
        write(folder.path(), INDEX, &index);
        match open_bounded(folder.path(), 1024 + index.len()) {
            Ok(checkpoint) => prop_assert!(checkpoint.names().len() <= 3),
            Err(error) => prop_assert!(error.to_string().contains("safetensors")),
        }
    }
}

#[test]
fn dense_headers_cost_a_bounded_multiple_of_their_length() {
    let tensors: Vec<_> =
        (0..20_000).map(|place| described(&format!("{place:x}"), "U8", &[0], 0, 0)).collect();
    let notes: Vec<_> = (0..100_000).map(|place| format!(r#""{place:x}":"""#)).collect();
    for header in [
        format!("{{{}}}", tensors.join(",")),
        format!(r#"{{"__metadata__":{{{}}}}}"#, notes.join(",")),
    ] {
        let contents = file(&header, &[]);
        let folder = folder_with(&contents);
        let (result, peak) = peak_bytes(|| Checkpoint::open(folder.path()));
        result.unwrap();
        assert!(peak <= 6 * contents.len() + CONSTANT, "{peak} bytes for {}", contents.len());
    }
}
