//! Settings of a server in a file, the environment and flags; keys by `--set` and JSON; pairs of modes.

use crate::bounded::Bound;
use crate::config::{MODEL, file, settings, stats};
use crate::support::cli::{command, error_of, stdout_of};
use serde_json::{Value, json};

/// A file, over it the environment, over that the flags, of which `--set` is one; each says who it is.
#[test]
fn one_file_configures_a_server_and_each_layer_above_it_is_named() {
    let text = format!(
        "max_num_tokens = 64\n[server]\nmodel = \"{MODEL}\"\nport = 8100\nhost = \"localhost\"\n\
         max_queue = 7\nrequest_timeout = 30\nreasoning_parser = \"none\"\naccess_log = false\n"
    );
    let (_folder, path) = file(&text);
    let mut command = command(std::path::Path::new("cache"));
    let output = command
        .env("PIECEWISE_SERVER_PORT", "8200")
        .env("PIECEWISE_SERVER_MAX_QUEUE", "9")
        .env("PIECEWISE_MAX_NUM_TOKNS", "1")
        .args(["serve", "--config", &path, "--max-queue", "11", "--print-config"])
        .args([
            "--set",
            "graph_mode=none",
            "--set",
            "server.allowed_origins=[\"https://a.example\"]",
        ])
        .bounded_output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for line in [
        &format!("server.host = \"localhost\"  # {path}"),
        &format!("server.request_timeout = 30  # {path}"),
        &format!("server.access_log = false  # {path}"),
        "server.port = 8200  # PIECEWISE_SERVER_PORT",
        "server.max_queue = 11  # --max-queue",
        "server.allowed_origins = [\"https://a.example\"]  # --set",
        "graph_mode = \"none\"  # --set",
        "cache.dir = \"cache\"  # PIECEWISE_CACHE_DIR",
        "server.max_choices = 128  # default",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text} {said}");
    }
    let misspelt = "PIECEWISE_MAX_NUM_TOKNS sets nothing; did you mean PIECEWISE_MAX_NUM_TOKENS?";
    assert_eq!(said.matches(misspelt).count(), 1, "{said}");
    // What is shown is a file that gives itself.
    let (_folder, again) = file(&text);
    let shown = stdout_of(&["config", "show", "--json", "--config", &again]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["server.port"], json!({"value": 8200, "from": "file", "source": again}));
    assert_eq!(shown["server.tls_cert"]["value"], Value::Null);
}

#[test]
fn settings_are_json_or_a_key_and_a_value_on_the_command_line() {
    let inline = "{\"graph_mode\": \"full\", \"checks\": {\"poison\": true}, \"capture_num_tokens\": [8, 1]}";
    let found = settings(&["--config", inline, "--set", "max_num_seqs=3"]);
    assert_eq!(
        found["checks.poison"],
        json!({"value": true, "from": "flag", "source": "--config"})
    );
    assert_eq!(found["capture_num_tokens"]["value"], json!([1, 8]));
    assert_eq!(found["max_num_seqs"], json!({"value": 3, "from": "flag", "source": "--set"}));
    let generate = ["generate", "--model", MODEL, "--prompt", "a"];
    for (flags, said) in [
        (
            &["--set", "graph_mode=none", "--graph-mode", "full"][..],
            "set twice, by --set and by --graph-mode",
        ),
        (&["--set", "padding"], "`padding` has no `=`"),
        (&["--set", "server.prt=1"], "did you mean `server.port`?"),
        (&["--config", "{\"strict\": 1}"], "--config: strict can't be 1"),
        (&["--passes-off", "plan"], "pass `plan` can't be left out"),
        (&["--set", "passes_off=fus"], "there is no pass `fus` to leave out, did you mean `fuse`?"),
    ] {
        let error = error_of(&[&generate[..], flags].concat());
        assert!(error.contains(said), "{flags:?}: {error}");
    }
    for (text, said) in [
        ("[server]\nmax_body = 12", "server.max_body = 12 does not go with the smallest requests"),
        (
            "[server]\nmax_head = 8191",
            "server.max_head = 8191 does not go with the smallest requests",
        ),
        ("[server]\nmax_body_memory = 0", "server.max_body_memory = 0 does not go with"),
        (
            "[server]\nmax_body_memory = 190000000",
            "server.max_body_values = 1048576, whose bodies take 190054400",
        ),
        (
            "[server]\ntls_cert = \"c.pem\"",
            "server.tls_cert = c.pem does not go with no server.tls_key",
        ),
        ("[server]\nmax_choices = 0", "server.max_choices can't be 0"),
        ("[server]\nscheduling_policy = \"lifo\"", "unknown variant `lifo`"),
    ] {
        let (_folder, path) = file(text);
        let error = error_of(&["config", "check", &path]);
        assert!(error.contains(said) && error.contains(&format!("{path}:2: ")), "{error}");
    }
    let nothing = error_of(&["serve"]);
    assert!(nothing.contains("give --model or --preset, or set server.model"), "{nothing}");
}

/// Any two ways for decodes and for mixed steps; the text is the same in all of them.
#[test]
fn decodes_and_mixed_steps_run_in_any_two_ways() {
    let (text, _) = stats(&["--graph-mode", "none"]);
    let ways = ["none", "piecewise", "full"];
    for (at, decode) in ways.into_iter().enumerate() {
        for (mixed_at, mixed) in ways.into_iter().enumerate() {
            let mode = format!("{decode}_and_{mixed}");
            let (said, found) = stats(&["--graph-mode", &mode]);
            assert_eq!(said, text, "{mode}");
            let steps = found["statistics"]["steps_by_mode"].as_array().unwrap();
            let mut expected = [0, 0, 0];
            expected[mixed_at] += 1;
            expected[at] += 15;
            assert_eq!(*steps, expected.map(Value::from), "{mode}: {found}");
        }
    }
}
