//! An opened store: its record, its settings, its clients, and a handle for every table.

use std::collections::HashMap;
use std::fmt;
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatchIterator, RecordBatchReader};
use dressage_schemas::{ErrorKind, SCHEMA_VERSION, SCHEMA_VERSION_KEY, Table};
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::{InsertBuilder, WriteMode, WriteParams};
use lance::session::Session;
use lance_file::version::LanceFileVersion;
use lance_io::object_store::{ObjectStoreParams, ObjectStoreRegistry};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;

use crate::durable;
use crate::error::{Error, Result, kind_of_lance};
use crate::location::{Location, Objects};
use crate::physical;
use crate::race::{self, RaceOutcome};
use crate::record::StoreRecord;
use crate::retry::RetryLimit;
use crate::row_set::RowSet;
use crate::settings::StoreSettings;
use crate::writer::{LakeWriter, WriterSettings};

/// The file version of every table.
pub(crate) const FILE_VERSION: LanceFileVersion = LanceFileVersion::V2_2;

/// An opened store. Cheap to clone; all clones share clients and caches.
#[derive(Clone)]
pub struct Lake {
    pub(crate) inner: Arc<Opened>,
}

/// What all clones share.
pub(crate) struct Opened {
    pub(crate) settings: StoreSettings,
    pub(crate) location: Location,
    pub(crate) uri: String,
    pub(crate) record: StoreRecord,
    pub(crate) session: Arc<Session>,
    pub(crate) params: ObjectStoreParams,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The same client, where it takes large objects in parts.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    pub(crate) root: Path,
    /// Newest handle of each table seen so far: opening from one is a look at the newest version's name.
    handles: Mutex<HashMap<Table, Arc<Dataset>>>,
    /// Empty stand-ins for tables that an early release did not make.
    absent: Mutex<HashMap<Table, Arc<Dataset>>>,
    /// Rows that a newer row replaces, by table version; only the newest is kept.
    pub(crate) superseded: Mutex<HashMap<Table, (u64, RowSet)>>,
}

impl fmt::Debug for Lake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lake").field("uri", &self.inner.uri).finish_non_exhaustive()
    }
}

/// Clients of a place, before it is known whether a store is there.
struct Clients {
    location: Location,
    uri: String,
    session: Arc<Session>,
    params: ObjectStoreParams,
    objects: Objects,
}

impl Clients {
    async fn connect(settings: &StoreSettings) -> Result<Self> {
        let location = Location::parse(&settings.uri)?;
        crate::secret::remember(settings.s3.secret_access_key.reveal());
        crate::secret::remember(settings.s3.session_token.reveal());
        let cache = usize::try_from(settings.cache_bytes_max).unwrap_or(usize::MAX);
        // index pages are read again and again by look-ups; file metadata is small and read once a scan
        let session = Arc::new(Session::new(cache / 2, cache - cache / 2, Arc::new(ObjectStoreRegistry::default())));
        let params = location.table_params(settings)?;
        let objects = location.objects(settings, &session).await?;
        let uri = location.display();
        Ok(Self { location, uri, session, params, objects })
    }

    async fn record(&self) -> Result<Option<StoreRecord>> {
        StoreRecord::read(self.objects.store.as_ref(), &self.objects.root, &self.uri).await
    }

    fn into_lake(self, settings: StoreSettings, record: StoreRecord) -> Lake {
        let Self { location, uri, session, params, objects: Objects { store: objects, parts, root } } = self;
        let inner = Opened {
            settings,
            location,
            uri,
            record,
            session,
            params,
            objects,
            parts,
            root,
            handles: Mutex::default(),
            absent: Mutex::default(),
            superseded: Mutex::default(),
        };
        Lake { inner: Arc::new(inner) }
    }
}

impl Lake {
    /// Makes a store, or opens the one that is there. Creates the tables, races conditional writes, and writes the
    /// record last, so that a store exists whole or not at all.
    ///
    /// # Errors
    /// `Invalid` where the place ignores conditional writes or cannot be written; `Unavailable` where it does not
    /// answer.
    pub async fn init(settings: StoreSettings) -> Result<Self> {
        let clients = Clients::connect(&settings).await?;
        if let Some(record) = clients.record().await? {
            return Ok(clients.into_lake(settings, record));
        }
        if let Some(folder) = clients.location.folder() {
            create_folder(folder)?;
        }
        let outcome = race_at(&clients.objects.store, &clients.objects.root, &clients.location).await?;
        if let Some(detail) = outcome.broken.clone() {
            return Err(Error::ConditionIgnored { uri: clients.uri, detail });
        }
        let record = StoreRecord::new(outcome, now_micros());
        let lake = clients.into_lake(settings, record);
        for table in Table::ALL {
            lake.create_table(table).await?;
        }
        let opened = &lake.inner;
        if opened.record.create(opened.objects.as_ref(), &opened.root).await? {
            return Ok(lake);
        }
        // another init was first; its record counts
        Self::open(opened.settings.clone()).await
    }

