//! What the system says of this process, under the names that clients of Prometheus give it.

use super::exposition::{counter, gauge};
use prometheus::proto::MetricFamily;

/// Ticks of a second in `/proc`, which Linux promises to programs.
const TICKS: f64 = 100.0;

/// What there is of it now; nothing where there is no `/proc`.
pub(super) fn of_this_process() -> Vec<MetricFamily> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let descriptors = std::fs::read_dir("/proc/self/fd").map(|open| open.count()).ok();
    families(&Files {
        stat: &read("self/stat"),
        status: &read("self/status"),
        limits: &read("self/limits"),
        system: &read("stat"),
        // One of them reads the folder.
        descriptors: descriptors.map(|open| open.saturating_sub(1)),
    })
}

/// What is read.
struct Files<'t> {
    stat: &'t str,
    status: &'t str,
    limits: &'t str,
    system: &'t str,
    descriptors: Option<usize>,
}

fn families(files: &Files<'_>) -> Vec<MetricFamily> {
    // The name of the program, in brackets, may hold anything; the third field is behind it.
    let fields = files.stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let field = |number: usize| fields.split(' ').nth(number - 3)?.parse::<f64>().ok();
    let of_line = |text: &str, name: &str, at: usize| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(at)?.parse::<f64>().ok()
    };
    let kib = |name: &str| Some(of_line(files.status, name, 0)? * 1024.0);
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    let booted = of_line(files.system, "btime", 0);
    let started = booted.zip(field(22)).map(|(booted, ticks)| booted + ticks / TICKS);
    let one = |value: f64| vec![(Vec::new(), value)];
    let mut found = Vec::new();
    found.extend(cpu.map(|seconds| {
        let help = "Seconds of processors that this process has taken.";
        counter("process_cpu_seconds_total", help, one(seconds))
    }));
    let gauges = [
        ("process_resident_memory_bytes", "Memory of the host that is there.", kib("VmRSS:")),
        ("process_virtual_memory_bytes", "Addresses that are taken.", kib("VmSize:")),
        ("process_start_time_seconds", "When it started, since 1970.", started),
        ("process_open_fds", "Open files and connections.", files.descriptors.map(|n| n as f64)),
        ("process_max_fds", "How many may be open.", of_line(files.limits, "Max open files", 0)),
        ("process_threads", "Threads.", of_line(files.status, "Threads:", 0)),
    ];
    found.extend(
        gauges.into_iter().filter_map(|(name, help, value)| Some(gauge(name, help, one(value?)))),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(files: &Files<'_>) -> Vec<(String, f64)> {
        let value = |family: &MetricFamily| {
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        families(files).iter().map(|family| (family.name().to_owned(), value(family))).collect()
    }

    #[test]
    fn fields_are_found_whatever_the_program_is_called() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 12345 1 2";
        let found = values(&Files {
            stat: &format!("17 (a) b) {rest}"),
            status: "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t  100 kB\nThreads:\t9\n",
            limits: "Limit  Soft Limit\nMax open files            1024     4096   files\n",
            system: "cpu  1\nbtime 1000\n",
            descriptors: Some(5),
        });
        let expected = [
            ("process_cpu_seconds_total", 3.0),
            ("process_resident_memory_bytes", 102_400.0),
            ("process_virtual_memory_bytes", 2_097_152.0),
            ("process_start_time_seconds", 1123.45),
            ("process_open_fds", 5.0),
            ("process_max_fds", 1024.0),
            ("process_threads", 9.0),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)));
        let nothing = Files { stat: "", status: "", limits: "", system: "", descriptors: None };
        assert_eq!(values(&nothing), []);
    }

    #[test]
    fn this_process_has_them_all() {
        if !std::path::Path::new("/proc/self/stat").exists() {
            return;
        }
        let found = of_this_process();
        assert_eq!(found.len(), 7);
        assert!(found.iter().all(|family| family.name().starts_with("process_")));
    }
}
