//! Several clients at once through fio's server mode: network namespaces, local sockets, or hosts.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use voltier_results::result::{ClientResult, Point, Status};

use super::load::{LoadRunner, counting, file_name};
use super::merge;
use super::meter::{self, Meter, Used};
use super::target::Target;
use crate::LabError;
use crate::fio::{self, Job, Outcome};
use crate::plan::{Clients, Transport};
use crate::process::{self, Running, Stop};

/// fio's port.
const PORT: u16 = 8765;

/// Window of the clients' logs.
const LOG_MS: u64 = 100;

/// The time that `ip` may take, and a server until it answers.
const SETUP_LIMIT: Duration = Duration::from_secs(20);

/// The name of fio's own sum of all clients; ours is made of bins.
const ALL: &str = "All clients";

/// Clients that wait for work. Servers end and namespaces go with the value.
#[derive(Debug)]
pub(super) struct Crowd {
    /// As fio's `--client` takes them.
    addresses: Vec<String>,
    // Ended before the namespaces they live in are removed.
    _servers: Vec<Running>,
    _network: Option<Network>,
    _folder: Option<tempfile::TempDir>,
}

impl Crowd {
    /// Starts as many servers as the plan needs, or takes the hosts it names.
    ///
    /// # Errors
    /// When namespaces need root, a program is missing, or a server does not come up.
    pub(super) fn gather(plan: &Clients, stop: &Stop) -> Result<Crowd, LabError> {
        let most = plan.clients.iter().copied().max().unwrap_or(1);
        match plan.transport {
            Transport::Hosts => Ok(Crowd {
                addresses: plan.hosts.clone(),
                _servers: Vec::new(),
                _network: None,
                _folder: None,
            }),
            Transport::Local => Crowd::local(most, stop),
            Transport::Namespaces => Crowd::namespaces(most, stop),
        }
    }

    fn local(most: u32, stop: &Stop) -> Result<Crowd, LabError> {
        let folder = tempfile::Builder::new().prefix("voltier-lab-").tempdir();
        let folder = folder.map_err(LabError::file(std::env::temp_dir()))?;
        let (mut servers, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..most {
            let socket = folder.path().join(number.to_string());
            let address = format!("sock:{}", socket.display());
            servers.push(serve(Command::new("fio"), &address)?);
            wait_for(&address, stop, || socket.exists())?;
            addresses.push(address);
        }
        Ok(Crowd { addresses, _servers: servers, _network: None, _folder: Some(folder) })
    }

    fn namespaces(most: u32, stop: &Stop) -> Result<Crowd, LabError> {
        let network = Network::make(most, stop)?;
        let (mut servers, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..most {
            let host = network.host(number + 2);
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &network.space(number), "fio"]);
            servers.push(serve(command, &format!("ip:{host},{PORT}"))?);
            addresses.push(format!("ip:{host},{PORT}"));
            let socket: SocketAddr = format!("{host}:{PORT}").parse().map_err(|_| {
                LabError::Failed { what: host.clone(), detail: "no address".to_owned() }
            })?;
            wait_for(&host, stop, || {
                TcpStream::connect_timeout(&socket, Duration::from_millis(200)).is_ok()
            })?;
        }
        Ok(Crowd { addresses, _servers: servers, _network: Some(network), _folder: None })
    }

