//! What the documents say that the program prints, it prints.

use crate::support::cli::{piecewise, root};

/// The fenced blocks of a document that show commands and what they print.
fn consoles(document: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let parts = text.split("```console\n").skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

/// Whether `text` is `shown`, in which a line of three dots stands for any lines.
fn is_shown(shown: &str, text: &str) -> bool {
    let mut rest = text;
    let mut is_anywhere = false;
    for part in shown.split_inclusive('\n').collect::<Vec<_>>().split(|line| *line == "...\n") {
        let part = part.concat();
        let at = if is_anywhere { rest.find(&part) } else { rest.starts_with(&part).then_some(0) };
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
        is_anywhere = true;
    }
    rest.is_empty() || shown.ends_with("...\n")
}

/// A text in which digests, which change with every kernel, are left out.
fn without_digests(text: &str) -> String {
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    let parts = text.split_inclusive(|c| !is_hex(c));
    let stripped = parts.map(|part| match part.find(|c| !is_hex(c)).unwrap_or(part.len()) {
        12.. => part.trim_start_matches(is_hex),
        _ => part,
    });
    stripped.collect()
}

/// What a command of a document prints: `piecewise ..` or `cat FILE`, with `DIR` for a folder. One that
/// ends with `2>&1` fails, and says why.
fn printed(command: &str, dir: &str) -> String {
    let command = command.replace("DIR", dir);
    let (command, errors_alone) = match command.strip_suffix(" 2>&1 >/dev/null") {
        Some(command) => (command, true),
        None => (command.as_str(), false),
    };
    let (command, fails) = match command.strip_suffix(" 2>&1") {
        Some(command) => (command, true),
        None => (command, false),
    };
    match command.split_once(' ').unwrap() {
        ("cat", file) => std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}")),
        ("piecewise", args) => {
            let output = piecewise(&args.split(' ').collect::<Vec<_>>());
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.success(), !fails, "{command}: {errors}");
            if errors_alone || fails { errors } else { String::from_utf8(output.stdout).unwrap() }
        }
        _ => panic!("`{command}` is neither piecewise nor cat"),
    }
}

/// The commands whose help has a flag, as a sentence lists them.
fn commands_with(flag: &str) -> String {
    let said = |args: &[&str]| String::from_utf8(piecewise(args).stdout).unwrap();
    let help = said(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // What a command does may go on in a line that is further in, and name other commands' flags.
    let begins = commands.lines().filter(|line| line.find(|c| c != ' ') == Some(2));
    let names = begins.filter_map(|line| line.split_whitespace().next());
    let flag = format!("\n      {flag}");
    let has = |name: &&str| *name != "help" && said(&[name, "--help"]).contains(&flag);
    let names: Vec<_> = names.filter(has).map(|name| format!("`{name}`")).collect();
    let (last, before) = names.split_last().unwrap();
    format!("{} and {last}", before.join(", "))
}

#[test]
fn documents_list_the_commands_that_have_a_flag() {
    let page = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let dumps = format!("`--dump-dir DIR` is a flag of {}.", commands_with("--dump-dir"));
    assert!(page("docs/dumps.md").contains(&dumps), "docs/dumps.md must say: {dumps}");
    let read = format!("{} read their settings in layers", commands_with("--print-config"));
    let is_said = page("docs/configuration.md").replace('\n', " ").contains(&read);
    assert!(is_said, "docs/configuration.md must say: {read}");
}

#[test]
fn the_help_says_cuda_graph() {
    let help = String::from_utf8(piecewise(&["--help"]).stdout).unwrap();
    assert!(help.contains("CUDA graph"), "{help}");
}

#[test]
fn commands_print_what_the_documents_show() {
    let mut checked = 0;
    for block in consoles("docs/dumps.md") {
        let folder = tempfile::tempdir().unwrap();
        for shown in block.split("$ ").skip(1) {
            let (command, shown) = shown.split_once('\n').unwrap();
            let text = printed(command, folder.path().to_str().unwrap());
            let fits = is_shown(&without_digests(shown), &without_digests(&text));
            assert!(fits, "{command} prints\n{text}\nand not\n{shown}");
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked}");
}
