//! What `--help` and `-h` show: the flags under headings, and the few that most want.

use super::cache_flags::CacheFlags;
use super::cuda_args::CudaArgs;
use super::dumps::DumpArgs;
use super::encoder_args::{EncoderArgs, ItemLogArgs};
use super::kv_events::KvEventArgs;
use super::model_args::{BoundArgs, CompileArgs, ConfigSource, MemoryArgs, SharedArgs};
use super::serve::flags::{LimitArgs, ServerArgs, TextArgs};
use super::step_file::StepFileArgs;
use clap::{Arg, Args, Command};

/// Flags that several commands have, by the name of each, and what they stand under.
type Heading = (Vec<String>, &'static str);

/// The flags of a structure, those of the ones within it among them.
fn of<A: Args>(heading: &'static str) -> Heading {
    let flags = A::augment_args(Command::new(""));
    (flags.get_arguments().map(|arg| arg.get_id().to_string()).collect(), heading)
}

/// The headings, each structure behind those within it: the first that has a flag counts.
fn headings() -> [Heading; 15] {
    [
        of::<MemoryArgs>("Memory"),
        of::<CacheFlags>("Compile cache"),
        of::<ConfigSource>("Settings"),
        of::<SharedArgs>("Settings"),
        of::<CudaArgs>("Looking into a CUDA device"),
        of::<CompileArgs>("Graphs and kernels"),
        of::<BoundArgs>("Sizes"),
        of::<DumpArgs>("Dumps of the passes"),
        of::<ItemLogArgs>("Encoders"),
        of::<EncoderArgs>("Encoders"),
        of::<TextArgs>("Texts"),
        of::<LimitArgs>("Limits of requests"),
        of::<StepFileArgs>("Steps"),
        of::<KvEventArgs>("KV events"),
        of::<ServerArgs>("Server"),
    ]
}

/// What `-h` shows of the flags under headings; those without one are the command's own.
const SHORT: [&str; 14] = [
    "api_key_file",
    "cache_dir",
    "config",
    "device",
    "dtype",
    "graph_mode",
    "host",
    "max_num_seqs",
    "max_num_tokens",
    "max_seq_len",
    "memory_fraction",
    "port",
    "served_model_name",
    "set",
];

/// The program with headings, and with flags that only `--help` shows.
pub(crate) fn arranged(program: Command) -> Command {
    arranged_by(program, &headings())
}

fn arranged_by(program: Command, headings: &[Heading]) -> Command {
    let arrange = |arg: Arg| {
        let is_of = |(flags, _): &&Heading| flags.iter().any(|flag| arg.get_id() == flag.as_str());
        let heading = headings.iter().find(is_of).filter(|_| arg.get_help_heading().is_none());
        let arg = match heading {
            Some((_, heading)) => arg.help_heading(*heading),
            None => arg,
        };
        let is_rare = arg.get_help_heading().is_some() && !SHORT.contains(&arg.get_id().as_str());
        if is_rare { arg.hide_short_help(true) } else { arg }
    };
    program.mut_args(arrange).mut_subcommands(|command| arranged_by(command, headings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    fn program() -> Command {
        arranged(crate::Arguments::command())
    }

    fn help(command: &str, is_long: bool) -> String {
        let mut program = program();
        let found = program.find_subcommand_mut(command).unwrap();
        (if is_long { found.render_long_help() } else { found.render_help() }).to_string()
    }

    #[test]
    fn flags_of_several_commands_stand_under_headings_and_a_short_form_has_few() {
        let (short, long) = (help("serve", false), help("serve", true));
        for heading in ["Server:", "Limits of requests:", "Graphs and kernels:", "Compile cache:"] {
            assert!(long.contains(&format!("\n{heading}\n")), "{heading}");
        }
        let flags = |text: &str| text.matches("\n      --").count();
        assert!(flags(&long) > 60 && flags(&short) < 25, "{} {}", flags(&long), flags(&short));
        for flag in ["--model", "--port", "--set", "--memory-fraction"] {
            assert!(short.contains(flag), "{flag}");
        }
        assert!(!short.contains("--max-body-values") && long.contains("--max-body-values"));
        assert!(short.contains("see more with '--help'"), "{short}");
    }

    #[test]
    fn every_flag_of_a_server_has_its_heading_and_every_heading_has_flags() {
        let program = program();
        let serve = program.find_subcommand("serve").unwrap();
        let own = serve.get_arguments().filter(|arg| arg.get_help_heading().is_none());
        let own: Vec<_> = own.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(own, ["model", "preset"]);
        let arguments = program.get_subcommands().flat_map(Command::get_arguments);
        let (mut found, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for arg in arguments {
            found.extend(arg.get_help_heading());
            ids.insert(arg.get_id().as_str());
        }
        for (_, heading) in headings() {
            assert!(found.contains(heading), "nothing stands under {heading}");
        }
        assert!(SHORT.iter().all(|id| ids.contains(id)), "{SHORT:?}");
    }
}