    /// All clients of a point at once, each with the job on its own part of the target.
    ///
    /// # Errors
    /// As a load; also when a client does not answer.
    pub(super) fn measure(
        &self,
        runner: &LoadRunner<'_>,
        job: &Job,
        target: &Target,
        point: &mut Point,
    ) -> Result<(), LabError> {
        let count = point.axes.clients.unwrap_or(1) as usize;
        let name = file_name(&point.id, "");
        let raw = runner.raw.join(format!("{name}.json"));
        let mut command = vec![
            "--output-format=json+".to_owned(),
            format!("--output={}", raw.display()),
            "--eta=never".to_owned(),
        ];
        for (number, address) in self.addresses.iter().take(count).enumerate() {
            let path = runner.raw.join(format!("{name},client={number}.fio"));
            let mut text = job_file(runner, job, target, number as u64)?;
            // Logs are named by the address; a path in a file's name would not do.
            if !address.starts_with("sock:") {
                text.push_str(&logging(&runner.raw.join(format!("{name},client={number}"))));
            }
            fs::write(&path, text).map_err(LabError::file(&path))?;
            command.push(format!("--client={address}"));
            command.push(path.display().to_string());
        }
        let meter = Meter::begin(target);
        point.started_unix_ms = meter::unix_ms();
        point.command = command.clone();
        point.command.insert(0, "fio".to_owned());
        let ran = runner.fio.run_to(&command, &raw, fio::limit([job]), runner.stop)?;
        let clients: Vec<Outcome> =
            ran.outcomes.into_iter().filter(|outcome| outcome.job != ALL).collect();
        let spans: Vec<_> = (0..count)
            .map(|number| Span::read(runner.raw, &format!("{name},client={number}_iops")))
            .collect();
        fill_in(point, &clients, count, &spans);
        if ran.was_cut {
            point.status = Status::Partial("interrupted".to_owned());
        }
        let process_us = clients.iter().map(|client| client.cpu_us).sum();
        // The threads that make the requests are those of the servers, not of this program of fio.
        let used = Used { process_us, ..Used::requests(super::load::requests(point)) };
        meter.fill_in(target, used, point);
        Ok(())
    }
}

fn fill_in(point: &mut Point, clients: &[Outcome], wanted: usize, spans: &[Option<Span>]) {
    let began = |number: usize| spans.get(number)?.as_ref().map(|span| span.begin_ms);
    let result = |(number, outcome): (usize, &Outcome)| ClientResult {
        client: outcome.host.clone().unwrap_or_else(|| format!("client {number}")),
        started_unix_ms: began(number).unwrap_or(point.started_unix_ms),
        read: outcome.read.clone(),
        write: outcome.write.clone(),
    };
    point.clients = clients.iter().enumerate().map(result).collect();
    (point.read, point.write) = merge::outcomes(clients);
    if clients.len() != wanted {
        let why = format!("{} of {wanted} clients answered", clients.len());
        point.status = Status::Invalid(why);
        return;
    }
    let seconds =
        |client: &Outcome| client.flows().map(|flow| flow.runtime_ns as f64 / 1e9).reduce(f64::max);
    let times: Vec<f64> = clients.iter().filter_map(seconds).collect();
    let first = times.iter().copied().fold(f64::INFINITY, f64::min);
    let last = times.iter().copied().fold(0.0, f64::max);
    point.metrics.insert("first_done_s".to_owned(), first);
    point.metrics.insert("last_done_s".to_owned(), last);
    if let Some(spans) = spans.iter().map(Option::as_ref).collect::<Option<Vec<&Span>>>() {
        common_interval(point, &spans);
    }
}

/// Keeps the interval in which all clients were active. Where the interval was less than half
/// of a client's own time, the point is not to be used.
fn common_interval(point: &mut Point, spans: &[&Span]) {
    let begin = spans.iter().map(|span| span.begin_ms).max().unwrap_or(0);
    let end = spans.iter().map(|span| span.end_ms).min().unwrap_or(0);
    let longest = spans.iter().map(|span| span.end_ms - span.begin_ms).max().unwrap_or(0);
    let first = spans.iter().map(|span| span.begin_ms).min().unwrap_or(0);
    let common = end.saturating_sub(begin);
    let requests: f64 = spans.iter().map(|span| span.requests(begin, end)).sum();
    let mut put = |name: &str, value: f64| point.metrics.insert(name.to_owned(), value);
    put("start_skew_ms", (begin - first) as f64);
    put("common_interval_s", common as f64 / 1e3);
    if common > 0 {
        put("common_iops", requests / (common as f64 / 1e3));
    }
    // Starts are a tenth of a second apart and more: a loss that the analysis weighs by its share.
    if common * 2 < longest {
        let why = format!("all clients were active for {common} of {longest} ms only");
        point.status = Status::Invalid(why);
    }
}