    /// Opens the store that is there. Reads one object and writes nothing.
    ///
    /// # Errors
    /// `NotFound` where there is none, `Invalid` where its schema version does not fit this release.
    pub async fn open(settings: StoreSettings) -> Result<Self> {
        let clients = Clients::connect(&settings).await?;
        let record = clients.record().await?;
        let Some(record) = record else {
            return Err(Error::StoreMissing { uri: clients.uri });
        };
        Ok(clients.into_lake(settings, record))
    }

    /// What the store says about itself.
    pub fn record(&self) -> &StoreRecord {
        &self.inner.record
    }

    /// Its settings.
    pub fn settings(&self) -> &StoreSettings {
        &self.inner.settings
    }

    /// Where it is, without credentials.
    pub fn uri(&self) -> &str {
        &self.inner.uri
    }

    /// A writer. Any number of them may be open, in this process and others.
    pub fn writer(&self, settings: WriterSettings) -> LakeWriter {
        LakeWriter::new(self.clone(), settings)
    }

    /// Bytes and requests to the store so far, over all tables and clones. Local reads count, too.
    pub async fn io_stats(&self) -> Result<IoStats> {
        let dataset = self.latest(Table::Trajectories).await?;
        let store = dataset.object_store(None).await.map_err(|e| Error::table("open", Table::Trajectories, e))?;
        let stats = store.io_stats_snapshot();
        Ok(IoStats { read_requests: stats.read_iops, read_bytes: stats.read_bytes, written_bytes: stats.written_bytes })
    }

    pub(crate) fn retry_limit(&self) -> RetryLimit {
        RetryLimit { uri: self.inner.uri.clone(), timeout_ms: self.inner.settings.retry_timeout_ms }
    }

    /// The newest version of a table.
    pub(crate) async fn latest(&self, table: Table) -> Result<Arc<Dataset>> {
        self.retry_limit()
            .run("open a table", |_| async {
                let Some(known) = self.handle(table) else {
                    return self.load_or_absent(table).await;
                };
                let mut fresh = known.as_ref().clone();
                fresh.checkout_latest().await.map_err(|e| Error::table("open", table, e))?;
                if fresh.version_id() == known.version_id() {
                    return Ok(known);
                }
                let fresh = Arc::new(fresh);
                self.remember(table, &fresh);
                Ok(fresh)
            })
            .await
    }

    /// Some version of a table: for what does not depend on which, without asking the store for the newest.
    pub(crate) async fn any(&self, table: Table) -> Result<Arc<Dataset>> {
        match self.handle(table) {
            Some(known) => Ok(known),
            None => self.latest(table).await,
        }
    }

    /// One version of a table.
    pub(crate) async fn at(&self, table: Table, version: u64) -> Result<Arc<Dataset>> {
        let known = match self.handle(table) {
            Some(known) => known,
            None => self.load_or_absent(table).await?,
        };
        if known.version_id() == version {
            return Ok(known);
        }
        match known.checkout_version(version).await {
            Ok(dataset) => Ok(Arc::new(dataset)),
            Err(e) if kind_of_lance(&e) == ErrorKind::NotFound => Err(Error::VersionMissing { table, version }),
            Err(e) => Err(Error::table("open", table, e)),
        }
    }

