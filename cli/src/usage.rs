//! What is said of a command line that can't be understood.

use super::flags::Flags;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use piecewise_passes::pipeline::nearest;
use piecewise_runtime::config::{TheirWord, their_word};

/// The error with what helps: for a flag of another server the one that there is here, and no suggestion
/// that is like nothing that was written. `flags` are those of the commands that take settings.
pub(crate) fn answered(mut error: Error, flags: &Flags) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(answer) =
                written(&error, ContextKind::InvalidArg).and_then(|flag| of_their_flag(flag, flags))
            {
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Suggested);
                let answer = ContextValue::StyledStrs(vec![StyledStr::from(answer)]);
                error.insert(ContextKind::Suggested, answer);
            }
        }
        ErrorKind::InvalidSubcommand => {
            let given = written(&error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let given = given.to_owned();
            if let Some(ContextValue::Strings(near)) = error.get(ContextKind::SuggestedSubcommand) {
                // A slip of the finger leaves where a word begins.
                let begins_so = |name: &&str| name.chars().next() == given.chars().next();
                let near = near.iter().map(String::as_str).filter(begins_so);
                let near = nearest(&given, near);
                error.remove(ContextKind::SuggestedSubcommand);
                if let Some(near) = near {
                    let near = ContextValue::Strings(vec![near]);
                    error.insert(ContextKind::SuggestedSubcommand, near);
                }
            }
        }
        _ => {}
    }
    error
}

fn written(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// What to write in the place of another server's flag.
fn of_their_flag(flag: &str, flags: &Flags) -> Option<String> {
    let flag = flag.split('=').next()?.trim_start_matches('-');
    match their_word(flag)? {
        TheirWord::Same(key) => Some(match flags.of_key(key) {
            Some(ours) => format!("it is called {ours} here, where a command has it"),
            None => format!("it is the key {key} of a configuration file here"),
        }),
        TheirWord::Instead(answer) => {
            let parts = answer.split('`').enumerate().map(|(i, part)| match i % 2 {
                0 => part.to_owned(),
                _ => flags.of_key(part).unwrap_or_else(|| part.to_owned()),
            });
            Some(String::from_iter(parts))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Arguments;
    use super::*;
    use clap::{CommandFactory, Parser};

    fn said(args: &[&str]) -> String {
        let args = [&["piecewise"][..], args].concat();
        answered(Arguments::try_parse_from(args).unwrap_err(), &Flags::of(&Arguments::command()))
            .to_string()
    }

    #[test]
    fn flags_of_other_servers_are_answered_with_ours() {
        let serve = |flag: &str| said(&["serve", "--model", "m", flag, "2"]);
        let memory = serve("--gpu-memory-utilization");
        assert!(memory.contains("write --memory-fraction, a share of what is free"), "{memory}");
        let parallel = serve("--tensor-parallel-size");
        assert!(parallel.contains("a model runs on one device"), "{parallel}");
        let sizes = serve("--cuda-graph-sizes");
        assert!(sizes.contains("--capture-num-tokens for sizes in tokens"), "{sizes}");
        let batches = serve("--cuda-graph-bs");
        assert!(batches.contains("it is called --decode-batch-sizes here"), "{batches}");
        let args = [
            "piecewise",
            "serve",
            "--model",
            "m",
            "--max-model-len",
            "64",
            "--cuda-graph-max-bs",
            "8",
        ];
        assert!(Arguments::try_parse_from(args).is_ok(), "what means the same is taken");
        assert!(!memory.contains("similar"), "{memory}");
        let typo = serve("--max-num-token");
        assert!(typo.contains("--max-num-tokens"), "{typo}");
    }

    #[test]
    fn a_command_is_suggested_where_one_is_near() {
        let far = said(&["bogus"]);
        assert!(
            far.contains("unrecognized subcommand 'bogus'") && !far.contains("similar"),
            "{far}"
        );
        let near = said(&["generat"]);
        assert!(near.contains("similar") && near.contains("generate"), "{near}");
    }
}
