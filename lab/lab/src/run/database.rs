//! A database on a file system on the target: PostgreSQL with pgbench, MariaDB with sysbench.
//!
//! Servers run without a network, as `nobody` when the run is root's. File systems on files and volumes
//! are mounted through a loop device, which needs root. A folder as target needs neither.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use voltier_results::result::{Point, Sample};

use super::meter::{self, Meter, Used};
use super::target::{Kind, Target};
use crate::LabError;
use crate::plan::step::DatabaseStep;
use crate::plan::{Database, Engine};
use crate::process::{self, Finished, Running, Stop};

/// The time that a step beside the benchmark may take.
const STEP_LIMIT: Duration = Duration::from_secs(3600);

/// Rows of a table for each unit of scale.
const ROWS_PER_SCALE: u32 = 100_000;

/// A database that serves, with its file system; both are put away with the value.
#[derive(Debug)]
pub(super) struct Server {
    engine: Engine,
    data: PathBuf,
    mount: Option<PathBuf>,
    /// Runs in the foreground: MariaDB. PostgreSQL's own program starts and stops its server.
    running: Option<Running>,
    postgres: PathBuf,
    // Declared last: it is removed when nothing is mounted in it any more.
    folder: tempfile::TempDir,
}

/// One step of the plan.
///
/// # Errors
/// `Missing` programs, what any of them said, or that a file system cannot be mounted.
pub(super) fn step(
    step: DatabaseStep,
    plan: &Database,
    target: &Target,
    server: &mut Option<Server>,
    stop: &Stop,
    point: &mut Point,
) -> Result<(), LabError> {
    match step {
        DatabaseStep::Make => {
            let (made, ns) = meter::timed(|| Server::make(plan, target, stop));
            *server = Some(made?);
            point.metrics.insert("load_seconds".to_owned(), ns as f64 / 1e9);
            Ok(())
        }
        DatabaseStep::Remove => {
            if let Some(server) = server.take() {
                server.stop(std::slice::from_ref(target));
            }
            Ok(())
        }
        DatabaseStep::Run => {
            let server = server.as_ref().ok_or_else(|| LabError::Failed {
                what: "the database".to_owned(),
                detail: "it does not run".to_owned(),
            })?;
            let meter = Meter::begin(target);
            point.started_unix_ms = meter::unix_ms();
            match plan.engine {
                Engine::Pgbench => server.pgbench(plan, stop, point)?,
                Engine::Sysbench => server.sysbench(plan, stop, point)?,
            }
            let transactions = point.metrics.get("transactions").copied().unwrap_or(0.0) as u64;
            meter.fill_in(target, Used::requests(transactions), point);
            Ok(())
        }
    }
}

