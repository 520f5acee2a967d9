//! Writing a file so that it is seen whole and durable or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path as FsPath, PathBuf};

use blake3::Hasher;
use bytes::Bytes;
use dressage_schemas::ErrorKind;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::remote::Remote;
use super::{ASIDE, FILE_BYTES_MAX, PART_BYTES, PARTS_IN_FLIGHT, short_hash};
use crate::durable;
use crate::error::{Cause, Error, Result};
use crate::fault;

/// What gives the bytes of a file.
type Content<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

const BUFFER_BYTES: usize = 1 << 20;

/// Writes a file of a folder on a disk: aside, flushed, renamed, and then its folder flushed. Gives bytes and hash.
pub(super) fn write_local(folder: &FsPath, name: &str, fsync: bool, content: Content<'_>) -> Result<(u64, String)> {
    let target = folder.join(name);
    let made = make_parents(&target)?;
    let mut aside = target.clone().into_os_string();
    aside.push(format!(".{:016x}{ASIDE}", crate::retry::random()));
    let aside = PathBuf::from(aside);
    let written = write_aside(&aside, &target, fsync, content).and_then(|written| {
        std::fs::rename(&aside, &target).map_err(|e| durable::failed("rename into place", &target, &e))?;
        Ok(written)
    });
    if written.is_err() {
        // it may be what filled the disk; if it cannot be removed, the first error says more
        let _ = std::fs::remove_file(&aside);
    }
    let written = written?;
    if fsync {
        made.iter().try_for_each(|folder| durable::flush(folder))?;
    }
    Ok(written)
}

/// Makes the folders above a file; gives those whose entries change with it.
fn make_parents(target: &FsPath) -> Result<Vec<PathBuf>> {
    let parent = target.parent().unwrap_or(target);
    let missing = parent.ancestors().take_while(|folder| !folder.exists()).count();
    std::fs::create_dir_all(parent).map_err(|e| durable::failed("create", parent, &e))?;
    Ok(parent.ancestors().take(missing + 1).map(FsPath::to_owned).collect())
}

fn write_aside(aside: &FsPath, target: &FsPath, fsync: bool, content: Content<'_>) -> Result<(u64, String)> {
    // messages name the file that was wanted, not where it lies for the moment
    let failed = |e: &io::Error| durable::failed("write", target, e);
    let file = File::create_new(aside).map_err(|e| failed(&e))?;
    let counted = Counted { inner: file, hasher: Hasher::new(), bytes: 0, failure: None };
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, counted);
    let given = content(&mut buffered).and_then(|()| buffered.flush());
    let (counted, _) = buffered.into_parts();
    // what the disk said counts, whatever the content made of it
    if let Some(failure) = counted.failure {
        return Err(failed(&failure));
    }
    given.map_err(|e| content_failed(target, &e))?;
    fault::point("half", "file");
    if fsync {
        counted.inner.sync_all().map_err(|e| failed(&e))?;
    }
    Ok((counted.bytes, short_hash(&counted.hasher)))
}

/// Counts and hashes what passes, and keeps the first failure.
struct Counted {
    inner: File,
    hasher: Hasher,
    bytes: u64,
    failure: Option<io::Error>,
}

