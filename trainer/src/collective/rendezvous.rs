//! How ranks find each other: what the launcher says, and the store where they meet.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::CollectiveError;
use super::fingerprint::{Fingerprint, clock_differences, differences};
use super::life::{Life, within};
use super::nodelist::first_host;
use super::process_group::{GroupOptions, ProcessGroup};
use crate::native::{Group, Said, Store};

/// Ports that Slurm jobs get by their number: below those that systems give out by themselves.
const SLURM_PORTS: std::ops::Range<u64> = 20_000..30_000;

/// Who started the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, `dressage launch`, Kubernetes' PyTorchJob: whoever sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// `srun`.
    Slurm,
}

impl Launcher {
    fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm's srun",
        }
    }
}

/// A rank's place among the others, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Who said so.
    pub launcher: Launcher,
    /// Host of the store.
    pub host: String,
    /// Port of the store.
    pub port: u16,
    /// This rank, from 0.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// This rank among those of its host, from 0: the number of its CUDA device.
    pub local_rank: usize,
    /// Whether this rank runs the store: rank 0, unless the launcher does.
    pub hosts_store: bool,
    /// In front of all keys: a job that was started again must not read what its last attempt wrote.
    pub prefix: String,
}

impl Rendezvous {
    /// What the environment says; none for a process that was started alone.
    ///
    /// torchrun's variables: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, and if there are `LOCAL_RANK`,
    /// `TORCHELASTIC_USE_AGENT_STORE`, `TORCHELASTIC_RESTART_COUNT`. Else Slurm's: `SLURM_PROCID`, `SLURM_NTASKS`,
    /// `SLURM_LOCALID`, the first host of `SLURM_JOB_NODELIST` and a port from `SLURM_JOB_ID` (`MASTER_ADDR` and `MASTER_PORT`
    /// go before those). A single task of Slurm is a process that was started alone.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Variable`] naming the one that is missing or makes no sense.
    pub fn from_env() -> Result<Option<Self>, CollectiveError> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// As [`Self::from_env`], with the variables looked up elsewhere.
    ///
    /// # Errors
    ///
    /// As [`Self::from_env`].
    pub fn from_variables(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, CollectiveError> {
        let is_set = |name: &str| lookup(name).is_some_and(|value| !value.trim().is_empty());
        let rendezvous = if is_set("RANK") || is_set("WORLD_SIZE") {
            Self::of_torchrun(Variables { lookup, launcher: Launcher::Torchrun })?
        } else if is_set("SLURM_PROCID") {
            let variables = Variables { lookup, launcher: Launcher::Slurm };
            if variables.number::<usize>("SLURM_NTASKS")? == 1 {
                return Ok(None);
            }
            Self::of_slurm(variables)?
        } else {
            return Ok(None);
        };
        Ok(Some(rendezvous))
    }

    fn of_torchrun(variables: Variables<'_>) -> Result<Self, CollectiveError> {
        let (rank, world_size) = variables.place("RANK", "WORLD_SIZE")?;
        let agent_store = variables.optional("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let attempt = variables.optional("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
        Ok(Self {
            launcher: variables.launcher,
            host: variables.required("MASTER_ADDR")?,
            port: variables.number("MASTER_PORT")?,
            rank,
            world_size,
            local_rank: variables.number_or("LOCAL_RANK", 0)?,
            hosts_store: rank == 0 && !agent_store,
            // as PyTorch's own ranks, which the agent's store may also serve
            prefix: format!("{}attempt_{attempt}", if agent_store { "/worker/" } else { "" }),
        })
    }

    fn of_slurm(variables: Variables<'_>) -> Result<Self, CollectiveError> {
        let (rank, world_size) = variables.place("SLURM_PROCID", "SLURM_NTASKS")?;
        let host = match variables.optional("MASTER_ADDR") {
            Some(host) => host,
            None => {
                // a step may run on fewer hosts than its job
                let name = "SLURM_STEP_NODELIST";
                let name = if variables.optional(name).is_some() { name } else { "SLURM_JOB_NODELIST" };
                let list = variables.required(name)?;
                first_host(&list).ok_or_else(|| variables.problem(name, format!("= `{list}` is no list of hosts")))?
            }
        };
        let port = match variables.optional("MASTER_PORT") {
            Some(_) => variables.number("MASTER_PORT")?,
            None => {
                let job: u64 = variables.number("SLURM_JOB_ID")?;
                // the remainder is below the length of a range of ports
                (SLURM_PORTS.start + job % (SLURM_PORTS.end - SLURM_PORTS.start)) as u16
            }
        };
        let attempt = variables.optional("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
        Ok(Self {
            launcher: variables.launcher,
            host,
            port,
            rank,
            world_size,
            local_rank: variables.number_or("SLURM_LOCALID", 0)?,
            hosts_store: rank == 0,
            prefix: format!("attempt_{attempt}"),
        })
    }

    /// Where the store is.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Meets the other ranks, makes sure that all of them are to do the same, and forms the group. Waits for all of them.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Rendezvous`] naming the ranks that did not come within `join_timeout`, or why the store could not be
    /// reached; [`CollectiveError::Refused`], on all ranks, if one differs in its fingerprint or its clock.
    pub fn join(&self, fingerprint: &Fingerprint, options: &GroupOptions) -> Result<ProcessGroup, CollectiveError> {
        let (rendezvous, fingerprint, given) = (self.clone(), fingerprint.clone(), options.clone());
        // c10d's limits do not cover a store that stops to answer
        let limit = options.join_timeout.saturating_add(Duration::from_secs(10));
        let joined = within(limit, move || rendezvous.join_now(&fingerprint, &given));
        joined.unwrap_or_else(|| Err(self.failed("the store does not answer")))
    }

    fn join_now(&self, fingerprint: &Fingerprint, options: &GroupOptions) -> Result<ProcessGroup, CollectiveError> {
        let meeting = Meeting { rendezvous: self, deadline: Instant::now() + options.join_timeout };
        let failed = |said: String| self.failed(&said);
        let (whole, _) =
            Store::open(&self.host, self.port, self.hosts_store, None, options.join_timeout).map_err(failed)?;
        let store = whole.prefixed(&self.prefix).map_err(failed)?;

        let texts = meeting.exchange(&store, "fingerprint", &fingerprint.to_text())?;
        let fingerprints: Vec<_> = texts.iter().map(|text| Fingerprint::from_text(text)).collect();
        if let Some(differences) = differences(&fingerprints) {
            return Err(meeting.refused(&store, &differences));
        }
        let group = {
            let timeout = ProcessGroup::operation_timeout(options.timeout);
            let store = store.prefixed("gloo").map_err(failed)?;
            Group::join_gloo(&store, self.rank, self.world_size, timeout, &options.interfaces).map_err(failed)?
        };
        group.barrier().and_then(|work| work.wait(meeting.left())).map_err(failed)?;
        let clocks = meeting.exchange(&store, "clock_ms", &clock_ms().to_string())?;
        let clocks: Vec<i64> = clocks.iter().map(|text| text.parse().unwrap_or(0)).collect();
        if let Some(differences) = clock_differences(&clocks, options.clock_offset_max) {
            return Err(meeting.refused(&store, &differences));
        }
        let of_life = || store.another_connection();
        let (reading, writing) = (of_life().map_err(failed)?, of_life().map_err(failed)?);
        let beat = ProcessGroup::beat(options.timeout);
        let life = Life::begin(reading, writing, self.rank, self.world_size, beat);
        Ok(ProcessGroup::new(self.rank, self.world_size, options.timeout, self.hosts_store, (group, whole), life))
    }

    fn failed(&self, said: &str) -> CollectiveError {
        CollectiveError::Rendezvous {
            rank: self.rank,
            world_size: self.world_size,
            place: self.place().into(),
            said: said.lines().next().unwrap_or_default().into(),
        }
    }
}

/// One rank's part in a meeting of all.
struct Meeting<'a> {
    rendezvous: &'a Rendezvous,
    deadline: Instant,
}

impl Meeting<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What every rank puts under a name.
    fn exchange(&self, store: &Store, what: &str, own: &str) -> Result<Vec<String>, CollectiveError> {
        let Rendezvous { rank, world_size, .. } = *self.rendezvous;
        let failed = |said: String| self.rendezvous.failed(&said);
        store.set(&format!("{what}/{rank}"), own).map_err(failed)?;
        let mut found = Vec::with_capacity(world_size);
        for other in 0..world_size {
            match store.get(&format!("{what}/{other}"), self.left()) {
                Ok(text) => found.push(text),
                Err(said) => return Err(self.rendezvous.failed(&self.missing(store, what).unwrap_or(said))),
            }
        }
        Ok(found)
    }

    /// The ranks that did not come; none if they all did, or the store cannot be asked.
    fn missing(&self, store: &Store, what: &str) -> Option<String> {
        let absent = |rank: &usize| matches!(store.has(&format!("{what}/{rank}")), Ok(false));
        let missing: Vec<String> =
            (0..self.rendezvous.world_size).filter(absent).map(|rank| rank.to_string()).collect();
        let waited = if missing.len() == 1 { "rank" } else { "ranks" };
        (!missing.is_empty()).then(|| format!("{waited} {} did not come in time", missing.join(", ")))
    }

    /// The refusal; the rank with the store waits until the others know, too.
    fn refused(&self, store: &Store, differences: &str) -> CollectiveError {
        let Rendezvous { rank, world_size, hosts_store, .. } = *self.rendezvous;
        let told: Said<()> = store.set(&format!("refused/{rank}"), "");
        if told.is_ok() && hosts_store {
            let limit = Instant::now() + self.left().min(Duration::from_secs(5));
            for other in 0..world_size {
                let left = limit.saturating_duration_since(Instant::now());
                if store.get(&format!("refused/{other}"), left).is_err() {
                    break;
                }
            }
        }
        CollectiveError::Refused { rank, world_size, differences: differences.into() }
    }
}

/// Milliseconds since 1970, as this host counts them.
fn clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A launcher's variables, with its name for messages.
#[derive(Clone, Copy)]
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    launcher: Launcher,
}

