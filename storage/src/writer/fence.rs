//! The second fence: a store that honoured conditional writes when it was made may stop doing so (a proxy in front,
//! a changed setting). After each commit the version that we believe to have written is looked at again, and once
//! more at the next commit and at the end: if another writer's manifest is there, rows were lost, and we say so.

use std::sync::Arc;

use dressage_schemas::Table;
use lance::Dataset;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::error::{Error, Result};
use crate::lake::Lake;

/// One commit of ours.
struct Committed {
    table: Table,
    version: u64,
    manifest: Path,
    e_tag: Option<String>,
    transaction: String,
}

/// The commits of the last group.
#[derive(Default)]
pub(super) struct Fence {
    last_group: Vec<Committed>,
}

impl Fence {
    /// Takes note of a commit and looks at it for the first time.
    pub(super) async fn passed(
        &mut self,
        lake: &Lake,
        table: Table,
        dataset: &Dataset,
        transaction: &str,
    ) -> Result<()> {
        let location = dataset.manifest_location();
        let committed = Committed {
            table,
            version: dataset.version_id(),
            manifest: location.path.clone(),
            e_tag: location.e_tag.clone(),
            transaction: transaction.to_owned(),
        };
        committed.verify(lake).await?;
        self.last_group.push(committed);
        Ok(())
    }

    /// Looks at the commits of the last group again.
    pub(super) async fn verify(&self, lake: &Lake) -> Result<()> {
        for committed in &self.last_group {
            committed.verify(lake).await?;
        }
        Ok(())
    }

    /// Forgets the last group: another one follows.
    pub(super) fn next_group(&mut self) {
        self.last_group.clear();
    }
}

impl Committed {
    async fn verify(&self, lake: &Lake) -> Result<()> {
        lake.retry_limit().run("look at a commit", |_| self.verify_once(lake)).await
    }

    async fn verify_once(&self, lake: &Lake) -> Result<()> {
        let dataset = lake.any(self.table).await?;
        let store = dataset.object_store(None).await.map_err(|e| Error::table("open", self.table, e))?;
        let broken = || Error::FenceBroken { table: self.table, version: self.version };
        match store.inner.head(&self.manifest).await {
            // the same object: nothing to read
            Ok(meta) if self.e_tag.is_some() && meta.e_tag == self.e_tag => Ok(()),
            Ok(_) => match self.transaction_now(&dataset).await? {
                Some(now) if now == self.transaction => Ok(()),
                _ => Err(broken()),
            },
            // collected as an old version: fine as long as it is one
            Err(object_store::Error::NotFound { .. }) => {
                let newest = lake.latest(self.table).await?.version_id();
                if newest > self.version { Ok(()) } else { Err(broken()) }
            }
            Err(e) => Err(Error::object("look at", self.manifest.to_string(), e)),
        }
    }

    /// Which transaction the version holds now; read from the store, never from a cache.
    async fn transaction_now(&self, dataset: &Arc<Dataset>) -> Result<Option<String>> {
        let transaction = dataset
            .read_transaction_by_version(self.version)
            .await
            .map_err(|e| Error::table("read the transaction of", self.table, e))?;
        Ok(transaction.map(|t| t.uuid))
    }
}
