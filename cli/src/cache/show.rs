//! `piecewise cache show`

use super::location::Location;
use crate::out_file::OutFile;
use crate::print::{print_line, print_report};
use anyhow::{Context, anyhow, bail};
use piecewise_backend::artifact::{Access, ArgRef, Artifact, Digest, Launch, Part, Way};
use piecewise_backend::cuda::{Code, CubinKernel, KERNEL_KIND, cubin_kernels};
use piecewise_cache::{Cache, Entry, EntryInfo, KeyHex};
use piecewise_runtime::store::{PIECE_KIND, StoredPiece};
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `cache show`.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The key, or as much of its beginning as only one entry has.
    key: String,
    #[command(flatten)]
    location: Location,
    /// Write what the entry holds into this file: of a kernel its machine code, as nvdisasm and Nsight
    /// Compute read it, of anything else the bytes that were kept.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let out = args.out.as_deref().map(OutFile::claim).transpose()?;
    let cache = args.location.open(piecewise_cache::CacheAccess::ReadOnly)?;
    let info = find(&cache, &args.key)?;
    let entry = cache.entry(&info.kind, &info.key)?;
    let entry = entry.with_context(|| format!("entry {} is gone", args.key))?;
    let piece = lowered_piece(&entry)?;
    let code = machine_code(&entry)?;
    let unread = |reason| anyhow!("entry {} can't be read: {reason}", KeyHex(&entry.info.key));
    let kernels = code.as_ref().map(|code| cubin_kernels(&code.cubin));
    let kernels = kernels.transpose().map_err(unread)?.unwrap_or_default();
    if let Some(out) = out {
        let bytes = code.as_ref().map_or(entry.payload.as_slice(), |code| &code.cubin);
        out.write(|path| Ok(std::fs::write(path, bytes)?))?;
    }
    let report = json!({
        "entry": entry.info,
        "piece": piece.as_ref().map(shown_piece),
        "kernels": kernels,
    });
    print_report(args.json, &report, || {
        show(&entry.info, piece.as_ref())?;
        show_kernels(&kernels)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The machine code of an entry; `None` where it is something else.
fn machine_code(entry: &Entry) -> anyhow::Result<Option<Code>> {
    if entry.info.kind != KERNEL_KIND {
        return Ok(None);
    }
    let code = Code::from_bytes(&entry.payload, None);
    let wrong = |reason| anyhow!("entry {} is no kernel: {reason}", KeyHex(&entry.info.key));
    code.map(Some).map_err(wrong)
}

fn show_kernels(kernels: &[CubinKernel]) -> anyhow::Result<()> {
    for kernel in kernels {
        let CubinKernel { name, registers, stack_bytes, .. } = kernel;
        let CubinKernel { local_loads, local_stores, static_shared, code_bytes, .. } = kernel;
        print_line(&format!(
            "\nkernel {name}\n  {registers} registers and {stack_bytes} bytes of stack a thread \
             ({local_loads} loads, {local_stores} stores)\n  {static_shared} bytes of shared memory that \
             its source declares, {code_bytes} bytes of instructions"
        ))?;
    }
    Ok(())
}

/// The one entry whose key starts with `prefix`.
fn find(cache: &Cache, prefix: &str) -> anyhow::Result<EntryInfo> {
    let wanted = prefix.to_ascii_lowercase();
    let all = cache.entries()?;
    let mut found = all.into_iter().filter(|e| KeyHex(&e.key).to_string().starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(entry), None) => Ok(entry),
        (None, _) => bail!("no entry of {} has a key like {prefix}", cache.dir().display()),
        (Some(one), Some(other)) => {
            let more = found.count();
            let keys = [one, other].map(|e| format!("{} {}", e.kind, KeyHex(&e.key)));
            bail!(
                "{} entries have a key like {prefix}, {} among them; write more of it",
                more + 2,
                keys.join(" and ")
            )
        }
    }
}

/// The launches of an entry, its images without their bytes; `None` where it is no lowered piece.
fn lowered_piece(entry: &Entry) -> anyhow::Result<Option<Artifact>> {
    if entry.info.kind != PIECE_KIND {
        return Ok(None);
    }
    let read = |stored: StoredPiece| {
        let images = stored.images().iter().map(|&digest| (digest, Vec::new())).collect();
        stored.into_artifact(images)
    };
    match StoredPiece::decode(&entry.payload).map(read) {
        Ok(artifact) => Ok(Some(artifact)),
        Err(reason) => bail!("entry {} is no lowered piece: {reason}", KeyHex(&entry.info.key)),
    }
}

fn operands(launch: &Launch) -> Vec<String> {
    let shown = |at: &ArgRef| match at {
        ArgRef::Operand(position) => format!("#{position}"),
        ArgRef::Scratch { offset, bytes } => format!("scratch {offset}+{bytes}"),
    };
    let args = launch.args.iter().map(|arg| match arg.access {
        Access::Read | Access::ReadAhead => shown(&arg.at),
        Access::Write => format!("out {}", shown(&arg.at)),
        Access::ReadWrite => format!("mut {}", shown(&arg.at)),
    });
    args.collect()
}

fn shown_piece(artifact: &Artifact) -> Json {
    let launch = |launch: &Launch| {
        json!({
            "name": launch.name,
            "image": launch.image.to_string(),
            "grid": launch.grid,
            "operands": operands(launch),
        })
    };
    let way = |way: &Way| {
        let launches: Vec<_> = way.launches.iter().map(launch).collect();
        json!({"name": way.name, "scratch": way.scratch, "launches": launches})
    };
    let part = |part: &Part| json!({"ways": part.ways.iter().map(way).collect::<Vec<_>>()});
    let alternatives = artifact.alternatives.iter();
    let alternatives =
        alternatives.map(|one| json!({"parts": one.parts.iter().map(part).collect::<Vec<_>>()}));
    json!({
        "piece": Digest(artifact.piece).to_string(),
        "size": artifact.size,
        "images": artifact.images.iter().map(|(digest, _)| digest.to_string()).collect::<Vec<_>>(),
        "alternatives": alternatives.collect::<Vec<_>>(),
    })
}

fn show(info: &EntryInfo, piece: Option<&Artifact>) -> anyhow::Result<()> {
    let line = |name: &str, value: &str| print_line(format!("{name:<12} {value}").trim_end());
    line("kind", &info.kind)?;
    line("key", &KeyHex(&info.key).to_string())?;
    line("bytes", &format!("{} ({} of payload)", info.bytes, info.payload_bytes))?;
    for (name, value) in &info.factors {
        line(name, value)?;
    }
    let Some(artifact) = piece else { return Ok(()) };
    line("images", &artifact.images.len().to_string())?;
    for (i, alternative) in artifact.alternatives.iter().enumerate() {
        print_line(&format!("\nalternative {i}"))?;
        for (part, way) in alternative
            .parts
            .iter()
            .enumerate()
            .flat_map(|(part, one)| one.ways.iter().map(move |way| (part, way)))
        {
            let Way { name, scratch, .. } = way;
            print_line(&format!("  part {part}, way {name}, {scratch} bytes of scratch"))?;
            for launch in &way.launches {
                let image = launch.image.to_string();
                let grid = launch.grid.map(|n| n.to_string()).join(" ");
                let (name, operands) = (&launch.name, operands(launch).join(", "));
                let text = format!("    {}  grid {grid:<10} {name} ({operands})", &image[..12]);
                print_line(&text)?;
            }
        }
    }
    Ok(())
}
