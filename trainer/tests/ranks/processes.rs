//! Starts this program again as ranks, and collects what they print. A rank runs the one test that is called `one_rank`, which
//! looks up its part by name.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dressage_trainer::collective::{CollectiveError, Fingerprint, GroupOptions, ProcessGroup, Rendezvous};

pub(crate) const PART: &str = "DRESSAGE_TEST_PART";

/// What makes a rank of this program.
pub(crate) const ONE_RANK: [&str; 3] = ["processes::one_rank", "--exact", "--nocapture"];

/// Nothing here may take longer, however busy the machine is.
const ALL_BUSY: Duration = Duration::from_secs(480);

/// What a rank does; what it gives is printed as one line.
pub(crate) type Part = fn(&Rendezvous) -> String;

/// Parts by name.
const PARTS: &[&[(&str, Part)]] = &[
    crate::exchange::PARTS,
    crate::failures::PARTS,
    crate::meeting::PARTS,
    crate::pytorch::PARTS,
    crate::training::checkpoints::PARTS,
    crate::training::memory::PARTS,
    crate::training::parity::PARTS,
    crate::training::together::PARTS,
];

/// Started by the others; alone it does nothing.
#[test]
fn one_rank() {
    let Ok(name) = std::env::var(PART) else { return };
    tch::set_num_threads(1);
    let rendezvous = Rendezvous::from_env().unwrap().unwrap();
    let (_, part) = PARTS.iter().copied().flatten().find(|(known, _)| *known == name).unwrap();
    println!("\nsaid: {}", part(&rendezvous));
}

/// A process that is a rank.
pub(crate) struct Rank(Child);

/// What a rank said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) said: String,
    pub(crate) success: bool,
}

/// Ranks that were started together.
pub(crate) struct Ranks {
    ranks: Vec<Rank>,
    started: Instant,
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Ranks {
    pub(crate) fn start(part: &str, world_size: usize) -> Self {
        Self::start_with(part, world_size, &|_| Vec::new())
    }

    /// With more variables, by rank.
    pub(crate) fn start_with(
        part: &str,
        world_size: usize,
        more: &dyn Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let command = |rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(ONE_RANK).env(PART, part).envs(more(rank));
            command
        };
        Self::of((0..world_size).map(command).collect())
    }

    /// Any programs, each as a rank among them. What they are told already stays.
    pub(crate) fn of(commands: Vec<Command>) -> Self {
        let (port, world_size) = (free_port().to_string(), commands.len().to_string());
        let rank = |(rank, mut command): (usize, Command)| {
            let rank = rank.to_string();
            let place = [("RANK", &rank), ("LOCAL_RANK", &rank), ("WORLD_SIZE", &world_size), ("MASTER_PORT", &port)];
            let told: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
            command.envs(place.into_iter().filter(|(name, _)| told.iter().all(|told| told != name)));
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo")]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Rank(command.spawn().unwrap())
        };
        Self { ranks: commands.into_iter().enumerate().map(rank).collect(), started: Instant::now() }
    }

    /// SIGKILL, SIGSTOP and the like.
    pub(crate) fn signal(&self, rank: usize, name: &str) {
        let process = self.ranks[rank].0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &process]).status().unwrap().success());
    }

    /// Waits for those ranks; the others are killed.
    pub(crate) fn wait_for(mut self, wanted: &[usize]) -> Vec<Ended> {
        let deadline = self.started + ALL_BUSY;
        let ranks = &mut self.ranks;
        while wanted.iter().any(|at| ranks[*at].0.try_wait().unwrap().is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = |rank: &mut Rank| {
            let _ = rank.0.kill();
            let status = rank.0.wait().unwrap();
            let read = |pipe: &mut dyn Read| {
                let mut bytes = Vec::new();
                pipe.read_to_end(&mut bytes).unwrap();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let (out, errors) = (read(rank.0.stdout.as_mut().unwrap()), read(rank.0.stderr.as_mut().unwrap()));
            let said = out.lines().find_map(|line| line.strip_prefix("said: ")).map(str::to_owned);
            let said = said.unwrap_or_else(|| format!("nothing: {out}\n{errors}"));
            Ended { said, success: status.success() }
        };
        self.ranks.iter_mut().map(ended).collect()
    }

    /// What every rank said; all of them must end well.
    #[track_caller]
    pub(crate) fn said(self) -> Vec<String> {
        let all: Vec<usize> = (0..self.ranks.len()).collect();
        let ended = self.wait_for(&all);
        for (rank, ended) in ended.iter().enumerate() {
            assert!(ended.success, "rank {rank}: {}", ended.said);
        }
        ended.into_iter().map(|ended| ended.said).collect()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Limits for loopback on a busy machine.
pub(crate) fn options() -> GroupOptions {
    GroupOptions { timeout: Duration::from_secs(60), join_timeout: Duration::from_secs(60), ..GroupOptions::default() }
}

pub(crate) fn join(rendezvous: &Rendezvous, options: &GroupOptions) -> Result<ProcessGroup, CollectiveError> {
    rendezvous.join(&Fingerprint::new().with("version", "1"), options)
}
