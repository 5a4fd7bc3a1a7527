//! What the figures were taken on.

use std::fs;

/// Processor, cores, threads in use and load.
pub fn describe(threads: usize) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
    };
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "machine         {} (family {}, model {}), {cores} cores\n\
         instructions    {}\n\
         threads         {threads}\n\
         load            {}",
        field("model name"),
        field("cpu family"),
        field("model"),
        piecewise_kernels::cpu::Isa::detected(),
        load(),
    )
}

/// The load averages over 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
