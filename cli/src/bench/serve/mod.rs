//! `piecewise bench serve`: what a server of OpenAI's interface gives its clients, by their clock.

mod args;
mod client;
mod load;
mod report;
mod requests;

pub(crate) use args::ServeBenchArgs;

use self::client::Target;
use self::load::{Plan, run_load};
use self::report::{Asked, Summary};
use self::requests::requests;
use crate::print::{print_line, print_report};
use anyhow::{Context, bail};
use std::io::Write;
use std::process::ExitCode;

pub(super) fn run(args: &ServeBenchArgs) -> anyhow::Result<ExitCode> {
    // One thread is enough for what a client does, and no other makes its clock late.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args))
}

async fn measure(args: &ServeBenchArgs) -> anyhow::Result<ExitCode> {
    let target = Target::of(args).await?;
    let requests = requests(args, &target)?;
    let out = args.out.as_deref().map(|file| {
        let created = std::fs::File::create(file);
        created.with_context(|| format!("can't write {}", file.display()))
    });
    let out = out.transpose()?;
    if args.warmup > 0 {
        let first = requests.iter().cycle().take(args.warmup).cloned().collect();
        let warm =
            run_load(&target, Plan { requests: first, rate: None, concurrency: Some(1), seed: 0 });
        if let Some(error) = warm.await.outcomes.into_iter().find_map(|outcome| outcome.error) {
            bail!("{} does not answer as it should: {error}", args.url);
        }
    }
    let (rate, concurrency) = (args.rate, args.concurrency.map(|n| n.get()));
    let plan = Plan { requests, rate, concurrency, seed: args.seed };
    let load = run_load(&target, plan).await;
    if let Some(mut out) = out {
        for outcome in &load.outcomes {
            serde_json::to_writer(&mut out, &outcome.row())?;
            writeln!(out)?;
        }
    }
    let asked = Asked {
        url: target.shown(),
        model: target.model.clone(),
        rate,
        concurrency,
        goodput: args.goodput,
        percentiles: args.percentiles.clone(),
    };
    let summary = Summary::of(asked, &load);
    print_report(args.json, &summary.json(), || print_line(summary.table().trim_end()))?;
    Ok(if summary.completed == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