/// When a client was active and what it did then, by its log.
#[derive(Debug, Default)]
struct Span {
    begin_ms: u64,
    end_ms: u64,
    /// End of a window and requests in it.
    windows: Vec<(u64, f64)>,
}

impl Span {
    /// The rows of all files in a folder whose names begin so.
    fn read(folder: &Path, begin: &str) -> Option<Span> {
        let mut span = Span { begin_ms: u64::MAX, ..Span::default() };
        for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
            if !entry.file_name().to_string_lossy().starts_with(begin) {
                continue;
            }
            for line in fs::read_to_string(entry.path()).ok()?.lines() {
                span.add(line);
            }
        }
        (!span.windows.is_empty()).then_some(span)
    }

    /// `time_ms, iops, ...`: one row a window, process and direction.
    fn add(&mut self, line: &str) -> Option<()> {
        let mut fields = line.split(',').map(str::trim);
        let at: u64 = fields.next()?.parse().ok()?;
        let iops: f64 = fields.next()?.parse().ok()?;
        self.begin_ms = self.begin_ms.min(at.saturating_sub(LOG_MS));
        self.end_ms = self.end_ms.max(at);
        self.windows.push((at, iops * LOG_MS as f64 / 1e3));
        Some(())
    }

    /// Requests between two moments; of a window that is cut its share.
    fn requests(&self, begin_ms: u64, end_ms: u64) -> f64 {
        let share = |(at, requests): &(u64, f64)| {
            let (from, to) = ((at - LOG_MS).max(begin_ms), (*at).min(end_ms));
            requests * to.saturating_sub(from) as f64 / LOG_MS as f64
        };
        self.windows.iter().map(share).sum()
    }
}

/// A log of requests by the clock that all clients share, or should.
fn logging(prefix: &Path) -> String {
    format!(
        "write_iops_log={}\nlog_avg_msec={LOG_MS}\nlog_unix_epoch=1\nper_job_logs=0\n",
        prefix.display()
    )
}

/// The job as a file for one client.
fn job_file(
    runner: &LoadRunner<'_>,
    job: &Job,
    target: &Target,
    number: u64,
) -> Result<String, LabError> {
    let for_fio = target.for_fio(runner.engine).ok_or_else(|| LabError::Target {
        target: target.given.clone(),
        why: "is a folder: this plan needs a file, a device or a volume".to_owned(),
    })?;
    let mut text = format!("[{}]\n", job.name);
    for (key, value) in job.options(&for_fio).into_iter().filter(|(key, _)| *key != "name") {
        match value {
            Some(value) => text.push_str(&format!("{key}={value}\n")),
            None => text.push_str(&format!("{key}\n")),
        }
    }
    for option in counting() {
        text.push_str(&format!("{}\n", option.trim_start_matches('-')));
    }
    text.push_str(&format!("unique_filename=0\noffset={}\n", number * job.size_bytes));
    Ok(text)
}

fn serve(mut command: Command, address: &str) -> Result<Running, LabError> {
    command.arg(format!("--server={address}")).stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(command.current_dir(std::env::temp_dir()), "fio --server")
}

fn wait_for(what: &str, stop: &Stop, is_there: impl Fn() -> bool) -> Result<(), LabError> {
    let deadline = process::Deadline::after(SETUP_LIMIT);
    while !is_there() {
        stop.check()?;
        if deadline.is_over() {
            return Err(LabError::Timeout {
                what: format!("the start of fio's server at {what}"),
                seconds: SETUP_LIMIT.as_secs(),
            });
        }
        process::pause(Duration::from_millis(20));
    }
    Ok(())
}

/// A bridge with one namespace a client, each with a link of its own; removed with the value.
#[derive(Debug)]
struct Network {
    number: u32,
    spaces: u32,
}