impl Server {
    fn make(plan: &Database, target: &Target, stop: &Stop) -> Result<Server, LabError> {
        let postgres = match plan.engine {
            Engine::Pgbench => find_postgres()?,
            Engine::Sysbench => {
                for (program, package) in [
                    ("mariadbd", "mariadb-server"),
                    ("mariadb-install-db", "mariadb-server"),
                    ("mariadb", "mariadb-client"),
                    ("sysbench", "sysbench"),
                ] {
                    find(program).ok_or(LabError::Missing { program, package })?;
                }
                PathBuf::new()
            }
        };
        let folder = tempfile::Builder::new().prefix("voltier-lab-").tempdir();
        let folder = folder.map_err(LabError::file(std::env::temp_dir()))?;
        // `nobody` has to get through it.
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open.clone()).map_err(LabError::file(folder.path()))?;
        let mut server = Server {
            engine: plan.engine,
            data: PathBuf::new(),
            mount: None,
            running: None,
            postgres,
            folder,
        };
        let at = server.file_system(plan, target, stop)?;
        server.data = at.join("voltier-lab-database");
        fs::remove_dir_all(&server.data).ok();
        fs::create_dir(&server.data).map_err(LabError::file(&server.data))?;
        if is_root() {
            run(Command::new("chown").arg("nobody:nogroup").arg(&server.data), "chown", stop)?;
        }
        match plan.engine {
            Engine::Pgbench => server.start_postgres(plan, stop)?,
            Engine::Sysbench => server.start_mariadb(plan, stop)?,
        }
        Ok(server)
    }

    /// A folder of a file system on the target.
    fn file_system(
        &mut self,
        plan: &Database,
        target: &Target,
        stop: &Stop,
    ) -> Result<PathBuf, LabError> {
        let device = match &target.kind {
            Kind::Folder(folder) => return Ok(folder.clone()),
            Kind::Paths(paths) => paths[0].clone(),
            Kind::Volume(_) => target.file_export(&self.export())?,
            Kind::Nbd(_) | Kind::Rbd(_) | Kind::Model(_) => {
                return Err(LabError::Target {
                    target: target.given.clone(),
                    why: "cannot carry a file system here: give a file, a device, a folder or \
                          volume:NAME"
                        .to_owned(),
                });
            }
        };
        if !is_root() {
            return Err(LabError::Target {
                target: target.given.clone(),
                why: "needs a file system mounted, which needs root: run as root, or give a folder"
                    .to_owned(),
            });
        }
        let mkfs = format!("mkfs.{}", plan.file_system);
        let force = if plan.file_system == "xfs" { "-f" } else { "-F" };
        run(Command::new(&mkfs).args(["-q", force]).arg(&device), &mkfs, stop)?;
        let mount = self.folder.path().join("mount");
        fs::create_dir(&mount).map_err(LabError::file(&mount))?;
        let mut command = Command::new("mount");
        if !device.starts_with("/dev") {
            command.args(["-o", "loop"]);
        }
        run(command.arg(&device).arg(&mount), "mount", stop)?;
        self.mount = Some(mount.clone());
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&mount, open).map_err(LabError::file(&mount))?;
        Ok(mount)
    }

    fn start_postgres(&self, plan: &Database, stop: &Stop) -> Result<(), LabError> {
        let data = self.data.display().to_string();
        let initdb = self.postgres.join("initdb");
        let mut command = as_nobody(&initdb);
        command.args(["-D", &data, "-A", "trust", "-U", "lab", "--no-instructions"]);
        run(&mut command, "initdb", stop)?;
        self.pg_ctl("start", stop)?;
        let mut command = as_nobody(&pgbench(&self.postgres)?);
        command.args(["-h", &data, "-U", "lab", "-i", "-q", "-s", &plan.scale.to_string()]);
        run(command.arg("postgres"), "pgbench", stop).map(drop)
    }

    fn pg_ctl(&self, verb: &str, stop: &Stop) -> Result<(), LabError> {
        let data = self.data.display().to_string();
        let mut command = as_nobody(&self.postgres.join("pg_ctl"));
        command.args(["-D", &data, "-w", "-m", "fast", "-l", &format!("{data}/log")]);
        let options = format!("-c listen_addresses= -c unix_socket_directories={data}");
        run(command.args(["-o", &options, verb]), "pg_ctl", stop).map(drop)
    }

    /// A run from a fresh server: what it has in memory is gone, what a cache of the volume has stays.
    fn pgbench(&self, plan: &Database, stop: &Stop, point: &mut Point) -> Result<(), LabError> {
        self.pg_ctl("restart", stop)?;
        forget_page_cache();
        let data = self.data.display().to_string();
        let threads = plan.clients.min(threads());
        let mut command = as_nobody(&pgbench(&self.postgres)?);
        command.args(["-h", &data, "-U", "lab", "-M", "prepared", "-P", "1", "-n"]);
        command.args(["-c", &plan.clients.to_string(), "-j", &threads.to_string()]);
        command.args(["-T", &format!("{:.0}", plan.seconds), "postgres"]);
        point.command = words(&command);
        let finished = run(&mut command, "pgbench", stop)?;
        read_pgbench(&finished, point)
    }

    fn start_mariadb(&mut self, plan: &Database, stop: &Stop) -> Result<(), LabError> {
        let data = format!("--datadir={}", self.data.display());
        let mut command = as_nobody(Path::new("mariadb-install-db"));
        command.args(["--no-defaults", &data, "--auth-root-authentication-method=normal"]);
        run(command.arg("--skip-test-db"), "mariadb-install-db", stop)?;
        let socket = format!("--socket={}", self.socket());
        let mut command = as_nobody(&find("mariadbd").unwrap_or_else(|| "mariadbd".into()));
        command.args(["--no-defaults", &data, &socket, "--skip-networking"]);
        let log = self.data.join("server.log");
        let file = fs::File::create(&log).map_err(LabError::file(&log))?;
        command.stdout(file.try_clone().map_err(LabError::file(&log))?).stderr(file);
        self.running = Some(Running::start(&mut command, "mariadbd")?);
        let deadline = process::Deadline::after(Duration::from_secs(60));
        let query = |text: &str| {
            let mut command = Command::new("mariadb");
            command.args(["--no-defaults", &socket, "--user=root", "-e", text]);
            run(&mut command, "mariadb", stop)
        };
        while let Err(error) = query("CREATE DATABASE IF NOT EXISTS lab") {
            if deadline.is_over() {
                return Err(error);
            }
            process::pause(Duration::from_millis(100));
        }
        self.sysbench_command(plan, "prepare", stop).map(drop)
    }

    fn socket(&self) -> String {
        self.data.join("socket").display().to_string()
    }

    fn sysbench_command(
        &self,
        plan: &Database,
        verb: &str,
        stop: &Stop,
    ) -> Result<(Finished, Vec<String>), LabError> {
        let mut command = Command::new("sysbench");
        command.args(["oltp_read_write", "--db-driver=mysql", "--mysql-db=lab"]);
        command.args(["--mysql-user=root", &format!("--mysql-socket={}", self.socket())]);
        command.arg("--tables=1");
        command.arg(format!("--table-size={}", plan.scale * ROWS_PER_SCALE));
        command.arg(format!("--threads={}", plan.clients));
        command.arg(format!("--time={:.0}", plan.seconds));
        command.args(["--report-interval=1", "--percentile=99", verb]);
        let shown = words(&command);
        Ok((run(&mut command, "sysbench", stop)?, shown))
    }

    fn sysbench(&self, plan: &Database, stop: &Stop, point: &mut Point) -> Result<(), LabError> {
        forget_page_cache();
        let (finished, command) = self.sysbench_command(plan, "run", stop)?;
        point.command = command;
        read_sysbench(&finished, point)
    }

    /// Ends the server and unmounts; what fails here is put away as far as it goes.
    pub(super) fn stop(mut self, targets: &[Target]) {
        let never = Stop::default();
        if self.engine == Engine::Pgbench && self.data.exists() {
            let mut command = as_nobody(&self.postgres.join("pg_ctl"));
            command.args(["-D"]).arg(&self.data).args(["-w", "-m", "fast", "stop"]);
            run(&mut command, "pg_ctl", &never).ok();
        }
        if let Some(running) = self.running.take() {
            process::stop_by_pid(running.id().cast_signed(), Duration::from_secs(30));
        }
        if self.mount.is_none() {
            fs::remove_dir_all(&self.data).ok();
        }
        self.unmount();
        for target in targets {
            target.close_file_export(&self.export());
        }
    }

    /// Where a volume is a file.
    fn export(&self) -> PathBuf {
        self.folder.path().join("volume")
    }

    fn unmount(&mut self) {
        if let Some(mount) = self.mount.take() {
            run(Command::new("umount").arg(&mount), "umount", &Stop::default()).ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Figures of pgbench: `tps = 1234.5 (...)`, `latency average = 8.1 ms`, and a line a second.
fn read_pgbench(finished: &Finished, point: &mut Point) -> Result<(), LabError> {
    let mut take = |name: &str, key: &str, separator: char| {
        let line = finished.stdout.lines().find(|line| line.starts_with(key))?;
        let value = line.split_once(separator)?.1.trim();
        let value: f64 = value.split([' ', '/']).next()?.parse().ok()?;
        point.metrics.insert(name.to_owned(), value);
        Some(value)
    };
    let tps = take("tps", "tps = ", '=');
    take("latency_average_ms", "latency average", '=');
    take("latency_stddev_ms", "latency stddev", '=');
    take("transactions", "number of transactions actually processed", ':');
    take("failed_transactions", "number of failed transactions", ':');
    // progress: 1.0 s, 1234.5 tps, lat 8.1 ms stddev 2.0
    for line in finished.stderr.lines().filter_map(|line| line.strip_prefix("progress: ")) {
        let numbers = line.split(' ').filter_map(|word| word.parse::<f64>().ok());
        if let [seconds, tps, latency_ms, ..] = numbers.collect::<Vec<_>>()[..] {
            point.series.push(Sample {
                at_ms: (seconds * 1000.0) as u64,
                iops: tps,
                bytes_per_second: 0.0,
                latency_mean_ns: latency_ms * 1e6,
            });
        }
    }
    found(tps, "pgbench", finished)
}

/// Figures of sysbench: `transactions: 5000 (499.90 per sec.)`, `avg: 8.0`, and a line a second.
fn read_sysbench(finished: &Finished, point: &mut Point) -> Result<(), LabError> {
    let value = |key: &str| {
        let line = finished.stdout.lines().map(str::trim).find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let first = |text: String| text.split(' ').next()?.parse::<f64>().ok();
    let line = value("transactions:");
    let tps = line.as_deref().and_then(|line| line.split_once('('));
    let tps = tps.and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
    let mut put = |name: &str, value: Option<f64>| {
        point.metrics.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("tps", tps);
    put("transactions", line.and_then(first));
    put("latency_average_ms", value("avg:").and_then(first));
    put("latency_p99_ms", value("99th percentile:").and_then(first));
    // [ 1s ] thds: 4 tps: 512.3 qps: ... lat (ms,99%): 12.3 ...
    for line in finished.stdout.lines().filter(|line| line.starts_with("[ ")) {
        let after = |key: &str| {
            line.split_once(key).and_then(|(_, rest)| first(rest.trim_start().to_owned()))
        };
        let seconds = line.trim_start_matches("[ ").split('s').next().map(str::trim);
        let seconds = seconds.and_then(|text| text.parse::<f64>().ok());
        if let (Some(seconds), Some(tps)) = (seconds, after("tps:")) {
            point.series.push(Sample {
                at_ms: (seconds * 1000.0) as u64,
                iops: tps,
                ..Sample::default()
            });
        }
    }
    found(tps, "sysbench", finished)
}

fn found(tps: Option<f64>, what: &str, finished: &Finished) -> Result<(), LabError> {
    match tps {
        Some(tps) if tps > 0.0 => Ok(()),
        _ => Err(LabError::Answer { what: what.to_owned(), detail: finished.last_words() }),
    }
}

fn run(command: &mut Command, what: &str, stop: &Stop) -> Result<Finished, LabError> {
    // Server programs leave descriptors open and change their folder: they begin at the root.
    command.current_dir("/");
    let finished = process::run(command, what, STEP_LIMIT, stop)?;
    match finished.status.success() {
        true => Ok(finished),
        false => Err(LabError::Failed { what: what.to_owned(), detail: finished.last_words() }),
    }
}

/// The program, as `nobody` when we are root: databases refuse to be root's.
fn as_nobody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(program);
    command
}

fn words(command: &Command) -> Vec<String> {
    let arguments = command.get_args().map(|word| word.to_string_lossy().into_owned());
    std::iter::once(command.get_program().to_string_lossy().into_owned()).chain(arguments).collect()
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// Pages that the kernel keeps would be hits of nobody's cache; only root can ask for this.
fn forget_page_cache() {
    rustix::fs::sync();
    if is_root() {
        // Where the system refuses that, the run is warmer than it should be, as it is without root.
        fs::write("/proc/sys/vm/drop_caches", "1").ok();
    }
}

/// The folder with PostgreSQL's server programs.
fn find_postgres() -> Result<PathBuf, LabError> {
    let has_all = |folder: &PathBuf| {
        ["initdb", "pg_ctl", "postgres"].iter().all(|name| folder.join(name).exists())
    };
    let missing = LabError::Missing { program: "postgres", package: "postgresql" };
    let folder = folders().into_iter().find(has_all).ok_or(missing)?;
    pgbench(&folder).map(|_| folder)
}

fn pgbench(postgres: &Path) -> Result<PathBuf, LabError> {
    let beside = postgres.join("pgbench");
    if beside.exists() {
        return Ok(beside);
    }
    let missing = LabError::Missing { program: "pgbench", package: "postgresql-contrib" };
    find("pgbench").ok_or(missing)
}

fn find(program: &str) -> Option<PathBuf> {
    folders().into_iter().map(|folder| folder.join(program)).find(|path| path.exists())
}

/// Where programs are: PostgreSQL's own folders, PATH, and root's.
fn folders() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut folders: Vec<PathBuf> =
        versions.filter_map(Result::ok).map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn finished(stdout: &str, stderr: &str) -> Finished {
        let status = std::process::ExitStatus::from_raw(0);
        Finished { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    #[test]
    fn pgbench_is_read_as_it_prints() {
        let stdout = "transaction type: <builtin: TPC-B (sort of)>\nnumber of clients: 4\n\
            number of transactions actually processed: 2410\n\
            number of failed transactions: 0 (0.000%)\nlatency average = 4.975 ms\n\
            latency stddev = 2.5 ms\ninitial connection time = 8.3 ms\n\
            tps = 803.934 (without initial connection time)\n";
        let stderr = "progress: 1.0 s, 770.0 tps, lat 5.1 ms stddev 2.2, 0 failed\n\
            progress: 2.0 s, 812.5 tps, lat 4.9 ms stddev 2.1, 0 failed\n";
        let mut point = Point::default();
        read_pgbench(&finished(stdout, stderr), &mut point).unwrap();
        assert_eq!(point.metrics["tps"], 803.934);
        assert_eq!(point.metrics["transactions"], 2410.0);
        assert_eq!(point.metrics["latency_average_ms"], 4.975);
        assert_eq!((point.series.len(), point.series[1].iops), (2, 812.5));
        let error = read_pgbench(&finished("", "FATAL: no"), &mut Point::default()).unwrap_err();
        assert!(error.to_string().contains("FATAL: no"), "{error}");
    }

    #[test]
    fn sysbench_is_read_as_it_prints() {
        let stdout = "[ 1s ] thds: 4 tps: 512.30 qps: 10246.0 (r/w/o: 1/2/3) lat (ms,99%): 12.3\n\
            SQL statistics:\n    transactions:                        1540   (513.10 per sec.)\n\
            Latency (ms):\n         avg:                                    7.79\n         \
            99th percentile:                       12.30\n";
        let mut point = Point::default();
        read_sysbench(&finished(stdout, ""), &mut point).unwrap();
        assert_eq!(point.metrics["tps"], 513.10);
        assert_eq!(point.metrics["transactions"], 1540.0);
        assert_eq!(point.metrics["latency_p99_ms"], 12.30);
        assert_eq!((point.series[0].at_ms, point.series[0].iops), (1000, 512.3));
    }
}