impl Write for Counted {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.inner.write(buf) {
            Ok(n) => {
                self.hasher.update(buf.get(..n).unwrap_or(buf));
                self.bytes += n as u64;
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let again = match e.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::from(e.kind()),
                };
                self.failure.get_or_insert(e);
                Err(again)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes an object: in one request where it is small, else in parts as they come. Gives bytes and hash.
pub(super) fn write_remote(
    remote: &Remote,
    path: Path,
    shown: String,
    runtime: &Handle,
    content: Content<'_>,
) -> Result<(u64, String)> {
    let (sender, receiver) = mpsc::channel(1);
    let in_parts = remote.objects.parts.is_some();
    let upload = Upload { remote: remote.clone(), path, shown: shown.clone() };
    let task = runtime.spawn(upload.run(receiver));
    let mut sink = Sink { part: Vec::new(), in_parts, hasher: Hasher::new(), bytes: 0, sender, refused: None };
    let given = content(&mut sink);
    let Sink { part, hasher, bytes, sender, refused, .. } = sink;
    let whole = given.is_ok() && refused.is_none();
    if whole {
        fault::point("half", "file");
        // a task that is gone says below why it went
        let _ = sender.blocking_send(Message::Last(part.into()));
    }
    // without a last part, the upload is taken back
    drop(sender);
    let uploaded = runtime.block_on(task);
    if let Some(Refused::TooLarge) = refused {
        let source =
            Cause::words(format!("S3 takes files of up to {FILE_BYTES_MAX} bytes from here; make several of it"));
        return Err(Error::ObjectAccess { action: "write", object: shown, kind: ErrorKind::Exhausted, source });
    }
    match uploaded {
        Ok(done) => done?,
        Err(lost) => return Err(Error::TaskLost { what: "uploading a file", source: Cause::of(&lost) }),
    }
    given.map_err(|e| content_failed(FsPath::new(&shown), &e))?;
    Ok((bytes, short_hash(&hasher)))
}

/// What goes to the upload.
enum Message {
    /// A full part.
    Part(Bytes),
    /// The rest; the file is complete.
    Last(Bytes),
}

/// Why no more bytes are taken.
#[derive(Clone, Copy)]
enum Refused {
    /// The upload failed; it says why.
    Failed,
    TooLarge,
}

/// Takes the bytes of a file on the caller's thread, and hands them over a part at a time.
struct Sink {
    part: Vec<u8>,
    in_parts: bool,
    hasher: Hasher,
    bytes: u64,
    sender: mpsc::Sender<Message>,
    refused: Option<Refused>,
}

impl Sink {
    fn refuse(&mut self, why: Refused) -> io::Error {
        self.refused = Some(why);
        io::Error::other("the upload has ended")
    }
}

impl Write for Sink {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Some(why) = self.refused {
            return Err(self.refuse(why));
        }
        if !self.in_parts {
            self.part.extend_from_slice(buf);
            self.hasher.update(buf);
            self.bytes += buf.len() as u64;
            return Ok(buf.len());
        }
        // sent only when more comes, so that the last part is never empty
        if self.part.len() == PART_BYTES && !buf.is_empty() {
            let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
            if self.sender.blocking_send(Message::Part(part.into())).is_err() {
                return Err(self.refuse(Refused::Failed));
            }
        }
        if self.bytes + buf.len() as u64 > FILE_BYTES_MAX {
            return Err(self.refuse(Refused::TooLarge));
        }
        let taken = buf.len().min(PART_BYTES - self.part.len());
        let bytes = buf.get(..taken).unwrap_or(buf);
        self.part.extend_from_slice(bytes);
        self.hasher.update(bytes);
        self.bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One object on its way.
struct Upload {
    remote: Remote,
    path: Path,
    shown: String,
}

impl Upload {
    async fn run(self, mut messages: mpsc::Receiver<Message>) -> Result<()> {
        match (messages.recv().await, &self.remote.objects.parts) {
            // the content failed, and nothing was sent
            (None, _) => Ok(()),
            (Some(Message::Last(all) | Message::Part(all)), None) => self.put(all).await,
            (Some(Message::Last(all)), Some(_)) => self.put(all).await,
            (Some(Message::Part(first)), Some(parts)) => self.put_in_parts(parts.as_ref(), first, messages).await,
        }
    }

    async fn put(&self, all: Bytes) -> Result<()> {
        let payload = PutPayload::from_bytes(all);
        let store = self.remote.objects.store.as_ref();
        let put = |_| async { store.put(&self.path, payload.clone()).await.map_err(|e| self.failed(e)) };
        self.remote.retry.run("write an object", put).await.map(drop)
    }

