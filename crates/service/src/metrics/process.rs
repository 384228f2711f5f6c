//! What the system says of this process, from `/proc`. On a system without it the values stay zero.

use std::{fs, sync::Mutex};

use prometheus::{Counter, Gauge, IntGauge};

use super::Registry;

/// Linux gives process times in units of 1/100 s on every architecture Semel runs on (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn register(registry: &Registry) {
    let gauge = |name: &str, help: &str| {
        let gauge = IntGauge::new(name, help).expect("the name is a literal that Prometheus allows");
        registry.register(Box::new(gauge.clone()));
        gauge
    };
    let memory = gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
    let threads = gauge("process_threads", "Number of threads.");
    let files = gauge("process_open_fds", "Number of open file descriptors.");
    let files_max = gauge("process_max_fds", "Maximum number of open file descriptors.");
    let cpu = Counter::new("process_cpu_seconds_total", "User and system CPU time spent in seconds.")
        .expect("the name is a literal that Prometheus allows");
    registry.register(Box::new(cpu.clone()));
    let uptime = Gauge::new("semel_uptime_seconds", "Seconds since the process began to serve metrics.")
        .expect("the name is a literal that Prometheus allows");
    registry.register(Box::new(uptime.clone()));

    let started = tokio::time::Instant::now();
    let cpu_seen = Mutex::new(());
    registry.on_scrape(move || {
        uptime.set(started.elapsed().as_secs_f64());
        if let Ok(status) = fs::read_to_string("/proc/self/status") {
            if let Some(kib) = field(&status, "VmRSS:") {
                memory.set(kib.saturating_mul(1024));
            }
            if let Some(count) = field(&status, "Threads:") {
                threads.set(count);
            }
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // The directory being read is one of them.
            files.set(i64::try_from(entries.count()).unwrap_or(i64::MAX) - 1);
        }
        if let Ok(limits) = fs::read_to_string("/proc/self/limits")
            && let Some(soft) = field(&limits, "Max open files")
        {
            files_max.set(soft);
        }
        if let Some(seconds) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(cpu_seconds) {
            // Two scrapes at once must not both add the same difference.
            let _one = cpu_seen.lock();
            cpu.inc_by((seconds - cpu.get()).max(0.0));
        }
    });
}

/// The first number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User plus system time of `/proc/self/stat`: fields 14 and 15, counted after the command's name, which stands in
/// parentheses and may itself hold spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 150 0 0 20 0 3 0 100";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(cpu_seconds("nonsense"), None);
    }
}
