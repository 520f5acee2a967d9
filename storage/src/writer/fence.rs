//! The second fence: a store that honoured conditional writes when it was made may stop doing so (a proxy in front,
//! a changed setting). After each commit the version that we believe to have written is looked at again, and once
//! more at the next commit and at the end: if another writer's manifest is there, rows were lost, and we say so.

use dressage_schemas::Table;
use lance::Dataset;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

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
            Ok(_) if self.is_ours(&*store.inner).await? => Ok(()),
            Ok(_) => Err(broken()),
            // collected as an old version: fine as long as it is one
            Err(object_store::Error::NotFound { .. }) => {
                let newest = lake.latest(self.table).await?.version_id();
                if newest > self.version { Ok(()) } else { Err(broken()) }
            }
            Err(e) => Err(Error::object("look at", self.manifest.to_string(), e)),
        }
    }

    /// Whether the manifest that is there now names our transaction. Its bytes are fetched and searched: the table
    /// format answers from a cache that may still hold the manifest that was overwritten.
    async fn is_ours(&self, store: &dyn ObjectStore) -> Result<bool> {
        let failed = |e| Error::object("look at", self.manifest.to_string(), e);
        let bytes = store.get(&self.manifest).await.map_err(failed)?.bytes().await.map_err(failed)?;
        let uuid = self.transaction.as_bytes();
        Ok(bytes.windows(uuid.len()).any(|window| window == uuid))
    }
}