    fn handle(&self, table: Table) -> Option<Arc<Dataset>> {
        self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner).get(&table).cloned()
    }

    /// Keeps a handle if it is newer than the one at hand.
    pub(crate) fn remember(&self, table: Table, dataset: &Arc<Dataset>) {
        let mut handles = self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = handles.get(&table).is_none_or(|known| known.version_id() < dataset.version_id());
        if newer {
            handles.insert(table, dataset.clone());
        }
    }

    /// The table, or an empty stand-in where the store was made before there was one. The stand-in is version 1, which
    /// is the empty one that [`ensure_table`](Self::ensure_table) makes, so a snapshot of it stays right.
    async fn load_or_absent(&self, table: Table) -> Result<Arc<Dataset>> {
        match self.load(table).await {
            Err(e) if e.kind() == ErrorKind::NotFound && Table::ADDED_LATER.contains(&table) => {
                self.stand_in(table).await
            }
            loaded => loaded,
        }
    }

    async fn stand_in(&self, table: Table) -> Result<Arc<Dataset>> {
        let known = self.inner.absent.lock().unwrap_or_else(PoisonError::into_inner).get(&table).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let params = WriteParams {
            mode: WriteMode::Create,
            data_storage_version: Some(FILE_VERSION),
            enable_v2_manifest_paths: true,
            ..WriteParams::default()
        };
        let empty = RecordBatchIterator::new(std::iter::empty(), physical::schema(table));
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(empty);
        let uri = format!("memory://{table}.lance");
        let made = InsertBuilder::new(uri.as_str()).with_params(&params).execute_stream(reader).await;
        let made = Arc::new(made.map_err(|e| Error::table("stand in for", table, e))?);
        self.inner.absent.lock().unwrap_or_else(PoisonError::into_inner).insert(table, Arc::clone(&made));
        Ok(made)
    }

    /// Whether the store itself has the table.
    pub(crate) async fn has_table(&self, table: Table) -> Result<bool> {
        self.latest(table).await?;
        Ok(self.handle(table).is_some())
    }

    /// Makes a table that an early release did not make, before the first write to it.
    pub(crate) async fn ensure_table(&self, table: Table) -> Result<()> {
        if self.has_table(table).await? { Ok(()) } else { self.create_table(table).await }
    }

    async fn load(&self, table: Table) -> Result<Arc<Dataset>> {
        let opened = &self.inner;
        let mut builder =
            DatasetBuilder::from_uri(opened.location.table_uri(table)?).with_session(opened.session.clone());
        builder = builder.with_store_params(opened.params.clone());
        let dataset = builder.load().await.map_err(|e| Error::table("open", table, e))?;
        self.check_schema_version(table, &dataset)?;
        let dataset = Arc::new(dataset);
        self.remember(table, &dataset);
        Ok(dataset)
    }

    fn check_schema_version(&self, table: Table, dataset: &Dataset) -> Result<()> {
        let found = dataset.schema().metadata.get(SCHEMA_VERSION_KEY).and_then(|v| v.parse::<u32>().ok());
        let Some(found) = found else {
            let detail = format!("it has no {SCHEMA_VERSION_KEY} in its metadata");
            return Err(Error::Damaged { table, detail });
        };
        if found > SCHEMA_VERSION {
            return Err(Error::SchemaTooNew { uri: self.inner.uri.clone(), found, supported: SCHEMA_VERSION });
        }
        Ok(())
    }

    async fn create_table(&self, table: Table) -> Result<()> {
        let opened = &self.inner;
        let uri = opened.location.table_uri(table)?;
        let params = self.write_params(WriteMode::Create);
        let schema = physical::schema(table);
        let empty = RecordBatchIterator::new(std::iter::empty(), schema);
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(empty);
        let made = InsertBuilder::new(uri.as_str()).with_params(&params).execute_stream(reader).await;
        match made {
            Ok(dataset) => {
                self.remember(table, &Arc::new(dataset));
                if let Some(folder) = opened.location.folder().filter(|_| opened.settings.local_fsync) {
                    durable::flush(&folder.join(format!("{table}.lance")))?;
                    durable::flush(folder)?;
                }
                Ok(())
            }
            // an interrupted or concurrent init made it
            Err(e) if matches!(kind_of_lance(&e), ErrorKind::Conflict) => self.load(table).await.map(|_| ()),
            Err(e) => Err(Error::table("create", table, e)),
        }
    }

    /// Parameters of every write: file version, clients, and bounded buffers.
    pub(crate) fn write_params(&self, mode: WriteMode) -> WriteParams {
        WriteParams {
            mode,
            store_params: Some(self.inner.params.clone()),
            session: Some(self.inner.session.clone()),
            data_storage_version: Some(FILE_VERSION),
            enable_v2_manifest_paths: true,
            skip_auto_cleanup: true,
            ..WriteParams::default()
        }
    }

    /// Races conditional writes again, as `init` did.
    ///
    /// # Errors
    /// Where the store cannot be written.
    pub async fn race_conditional_writes(&self) -> Result<RaceOutcome> {
        race_at(&self.inner.objects, &self.inner.root, &self.inner.location).await
    }
}

async fn race_at(objects: &Arc<dyn ObjectStore>, root: &Path, location: &Location) -> Result<RaceOutcome> {
    if location.folder().is_none() {
        return race::run(objects, root, true).await;
    }
    // a local file system cannot replace under a condition, and no commit needs it to; what the races write is
    // removed again, so it need not be flushed either
    let unflushed: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
    race::run(&unflushed, root, false).await
}

/// Bytes and requests to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct IoStats {
    /// Read requests.
    pub read_requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

fn create_folder(folder: &FsPath) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::ObjectAccess {
        action: "create",
        object: folder.display().to_string(),
        kind: ErrorKind::Invalid,
        source: crate::error::Cause::of(&e),
    })
}

/// Now, in the unit of every time column.
pub(crate) fn now_micros() -> i64 {
    chrono::Utc::now().timestamp_micros()
}