impl Variables<'_> {
    fn optional(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn required(&self, name: &str) -> Result<String, CollectiveError> {
        self.optional(name).ok_or_else(|| self.problem(name, "is not set".to_owned()))
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> Result<N, CollectiveError> {
        let value = self.required(name)?;
        value.parse().map_err(|_| self.problem(name, format!("= `{value}` is no number that it could be")))
    }

    fn number_or<N: std::str::FromStr>(&self, name: &str, otherwise: N) -> Result<N, CollectiveError> {
        if self.optional(name).is_some() { self.number(name) } else { Ok(otherwise) }
    }

    /// Rank and number of ranks.
    fn place(&self, rank: &'static str, world_size: &'static str) -> Result<(usize, usize), CollectiveError> {
        let (at, of) = (self.number::<usize>(rank)?, self.number::<usize>(world_size)?);
        if at < of {
            return Ok((at, of));
        }
        Err(self.problem(rank, format!("= {at} is not below {world_size} = {of}")))
    }

    fn problem(&self, variable: &str, problem: String) -> CollectiveError {
        CollectiveError::Variable { variable: variable.into(), problem: problem.into(), launcher: self.launcher.name() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Rendezvous>, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Rendezvous::from_variables(&find).map_err(|error| error.to_string())
    }

    const TORCHRUN: [(&str, &str); 5] =
        [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];

    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_JOB_NODELIST", "node[003-004]"),
        ("SLURM_JOB_ID", "1234567"),
    ];

    #[test]
    fn torchruns_variables_are_honoured() {
        let found = of(&TORCHRUN).unwrap().unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (3, 8, 1));
        assert_eq!((found.place().as_str(), found.hosts_store), ("node1:29500", false));
        assert_eq!(found.prefix, "attempt_0");
        let first = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        assert!(of(&first).unwrap().unwrap().hosts_store);
    }

    #[test]
    fn the_agents_store_is_hosted_by_no_rank() {
        let agent = [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RESTART_COUNT", "2"), ("RANK", "0")];
        let found = of(&[&agent, &TORCHRUN[1..]].concat()).unwrap().unwrap();
        assert_eq!((found.hosts_store, found.prefix.as_str()), (false, "/worker/attempt_2"));
    }

    #[test]
    fn slurms_variables_are_honoured() {
        let found = of(&SLURM).unwrap().unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank, found.hosts_store), (0, 2, 0, true));
        assert_eq!(found.place(), "node003:24567");
        let elsewhere = [&SLURM[..], &[("MASTER_ADDR", "login"), ("MASTER_PORT", "77")]].concat();
        assert_eq!(of(&elsewhere).unwrap().unwrap().place(), "login:77");
        let step = [&SLURM[..], &[("SLURM_STEP_NODELIST", "node004")]].concat();
        assert_eq!(of(&step).unwrap().unwrap().host, "node004");
    }

    #[test]
    fn a_process_that_was_started_alone_has_no_rendezvous() {
        assert_eq!(of(&[("MASTER_PORT", "29500")]), Ok(None));
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), Ok(None));
    }

    #[test]
    fn a_variable_that_is_missing_or_makes_no_sense_is_named() {
        for (variables, words) in [
            (vec![("RANK", "0")], ["WORLD_SIZE is not set", "torchrun"]),
            (vec![("WORLD_SIZE", "2")], ["RANK is not set", "torchrun"]),
            (vec![("RANK", "2"), ("WORLD_SIZE", "2")], ["RANK = 2 is not below WORLD_SIZE = 2", "torchrun"]),
            (TORCHRUN[..3].to_vec(), ["MASTER_ADDR is not set", "torchrun"]),
            ([&TORCHRUN[..4], &[("MASTER_PORT", "70000")]].concat(), ["MASTER_PORT = `70000`", "no number"]),
            ([&[("RANK", "x")], &TORCHRUN[1..]].concat(), ["RANK = `x`", "no number"]),
            (SLURM[..1].to_vec(), ["SLURM_NTASKS is not set", "srun"]),
            (SLURM[..4].to_vec(), ["SLURM_JOB_ID is not set", "srun"]),
            ([&SLURM[..3], &[("SLURM_JOB_NODELIST", "n[1")]].concat(), ["SLURM_JOB_NODELIST = `n[1`", "list of hosts"]),
        ] {
            let error = of(&variables).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{variables:?}: {error}");
        }
    }
}
