use super::*;
use proptest::prelude::*;

const KEY: Key = [7; 32];
const FACTORS: [(&str, &str); 3] = [("target", "cuda:sm_90"), ("size", "T=8"), ("note", "")];
const CAP: u64 = 1 << 20;

fn plain() -> Checksum {
    Checksum::new(None)
}

fn keyed(key: u8) -> Checksum {
    Checksum::new(Some([key; 32]))
}

fn encode(factors: &[(&str, &str)], payload: &[u8], checksum: &Checksum) -> Vec<u8> {
    let mut bytes = encode_header("image", &KEY, factors, payload, checksum).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

fn sample() -> Vec<u8> {
    encode(&FACTORS, b"a payload of a few bytes", &plain())
}

fn decode(bytes: &[u8], checksum: &Checksum) -> Result<(Header, Vec<u8>), DecodeError> {
    let mut from = bytes;
    let read = read_header(&mut from, bytes.len() as u64, CAP, checksum).and_then(|header| {
        let payload = read_payload(&mut from, &header, checksum)?;
        Ok((header, payload))
    });
    read.map_err(|error| match error {
        ReadError::Decode(error) => error,
        ReadError::Io(error) => panic!("a slice failed: {error}"),
    })
}

/// A header with these bytes in place of kind and factors, its checksums right.
fn with_header(header: &[u8]) -> Vec<u8> {
    let mut bytes = sample();
    bytes.truncate(PREFIX_BYTES);
    bytes[12..16].copy_from_slice(&(header.len() as u32).to_le_bytes());
    bytes[16..24].fill(0);
    bytes[64..96].copy_from_slice(plain().of(&[]).as_bytes());
    let checksum = plain().of(&[&bytes[..CHECKED_BYTES], header]);
    bytes[CHECKED_BYTES..].copy_from_slice(checksum.as_bytes());
    bytes.extend_from_slice(header);
    bytes
}

#[test]
fn an_entry_is_read_back_and_written_the_same_again() {
    let (header, payload) = decode(&sample(), &plain()).unwrap();
    assert_eq!((header.kind.as_str(), header.key), ("image", KEY));
    let factors: Vec<_> = header.factors.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(factors, FACTORS);
    assert_eq!(payload, b"a payload of a few bytes");
    assert_eq!(encode(&factors, &payload, &plain()), sample());
}

#[test]
fn the_bytes_of_an_entry_are_pinned() {
    let digest = blake3::hash(&sample()).to_hex();
    insta::assert_snapshot!(format!("{} bytes, {digest}", sample().len()));
}

#[test]
fn every_byte_changed_is_a_typed_error() {
    let whole = sample();
    for place in 0..whole.len() {
        for change in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut bytes = whole.clone();
            bytes[place] ^= change;
            let error = decode(&bytes, &plain()).expect_err("a changed byte");
            let is_expected = match place {
                0..8 => error == DecodeError::Magic,
                8..12 => matches!(error, DecodeError::Version { .. }),
                12..24 => {
                    matches!(error, DecodeError::Length { .. } | DecodeError::TooLong { .. })
                }
                24..56 | 64..PREFIX_BYTES => error == DecodeError::Checksum { part: "header" },
                56..64 => matches!(error, DecodeError::ChecksumKey { .. }),
                _ if place < whole.len() - 24 => error == DecodeError::Checksum { part: "header" },
                _ => error == DecodeError::Checksum { part: "payload" },
            };
            assert!(is_expected, "byte {place} ^ {change:#x}: {error}");
        }
    }
}