impl Network {
    fn make(spaces: u32, stop: &Stop) -> Result<Network, LabError> {
        if !super::database::is_root() {
            return Err(LabError::Plan {
                what: "transport = \"namespaces\"".to_owned(),
                why: "network namespaces need root: run as root, or use --set transport=local"
                    .to_owned(),
            });
        }
        if !["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"]
            .iter()
            .any(|p| Path::new(p).exists())
        {
            return Err(LabError::Missing { program: "ip", package: "iproute2" });
        }
        let network = Network { number: std::process::id(), spaces };
        let bridge = network.bridge();
        ip(&["link", "add", &bridge, "type", "bridge"], stop)?;
        ip(&["addr", "add", &format!("{}/24", network.host(1)), "dev", &bridge], stop)?;
        ip(&["link", "set", &bridge, "up"], stop)?;
        for number in 0..spaces {
            let (space, link) = (network.space(number), network.link(number));
            ip(&["netns", "add", &space], stop)?;
            ip(
                &["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &space],
                stop,
            )?;
            ip(&["link", "set", &link, "master", &bridge, "up"], stop)?;
            let address = format!("{}/24", network.host(number + 2));
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"], stop)?;
            ip(&["-n", &space, "link", "set", "eth0", "up"], stop)?;
            ip(&["-n", &space, "link", "set", "lo", "up"], stop)?;
        }
        Ok(network)
    }

    fn bridge(&self) -> String {
        format!("vl{}", self.number)
    }

    fn space(&self, number: u32) -> String {
        format!("voltier-lab-{}-{number}", self.number)
    }

    fn link(&self, number: u32) -> String {
        format!("vl{}n{number}", self.number)
    }

    fn host(&self, last: u32) -> String {
        format!("10.213.{}.{last}", self.number % 250)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let never = Stop::default();
        for number in 0..self.spaces {
            // A link goes with the namespace that holds its other end.
            ip(&["netns", "del", &self.space(number)], &never).ok();
            ip(&["link", "del", &self.link(number)], &never).ok();
        }
        ip(&["link", "del", &self.bridge()], &never).ok();
    }
}

fn ip(arguments: &[&str], stop: &Stop) -> Result<(), LabError> {
    let what = format!("ip {}", arguments.join(" "));
    let program = ["/usr/sbin/ip", "/sbin/ip"].map(PathBuf::from);
    let program = program.into_iter().find(|path| path.exists()).unwrap_or_else(|| "ip".into());
    let finished = process::run(Command::new(program).args(arguments), &what, SETUP_LIMIT, stop)?;
    match finished.status.success() {
        true => Ok(()),
        false => Err(LabError::Failed { what, detail: finished.last_words() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_done_while_all_were_active_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, rows: &[(u64, u64)]| {
            let rows = rows.iter().map(|(at, iops)| format!("{at}, {iops}, 0, 0, 0\n"));
            fs::write(folder.path().join(name), rows.collect::<String>()).unwrap();
        };
        let begin = 1_700_000_000_000;
        let windows = |from: u64, count: u64| -> Vec<(u64, u64)> {
            (1..=count).map(|window| (begin + from + window * 100, 1000)).collect()
        };
        write("p,client=0_iops.log.10.0.0.2", &windows(0, 20));
        write("p,client=1_iops.log.10.0.0.3", &windows(50, 20));
        let span = |number| Span::read(folder.path(), &format!("p,client={number}_iops")).unwrap();
        let (one, other) = (span(0), span(1));
        let mut point = Point::default();
        common_interval(&mut point, &[&one, &other]);
        assert_eq!(point.metrics["start_skew_ms"], 50.0);
        assert_eq!(point.metrics["common_interval_s"], 1.95);
        assert!((point.metrics["common_iops"] - 2000.0).abs() < 1e-6, "{:?}", point.metrics);
        assert_eq!(point.status, Status::Ok);

        write("p,client=1_iops.log.10.0.0.3", &windows(1500, 20));
        common_interval(&mut point, &[&one, &span(1)]);
        assert!(matches!(point.status, Status::Invalid(_)), "{:?}", point.status);
        assert!(Span::read(folder.path(), "q").is_none());
    }
}
