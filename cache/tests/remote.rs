//! A second level that a fleet shares: one compiles, all are served; none depends on it.

use std::path::Path;
use std::time::Duration;

use crate::support::*;
use piecewise_cache::{Cache, CacheOptions, Condition, RemoteOptions};

/// Within which every answer comes, however busy the machine is.
const AMPLE: Duration = Duration::from_secs(600);

fn options(dir: &Path, url: &str) -> CacheOptions {
    let mut remote = RemoteOptions::new(url);
    remote.is_trusted = true;
    remote.is_written = true;
    remote.timeout = AMPLE;
    let mut options = crate::support::options(dir);
    options.remote = Some(remote);
    options
}

#[test]
#[cfg(not(feature = "remote"))]
fn a_program_without_the_feature_says_so_once_and_uses_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(options(dir.path(), "memory:///"));
    put(&cache, 1);
    assert_serves(&cache, 1);
    assert_eq!(get(&cache, 2), None);
    let reports = cache.events().conditions;
    assert_eq!((reports.len(), reports[0].times), (1, 1));
    assert_eq!(reports[0].condition, Condition::Remote);
    assert!(reports[0].message.contains("without the cargo feature `remote`"), "{reports:?}");
}

#[cfg(feature = "remote")]
mod with_the_feature {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use piecewise_cache::{CacheAccess, KeyHex};

    fn file_url(folder: &Path) -> String {
        fs::create_dir_all(folder).unwrap();
        format!("file://{}", folder.display())
    }

    fn object(remote: &Path, i: u64) -> PathBuf {
        entry_path(remote, i)
    }

    fn without_writing(mut options: CacheOptions) -> CacheOptions {
        options.remote.as_mut().unwrap().is_written = false;
        options
    }

    #[test]
    fn one_machine_compiles_and_the_others_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let remote = dir.path().join("remote");
        let url = file_url(&remote);
        let first_dir = dir.path().join("first");
        let first = Cache::open(options(&first_dir, &url));
        (0..3).for_each(|i| put(&first, i));
        assert_eq!(first.events().remote_stored, 3);
        assert_eq!(
            fs::read(object(&remote, 1)).unwrap(),
            fs::read(entry_path(&first_dir, 1)).unwrap()
        );

        let second_dir = dir.path().join("second");
        let second = Cache::open(without_writing(options(&second_dir, &url)));
        (0..3).for_each(|i| assert_serves(&second, i));
        assert_eq!(get(&second, 9), None);
        put(&second, 8);
        let events = second.events();
        assert_eq!((events.hits, events.remote_hits, events.misses), (3, 3, 1));
        assert_eq!((events.stored, events.remote_stored), (4, 0));
        assert!(events.conditions.is_empty(), "{events:?}");
        assert!(!object(&remote, 8).exists());