#[test]
fn every_truncation_and_a_longer_file_are_typed_errors() {
    let whole = sample();
    for bytes in 0..whole.len() {
        let error = decode(&whole[..bytes], &plain()).expect_err("a cut entry");
        match error {
            DecodeError::Truncated { missing: "header", .. } => assert!(bytes < PREFIX_BYTES),
            DecodeError::Length { found, .. } => assert_eq!(found, bytes as u64),
            error => panic!("{bytes} bytes: {error}"),
        }
    }
    let longer = [whole.as_slice(), b"x"].concat();
    assert!(matches!(decode(&longer, &plain()), Err(DecodeError::Length { .. })));
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_truncated() {
    let whole = sample();
    for bytes in [0, 8, PREFIX_BYTES, PREFIX_BYTES + 4, whole.len() - 1] {
        let mut from = &whole[..bytes];
        let read = read_header(&mut from, whole.len() as u64, CAP, &plain());
        let read = read.and_then(|header| read_payload(&mut from, &header, &plain()));
        let is_truncated = matches!(read, Err(ReadError::Decode(DecodeError::Truncated { .. })));
        assert!(is_truncated, "{bytes}");
    }
}

#[test]
fn a_length_is_bounded_before_anything_is_read() {
    for (place, part, cap) in
        [(12..16, "header", MAX_HEADER_BYTES as u64), (16..24, "payload", CAP)]
    {
        let mut bytes = sample();
        bytes[place].fill(0xff);
        // An endless file of stated length: only the bound stops the reader.
        let error = read_header(&mut bytes.as_slice(), u64::MAX, CAP, &plain());
        let Err(ReadError::Decode(DecodeError::TooLong { part: found, cap: bound, .. })) = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((found, bound), (part, cap));
    }
}

#[test]
fn a_checksum_key_is_asked_for_and_not_told() {
    let bytes = encode(&FACTORS, b"x", &keyed(1));
    assert!(decode(&bytes, &keyed(1)).is_ok());
    let errors =
        [decode(&bytes, &keyed(2)), decode(&bytes, &plain()), decode(&sample(), &keyed(1))];
    for error in errors {
        assert!(matches!(error, Err(DecodeError::ChecksumKey { .. })), "{error:?}");
    }
    let mut forged = sample();
    forged[56..64].copy_from_slice(&keyed(1).id);
    let error = decode(&forged, &keyed(1));
    assert_eq!(error.unwrap_err(), DecodeError::Checksum { part: "header" });
    assert!(!bytes.windows(32).any(|window| window == [1; 32]));
}

#[test]
fn a_header_that_no_writer_makes_is_refused_under_a_right_checksum() {
    let factor = |name: &[u8], value: &[u8]| {
        let mut bytes = (name.len() as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(value);
        bytes
    };
    let header = |kind: &[u8], count: u16, factors: &[Vec<u8>]| {
        let mut bytes = vec![kind.len() as u8];
        bytes.extend_from_slice(kind);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend(factors.concat());
        bytes
    };
    assert!(decode(&with_header(&header(b"image", 1, &[factor(b"a", b"b")])), &plain()).is_ok());
    let long_text = [1, b'a', 1, 0, 0xff, 0xff, b'a'];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (header(b"../up", 0, &[]), "its kind can't name a folder"),
        (header(b"", 0, &[]), "its kind can't name a folder"),
        (header(&[0xff], 0, &[]), "a text is not UTF-8"),
        (header(b"a", 257, &[]), "it states too many factors"),
        (header(b"a", 0, &[vec![0]]), "it goes on after its last factor"),
        (header(b"a", 1, &[]), "it ends within a length"),
        (header(b"a", 1, &[factor(b"", b"v")]), "the name of a factor is no name"),
        (header(b"a", 1, &[factor(b"\n", b"v")]), "the name of a factor is no name"),
        (
            header(b"a", 2, &[factor(b"n", b"v"), factor(b"n", b"w")]),
            "the name of a factor is no name",
        ),
        (long_text.to_vec(), "it ends within a text"),
        (Vec::new(), "it ends within a length"),
    ];
    for (header, reason) in cases {
        assert_eq!(decode(&with_header(&header), &plain()), Err(DecodeError::Header { reason }));
    }
}

#[test]
fn what_would_not_be_read_is_not_written() {
    let encode = |kind: &str, factors: &[(&str, &str)]| {
        encode_header(kind, &KEY, factors, b"", &plain()).map(|_| ()).unwrap_err()
    };
    let long = "x".repeat(MAX_HEADER_BYTES);
    let names: Vec<String> = (0..=MAX_FACTORS).map(|i| i.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let errors = [
        encode("../image", &[]),
        encode("image", &[("a", "1"), ("a", "2")]),
        encode("image", &[("", "1")]),
        encode("image", &many),
        encode("image", &[("a", &long)]),
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"));
}

#[test]
fn decode_errors_say_what_is_wrong() {
    let key = KEY;
    let errors = [
        DecodeError::Truncated { bytes: 12, missing: "header" },
        DecodeError::Magic,
        DecodeError::Version { found: 9 },
        DecodeError::Length { stated: 200, found: 100 },
        DecodeError::TooLong { part: "payload", bytes: u64::MAX, cap: 1024 },
        DecodeError::ChecksumKey { found: [0; 8], expected: [0xab; 8] },
        DecodeError::Checksum { part: "payload" },
        DecodeError::Header { reason: "a text is not UTF-8" },
        DecodeError::OtherEntry { kind: "image".into(), key },
        DecodeError::NotAFile,
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"));
}

fn factors() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    proptest::collection::btree_map("[a-z ._é]{1,20}", ".{0,40}", 0..6)
}

proptest! {
    #[test]
    fn any_entry_is_read_back(
        factors in factors(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        key in any::<[u8; 32]>(),
        secret in proptest::option::of(any::<[u8; 32]>()),
    ) {
        let checksum = Checksum::new(secret);
        let pairs: Vec<_> = factors.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let mut bytes = encode_header("k", &key, &pairs, &payload, &checksum).unwrap();
        bytes.extend_from_slice(&payload);
        let (header, read) = decode(&bytes, &checksum).unwrap();
        prop_assert_eq!(header.factors, factors.into_iter().collect::<Vec<_>>());
        prop_assert_eq!((header.key, read), (key, payload));
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(decode(&bytes, &plain()).is_err());
    }

    #[test]
    fn arbitrary_headers_under_a_right_checksum_never_panic(
        header in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok((header, _)) = decode(&with_header(&header), &plain()) {
            prop_assert!(is_kind(&header.kind) && header.factors.len() <= MAX_FACTORS);
        }
    }
}