    async fn put_in_parts(
        &self,
        parts: &dyn MultipartStore,
        first: Bytes,
        messages: mpsc::Receiver<Message>,
    ) -> Result<()> {
        let begin = |_| async { parts.create_multipart(&self.path).await.map_err(|e| self.failed(e)) };
        let id = self.remote.retry.run("begin an upload", begin).await?;
        let done = match self.send_parts(parts, &id, first, messages).await {
            Ok(Some(sent)) => self.complete(parts, &id, sent).await.map(|()| true),
            Ok(None) => Ok(false),
            Err(e) => Err(e),
        };
        if !matches!(done, Ok(true)) {
            // at worst its parts take space until the bucket's own rules remove them
            let _ = parts.abort_multipart(&self.path, &id).await;
        }
        done.map(drop)
    }

    /// Sends parts as they come, some at a time; none where the content failed before the last one.
    async fn send_parts(
        &self,
        parts: &dyn MultipartStore,
        id: &String,
        first: Bytes,
        mut messages: mpsc::Receiver<Message>,
    ) -> Result<Option<Sent>> {
        let mut sent = Sent::default();
        let mut running = FuturesUnordered::new();
        running.push(self.send(parts, id, sent.next(&first), first));
        let mut whole = false;
        while !whole {
            if running.len() >= PARTS_IN_FLIGHT
                && let Some(done) = running.next().await
            {
                sent.note(done?);
            }
            tokio::select! {
                Some(done) = running.next() => sent.note(done?),
                message = messages.recv() => {
                    let part = match message {
                        None => return Ok(None),
                        Some(Message::Part(part)) => part,
                        Some(Message::Last(part)) => {
                            whole = true;
                            part
                        }
                    };
                    running.push(self.send(parts, id, sent.next(&part), part));
                }
            }
        }
        while let Some(done) = running.next().await {
            sent.note(done?);
        }
        Ok(Some(sent))
    }

    async fn send(&self, parts: &dyn MultipartStore, id: &String, at: usize, part: Bytes) -> Result<(usize, PartId)> {
        let payload = PutPayload::from_bytes(part);
        let put = |_| async { parts.put_part(&self.path, id, at, payload.clone()).await.map_err(|e| self.failed(e)) };
        self.remote.retry.run("upload a part", put).await.map(|sent| (at, sent))
    }

    async fn complete(&self, parts: &dyn MultipartStore, id: &String, sent: Sent) -> Result<()> {
        let ids: Vec<PartId> = sent.ids.into_iter().flatten().collect();
        let complete = |_| async {
            match parts.complete_multipart(&self.path, id, ids.clone()).await {
                Ok(_) => Ok(()),
                // an upload that is gone was completed, and the answer lost, if the object is there
                Err(object_store::Error::NotFound { .. }) if self.bytes_now().await? == Some(sent.bytes) => Ok(()),
                Err(e) => Err(self.failed(e)),
            }
        };
        self.remote.retry.run("complete an upload", complete).await
    }

    async fn bytes_now(&self) -> Result<Option<u64>> {
        match self.remote.objects.store.head(&self.path).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed(e)),
        }
    }

    fn failed(&self, error: object_store::Error) -> Error {
        Error::object("write", self.shown.as_str(), error)
    }
}

/// The parts of an upload so far.
#[derive(Default)]
struct Sent {
    ids: Vec<Option<PartId>>,
    bytes: u64,
}

impl Sent {
    /// Takes a place for one more part.
    fn next(&mut self, part: &Bytes) -> usize {
        self.bytes += part.len() as u64;
        self.ids.push(None);
        self.ids.len() - 1
    }

    fn note(&mut self, (at, id): (usize, PartId)) {
        if let Some(place) = self.ids.get_mut(at) {
            *place = Some(id);
        }
    }
}

/// What `content` itself gave: nothing that the store did.
fn content_failed(target: &FsPath, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        io::ErrorKind::Other => ErrorKind::Internal,
        _ => return durable::failed("write", target, error),
    };
    let source = Cause::of(error);
    Error::ObjectAccess { action: "write", object: target.display().to_string(), kind, source }
}