        fs::remove_dir_all(&remote).unwrap();
        assert_serves(&second, 1);
        let alone = open(&second_dir);
        (0..3).for_each(|i| assert_serves(&alone, i));
        assert_eq!(
            fs::read(entry_path(&first_dir, 1)).unwrap(),
            fs::read(entry_path(&second_dir, 1)).unwrap()
        );
    }

    #[test]
    fn a_directory_that_is_only_read_or_not_there_is_served_from_the_remote_level() {
        let dir = tempfile::tempdir().unwrap();
        let url = file_url(&dir.path().join("remote"));
        put(&Cache::open(options(&dir.path().join("first"), &url)), 1);
        let mut read_only = options(&dir.path().join("none"), &url);
        read_only.access = CacheAccess::ReadOnly;
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        for options in [read_only, options(&file, &url)] {
            let cache = Cache::open(options);
            assert_serves(&cache, 1);
            assert_eq!(conditions(&cache), [(Condition::Unusable, 1)]);
        }
        assert!(!dir.path().join("none").exists());
    }

    #[test]
    fn the_remote_level_is_trusted_by_explicit_setting_or_by_a_checksum_key() {
        let dir = tempfile::tempdir().unwrap();
        let remote = dir.path().join("remote");
        let url = file_url(&remote);
        put(&Cache::open(options(&dir.path().join("first"), &url)), 1);

        let mut untrusted = options(&dir.path().join("untrusted"), &url);
        untrusted.remote.as_mut().unwrap().is_trusted = false;
        let cache = Cache::open(untrusted.clone());
        put(&cache, 2);
        assert_eq!(get(&cache, 1), None);
        let report = &cache.events().conditions[0];
        assert_eq!((report.condition, report.times), (Condition::Remote, 1));
        assert!(
            report
                .message
                .contains("trust it (cache.remote_trusted, --cache-remote-trusted) or set"),
            "{report:?}"
        );
        assert!(!object(&remote, 2).exists());

        let mut keyed = untrusted;
        keyed.checksum_key = Some([3; 32]);
        let writer = Cache::open(keyed.clone());
        put(&writer, 2);
        // A forgery without the key, at the place of an entry with it.
        let keyed_folder = writer.path_of(KIND, &key(2)).parent().unwrap().to_owned();
        let keyed_folder = keyed_folder.strip_prefix(writer.dir()).unwrap();
        fs::copy(object(&remote, 1), remote.join(keyed_folder).join(KeyHex(&key(1)).to_string()))
            .unwrap();
        keyed.dir = dir.path().join("reader");
        let reader = Cache::open(keyed);
        assert_serves(&reader, 2);
        assert_eq!(get(&reader, 1), None);
        let events = reader.events();
        assert_eq!(events.quarantined, 1);
        assert!(events.bad_entries[0].reason.contains("without a key"), "{events:?}");
    }

    #[test]
    fn a_bad_remote_entry_is_named_once_and_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let remote = dir.path().join("remote");
        let url = file_url(&remote);
        let first = Cache::open(options(&dir.path().join("first"), &url));
        (1..5).for_each(|i| put(&first, i));
        let mut changed = fs::read(object(&remote, 1)).unwrap();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(object(&remote, 1), &changed).unwrap();
        fs::write(object(&remote, 2), b"").unwrap();
        fs::copy(object(&remote, 4), object(&remote, 3)).unwrap();

        let second = Cache::open(options(&dir.path().join("second"), &url));
        for _ in 0..2 {
            (1..4).for_each(|i| assert_eq!(get(&second, i), None));
        }
        assert_serves(&second, 4);
        assert_eq!(second.events().quarantined, 3);
        (1..4).for_each(|i| put(&second, i));
        let third = Cache::open(options(&dir.path().join("third"), &url));
        (1..5).for_each(|i| assert_serves(&third, i));
        assert!(third.events().bad_entries.is_empty());
    }

    /// What a server does with a request.
    type Answer = dyn Fn(&mut TcpStream, &str, &str, Vec<u8>) + Send + Sync;

    /// A server on this machine; its URL, and how many requests it got.
    fn serve(answer: Arc<Answer>) -> (String, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/cache", listener.local_addr().unwrap());
        let count = Arc::new(AtomicU64::new(0));
        let requests = Arc::clone(&count);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some((method, path, body)) = read_request(&mut stream) else { return };
                    requests.fetch_add(1, Ordering::Relaxed);
                    answer(&mut stream, &method, &path, body);
                });
            }
        });
        (url, count)
    }

    fn read_request(stream: &mut TcpStream) -> Option<(String, String, Vec<u8>)> {
        let mut from = BufReader::new(stream);
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let mut bytes = 0;
        loop {
            let mut header = String::new();
            from.read_line(&mut header).ok()?;
            match header.trim().to_lowercase().split_once(": ") {
                Some(("content-length", value)) => bytes = value.parse().ok()?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; bytes];
        from.read_exact(&mut body).ok()?;
        Some((method, path, body))
    }

    fn respond(stream: &mut TcpStream, status: &str, stated: u64, body: &[u8]) {
        let date = "Last-Modified: Sat, 01 Aug 2026 00:00:00 GMT\r\nETag: \"1\"";
        let head = format!(
            "HTTP/1.1 {status}\r\n{date}\r\nContent-Length: {stated}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).ok();
        stream.write_all(body).ok();
    }

    #[test]
    fn entries_travel_over_http() {
        let dir = tempfile::tempdir().unwrap();
        let objects: Mutex<Vec<(String, Vec<u8>)>> = Mutex::default();
        let (url, _) = serve(Arc::new(move |stream, method, path, body| {
            let mut objects = objects.lock().unwrap();
            if method == "PUT" {
                objects.push((path.to_owned(), body));
                return respond(stream, "201 Created", 0, b"");
            }
            match objects.iter().find(|(name, _)| name == path) {
                Some((_, bytes)) => respond(stream, "200 OK", bytes.len() as u64, bytes),
                None => respond(stream, "404 Not Found", 0, b""),
            }
        }));
        let first = Cache::open(options(&dir.path().join("first"), &url));
        (0..3).for_each(|i| put(&first, i));
        assert_eq!(first.events().remote_stored, 3, "{:?}", first.events());
        let second = Cache::open(options(&dir.path().join("second"), &url));
        (0..3).for_each(|i| assert_serves(&second, i));
        assert_eq!(get(&second, 3), None);
        assert_eq!(second.events().remote_hits, 3);
        assert!(second.events().conditions.is_empty(), "{:?}", second.events());
    }

    /// Uses a cache whose remote level fails: one report and one try of reading, one of writing, and the
    /// directory goes on.
    #[track_caller]
    fn check_fails(url: &str, timeout: Duration, reason: &str) {
        let dir = tempfile::tempdir().unwrap();
        for starts_with_put in [true, false] {
            let mut options = options(&dir.path().join(starts_with_put.to_string()), url);
            options.remote.as_mut().unwrap().timeout = timeout;
            let cache = Cache::open(options);
            if starts_with_put {
                put(&cache, 1);
                assert_eq!(get(&cache, 9), None);
            } else {
                assert_eq!(get(&cache, 1), None);
                put(&cache, 1);
            }
            std::thread::scope(|scope| {
                for i in 2..6 {
                    let cache = &cache;
                    scope.spawn(move || {
                        assert_eq!(get(cache, i), None);
                        put(cache, i);
                    });
                }
            });
            (1..6).for_each(|i| assert_serves(&cache, i));
            assert_eq!(
                conditions(&cache),
                [(Condition::RemoteRead, 1), (Condition::RemoteWrite, 1)]
            );
            let reports = cache.events().conditions;
            assert!(reports.iter().all(|report| report.message.contains(reason)), "{reports:?}");
        }
    }

    #[test]
    fn an_unreachable_remote_level_is_reported_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://user:secret@{}/cache?sig=secret", listener.local_addr().unwrap());
        drop(listener);
        check_fails(&url, Duration::from_millis(300), " after a pause");
    }

    #[test]
    fn a_remote_level_that_never_answers_is_reported_once() {
        let (url, _) = serve(Arc::new(|_, _, _, _| {
            loop {
                std::thread::park();
            }
        }));
        check_fails(&url, Duration::from_millis(300), "no answer within 300ms");
    }

    #[test]
    fn a_remote_level_that_refuses_is_asked_once() {
        let (url, count) = serve(Arc::new(|stream, _, _, _| {
            respond(stream, "403 Forbidden", 0, b"");
        }));
        check_fails(&url, AMPLE, "403");
        assert_eq!(count.load(Ordering::Relaxed), 4, "a read and a write by each cache");
    }

    /// What stands in the store for an entry: the bytes that a cache keeps for it.
    fn kept(i: u64) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        put(&open(dir.path()), i);
        fs::read(entry_path(dir.path(), i)).unwrap()
    }

    #[test]
    fn a_remote_level_that_is_back_is_asked_again() {
        let is_back = Arc::new(AtomicBool::new(false));
        let (answers, bytes) = (Arc::clone(&is_back), kept(1));
        let (url, count) =
            serve(Arc::new(move |stream, _, _, _| match answers.load(Ordering::Relaxed) {
                true => respond(stream, "200 OK", bytes.len() as u64, &bytes),
                false => respond(stream, "403 Forbidden", 0, b""),
            }));
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(without_writing(options(dir.path(), &url)));
        let check_asked = |times: u64| {
            assert_eq!((get(&cache, 1), get(&cache, 1)), (None, None));
            assert_eq!(count.load(Ordering::Relaxed), times);
        };
        check_asked(1);
        pass(Duration::from_secs(29));
        check_asked(1);
        pass(Duration::from_secs(1));
        check_asked(2);
        is_back.store(true, Ordering::Relaxed);
        pass(Duration::from_secs(59));
        check_asked(2);
        pass(Duration::from_secs(1));
        assert_serves(&cache, 1);
        assert_eq!(get(&cache, 2), None, "asked at once, and given another entry");
        assert_eq!(count.load(Ordering::Relaxed), 4);
        assert_eq!(conditions(&cache), [(Condition::RemoteRead, 2)]);
    }

    #[test]
    fn a_refused_write_leaves_reads_on() {
        let is_allowed = Arc::new(AtomicBool::new(false));
        let (accepts, bytes) = (Arc::clone(&is_allowed), kept(1));
        let (url, count) = serve(Arc::new(move |stream, method, path, _| {
            match (method, accepts.load(Ordering::Relaxed)) {
                ("PUT", true) => respond(stream, "201 Created", 0, b""),
                ("PUT", false) => respond(stream, "403 Forbidden", 0, b""),
                _ if path.ends_with(&KeyHex(&key(1)).to_string()) => {
                    respond(stream, "200 OK", bytes.len() as u64, &bytes);
                }
                _ => respond(stream, "404 Not Found", 0, b""),
            }
        }));
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(options(dir.path(), &url));
        (2..5).for_each(|i| put(&cache, i));
        assert_eq!(count.load(Ordering::Relaxed), 1, "not written during a pause");
        assert_serves(&cache, 1);
        assert_eq!(get(&cache, 9), None);
        assert_eq!(cache.events().remote_hits, 1);
        is_allowed.store(true, Ordering::Relaxed);
        pass(Duration::from_secs(30));
        (5..7).for_each(|i| put(&cache, i));
        assert_eq!(cache.events().remote_stored, 2);
        assert_eq!(conditions(&cache), [(Condition::RemoteWrite, 1)]);
        let message = &cache.events().conditions[0].message;
        assert!(
            message.contains("/cache can't be written: ") && message.contains("403"),
            "{message}"
        );
    }

    /// Asks for an object that the server answers `answer` for, and for another one.
    #[track_caller]
    fn check_costs_itself_alone(answer: fn(&mut TcpStream), reason: &str) {
        let bytes = kept(2);
        let (url, _) = serve(Arc::new(move |stream, _, path, _| {
            match path.ends_with(&KeyHex(&key(1)).to_string()) {
                true => answer(stream),
                false => respond(stream, "200 OK", bytes.len() as u64, &bytes),
            }
        }));
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(without_writing(options(dir.path(), &url)));
        assert_eq!(get(&cache, 1), None);
        assert_serves(&cache, 2);
        assert_eq!(get(&cache, 1), None, "asked again, as it may have been made again");
        assert_eq!(conditions(&cache), [(Condition::RemoteObject, 2)]);
        let message = &cache.events().conditions[0].message;
        let name = KeyHex(&key(1)).to_string();
        assert!(message.contains(&format!("{name} is passed over: ")), "{message}");
        assert!(message.contains(reason), "{message}");
    }

    #[test]
    fn an_object_too_large_costs_itself_alone() {
        check_costs_itself_alone(
            |stream| respond(stream, "200 OK", 1 << 50, b"and so on"),
            "its 1125899906842624 bytes are more than an entry can have; remove it there",
        );
    }

    #[test]
    fn an_object_that_is_cut_on_the_way_costs_itself_alone() {
        check_costs_itself_alone(
            |stream| respond(stream, "200 OK", 1000, b"PWCENTRY and no more"),
            "; remove it there",
        );
    }

    #[test]
    fn an_address_that_is_none_is_reported_once() {
        for (url, reason) in
            [("not a url", "write it as s3://bucket/path"), ("gopher://host/path", "gopher")]
        {
            let dir = tempfile::tempdir().unwrap();
            let cache = Cache::open(options(dir.path(), url));
            put(&cache, 1);
            assert_serves(&cache, 1);
            let reports = cache.events().conditions;
            assert_eq!((reports.len(), reports[0].times), (1, 1));
            assert!(reports[0].message.contains(reason), "{reports:?}");
        }
    }

    #[test]
    fn a_cache_can_be_used_and_dropped_inside_a_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let url = file_url(&dir.path().join("remote"));
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        runtime.block_on(async {
            let cache = Cache::open(options(&dir.path().join("cache"), &url));
            put(&cache, 1);
            assert_serves(&cache, 1);
            assert_eq!(get(&cache, 2), None);
        });
    }

    #[test]
    fn no_secret_of_an_address_is_shown() {
        let (url, _) = serve(Arc::new(|stream, _, _, _| {
            respond(stream, "403 Forbidden", 7, b"go away");
        }));
        let dir = tempfile::tempdir().unwrap();
        let url = url.replace("http://", "http://user:secret@") + "?sig=secret";
        let options = options(dir.path(), &url);
        let cache = Cache::open(options.clone());
        assert_eq!(get(&cache, 1), None);
        let message = &cache.events().conditions[0].message;
        assert!(message.contains("403") && !message.contains("secret"), "{message}");
        assert!(!format!("{options:?}").contains("secret"), "{options:?}");
    }
}
