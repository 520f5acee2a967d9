//! What a check has seen so far: tallies by attempt, references by hash, and the problems found.

use std::collections::{BTreeMap, HashMap, HashSet};

use dressage_schemas::Table;

use super::checkpoints::CheckpointLeftovers;
use super::plans::PlanLeftovers;
use super::{Problem, Severity};
use crate::error::Result;
use crate::lake::Lake;
use crate::maintain::info::list_objects;
use crate::snapshot::Snapshot;

const EXAMPLES_MAX: usize = 5;

/// One attempt to write one trajectory: (trajectory_key, write_id).
pub(super) type Attempt = (i64, i64);

/// What a trajectory row promises, and what its steps add up to.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) steps_promised: i64,
    pub(super) tokens_promised: i64,
    pub(super) steps: i64,
    pub(super) tokens: i64,
    pub(super) index_sum: i64,
    pub(super) index_max: i64,
}

/// Which fragments are old enough that what nothing refers to in them is left over.
#[derive(Debug, Default)]
pub(super) struct Ages {
    old: HashMap<Table, HashSet<u64>>,
}

impl Ages {
    /// A fragment is as old as its data file.
    pub(super) async fn read(lake: &Lake, snapshot: &Snapshot, written_before: i64) -> Result<Self> {
        let mut old: HashMap<Table, HashSet<u64>> = HashMap::new();
        for table in [Table::Steps, Table::Rewards, Table::IngestLog, Table::Contents, Table::Batches, Table::Streamed]
        {
            let objects = list_objects(lake, table).await?;
            let is_old =
                |path: &str| objects.get(&format!("data/{path}")).is_some_and(|o| o.modified_at < written_before);
            let fragments = snapshot.dataset(table)?.iter_fragments();
            let ids = fragments.filter(|f| f.files.iter().all(|file| is_old(&file.path))).map(|f| f.id);
            old.insert(table, ids.collect());
        }
        Ok(Self { old })
    }

    pub(super) fn is_old(&self, table: Table, row_address: u64) -> bool {
        self.old.get(&table).is_some_and(|ids| ids.contains(&(row_address >> 32)))
    }
}

/// What a check has seen so far.
pub(super) struct Ledger {
    pub(super) ages: Ages,
    pub(super) attempts: HashMap<Attempt, Tally>,
    pub(super) keys: HashMap<i64, u64>,
    /// Content hashes that steps and other contents name.
    pub(super) referenced: HashSet<u128>,
    /// Attempts without a trajectory row, old enough to be left over, by table.
    pub(super) orphans: BTreeMap<Table, HashSet<Attempt>>,
    /// Contents that nothing names, old enough, by hash.
    pub(super) orphan_contents: Vec<u128>,
    pub(super) plans: PlanLeftovers,
    pub(super) checkpoints: CheckpointLeftovers,
    pub(super) rows_checked: BTreeMap<String, u64>,
    pub(super) bytes_verified: u64,
    /// Whether rows could not be read: then nothing can be said about what nothing refers to.
    pub(super) unreadable: bool,
    problems: BTreeMap<(&'static str, Table), Problem>,
}

impl Ledger {
    pub(super) fn new(ages: Ages) -> Self {
        Self {
            ages,
            attempts: HashMap::new(),
            keys: HashMap::new(),
            referenced: HashSet::new(),
            orphans: BTreeMap::new(),
            orphan_contents: Vec::new(),
            plans: PlanLeftovers::default(),
            checkpoints: CheckpointLeftovers::default(),
            rows_checked: BTreeMap::new(),
            bytes_verified: 0,
            unreadable: false,
            problems: BTreeMap::new(),
        }
    }

    pub(super) fn count_rows(&mut self, table: Table, rows: usize) {
        *self.rows_checked.entry(table.name().to_owned()).or_default() += rows as u64;
    }

    /// One row that breaks a rule.
    pub(super) fn note(
        &mut self,
        severity: Severity,
        rule: &'static str,
        table: Table,
        example: impl FnOnce() -> String,
        what_to_do: &'static str,
    ) {
        let problem = self.problem(severity, rule, table, what_to_do);
        problem.count += 1;
        if problem.examples.len() < EXAMPLES_MAX {
            problem.examples.push(example());
        }
    }

    /// Many rows that break a rule, without examples; none where there are none.
    pub(super) fn note_many(
        &mut self,
        severity: Severity,
        rule: &'static str,
        table: Table,
        count: u64,
        what_to_do: &'static str,
    ) {
        if count > 0 {
            self.problem(severity, rule, table, what_to_do).count += count;
        }
    }

    fn problem(
        &mut self,
        severity: Severity,
        rule: &'static str,
        table: Table,
        what_to_do: &'static str,
    ) -> &mut Problem {
        self.problems.entry((rule, table)).or_insert_with(|| Problem {
            rule,
            table: table.name().to_owned(),
            severity,
            count: 0,
            examples: Vec::new(),
            what_to_do,
        })
    }

    /// A row of an attempt that no trajectory row names.
    pub(super) fn note_orphan(&mut self, table: Table, attempt: Attempt, row_address: u64) {
        if !self.ages.is_old(table, row_address) {
            return;
        }
        self.orphans.entry(table).or_default().insert(attempt);
        self.note(
            Severity::Leftover,
            "orphan",
            table,
            || format!("trajectory {:016x}, write {:016x}", attempt.0, attempt.1),
            "left by a write that was interrupted; never visible; `--repair` removes it",
        );
    }

    /// The problems, worst first.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = self.problems.into_values().collect();
        problems.sort_by_key(|p| (std::cmp::Reverse(p.severity), p.table.clone(), p.rule));
        problems
    }
}
