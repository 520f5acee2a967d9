//! The Rust side of `shim/collective.cpp`: libtorch's store, its groups of processes and their operations.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use tch::Tensor;
use torch_sys::C_tensor;

use super::torch::{dressage_message_free, failure};

unsafe extern "C" {
    fn dressage_store_open(
        host: *const c_char,
        port: u16,
        is_server: bool,
        n_workers: i64,
        timeout_ms: i64,
        store: *mut *mut c_void,
        port_found: *mut u16,
    ) -> *mut c_char;
    fn dressage_store_clone(store: *const c_void, clone: *mut *mut c_void) -> *mut c_char;
    fn dressage_store_prefixed(store: *const c_void, prefix: *const c_char, prefixed: *mut *mut c_void) -> *mut c_char;
    fn dressage_store_free(store: *mut c_void);
    fn dressage_store_set(store: *const c_void, key: *const c_char, bytes: *const c_char, length: usize)
    -> *mut c_char;
    fn dressage_store_get(
        store: *const c_void,
        key: *const c_char,
        timeout_ms: i64,
        bytes: *mut *mut c_char,
        length: *mut usize,
    ) -> *mut c_char;
    fn dressage_store_has(store: *const c_void, key: *const c_char, has: *mut bool) -> *mut c_char;
    fn dressage_gloo_join(
        store: *const c_void,
        rank: c_int,
        world_size: c_int,
        timeout_ms: i64,
        interfaces: *const *const c_char,
        n_interfaces: usize,
        group: *mut *mut c_void,
    ) -> *mut c_char;
    fn dressage_group_free(group: *mut c_void);
    fn dressage_all_reduce(
        group: *const c_void,
        tensor: *const C_tensor,
        reduce: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn dressage_reduce_scatter(
        group: *const c_void,
        part: *const C_tensor,
        whole: *const C_tensor,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn dressage_all_gather(
        group: *const c_void,
        whole: *const C_tensor,
        part: *const C_tensor,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn dressage_broadcast(
        group: *const c_void,
        tensor: *const C_tensor,
        from: c_int,
        work: *mut *mut c_void,
    ) -> *mut c_char;
    fn dressage_barrier(group: *const c_void, work: *mut *mut c_void) -> *mut c_char;
    fn dressage_work_wait(work: *const c_void, timeout_ms: i64) -> *mut c_char;
    fn dressage_work_free(work: *mut c_void);
}

/// What c10d said: its first line.
pub(crate) type Said<T> = Result<T, String>;

fn said(message: *mut c_char) -> Said<()> {
    failure(message).map_or(Ok(()), Err)
}

fn text(text: &str) -> Said<CString> {
    CString::new(text).map_err(|_| format!("`{}` has a zero byte", text.escape_default()))
}

/// At least one millisecond, since c10d takes 0 for no limit.
fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// A key-value store that all ranks see.
#[derive(Debug)]
pub(crate) struct Store(*mut c_void);

// SAFETY: libtorch's stores hold a lock around each exchange with the server
unsafe impl Send for Store {}
// SAFETY: as above
unsafe impl Sync for Store {}

impl Store {
    /// Connects to the store at `host:port`, and runs it with `is_server`; port 0 then chooses a free one, which is given
    /// back. Waits for `n_workers` where that is given.
    pub(crate) fn open(
        host: &str,
        port: u16,
        is_server: bool,
        n_workers: Option<usize>,
        timeout: Duration,
    ) -> Said<(Self, u16)> {
        let host = text(host)?;
        let n_workers = n_workers.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
        let (mut store, mut found) = (null_mut(), 0);
        let timeout_ms = milliseconds(timeout);
        // SAFETY: a terminated string, and places for one handle and one number
        said(unsafe {
            dressage_store_open(host.as_ptr(), port, is_server, n_workers, timeout_ms, &mut store, &mut found)
        })?;
        Ok((Self(store), found))
    }

    /// The same store through a connection of its own.
    pub(crate) fn another_connection(&self) -> Said<Self> {
        let mut store = null_mut();
        // SAFETY: a live handle, and a place for one
        said(unsafe { dressage_store_clone(self.0, &mut store) })?;
        Ok(Self(store))
    }

    /// The part of the store whose keys begin with `prefix`.
    pub(crate) fn prefixed(&self, prefix: &str) -> Said<Self> {
        let (prefix, mut store) = (text(prefix)?, null_mut());
        // SAFETY: a live handle, a terminated string, and a place for a handle
        said(unsafe { dressage_store_prefixed(self.0, prefix.as_ptr(), &mut store) })?;
        Ok(Self(store))
    }

    /// Sets a key.
    pub(crate) fn set(&self, key: &str, value: &str) -> Said<()> {
        let key = text(key)?;
        // SAFETY: a live handle, a terminated string, and as many bytes as are said
        said(unsafe { dressage_store_set(self.0, key.as_ptr(), value.as_ptr().cast(), value.len()) })
    }

    /// The value of a key, waited for until `timeout`.
    pub(crate) fn get(&self, key: &str, timeout: Duration) -> Said<String> {
        let (key, mut bytes, mut length) = (text(key)?, null_mut(), 0);
        // SAFETY: a live handle, a terminated string, and places for a pointer and a number
        said(unsafe { dressage_store_get(self.0, key.as_ptr(), milliseconds(timeout), &mut bytes, &mut length) })?;
        // SAFETY: on success the shim allocated that many bytes
        let value = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
        let value = String::from_utf8_lossy(value).into_owned();
        // SAFETY: given back once, to the allocator it came from
        unsafe { dressage_message_free(bytes) };
        Ok(value)
    }

    /// Whether a key was set.
    pub(crate) fn has(&self, key: &str) -> Said<bool> {
        let (key, mut has) = (text(key)?, false);
        // SAFETY: a live handle, a terminated string, and a place for the answer
        said(unsafe { dressage_store_has(self.0, key.as_ptr(), &mut has) })?;
        Ok(has)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: an owned handle, given back once
        unsafe { dressage_store_free(self.0) }
    }
}

/// Processes that exchange tensors, one a rank.
#[derive(Debug)]
pub(crate) struct Group(*mut c_void);

// SAFETY: libtorch's groups may be used from any thread
unsafe impl Send for Group {}
// SAFETY: operations are put into a queue under a lock
unsafe impl Sync for Group {}

impl Group {
    /// Joins a group of libtorch's gloo. Waits for all ranks.
    pub(crate) fn join_gloo(
        store: &Store,
        rank: usize,
        world_size: usize,
        timeout: Duration,
        interfaces: &[String],
    ) -> Said<Self> {
        let number = |n: usize| c_int::try_from(n).map_err(|_| format!("{n} ranks are too many"));
        let interfaces = interfaces.iter().map(|name| text(name)).collect::<Said<Vec<_>>>()?;
        let names: Vec<*const c_char> = interfaces.iter().map(|name| name.as_ptr()).collect();
        let (rank, world_size, timeout_ms) = (number(rank)?, number(world_size)?, milliseconds(timeout));
        let mut group = null_mut();
        // SAFETY: a live handle, as many terminated strings as are said, and a place for a handle
        said(unsafe {
            dressage_gloo_join(store.0, rank, world_size, timeout_ms, names.as_ptr(), names.len(), &mut group)
        })?;
        Ok(Self(group))
    }

    /// Begins to sum a tensor over all ranks, in place, or to take its maximum.
    pub(crate) fn all_reduce(&self, tensor: &Tensor, is_sum: bool) -> Said<Work> {
        let reduce = c_int::from(!is_sum);
        // SAFETY: a live handle and a live tensor, which the work holds on to
        Work::begun(|work| unsafe { dressage_all_reduce(self.0, tensor.as_ptr(), reduce, work) })
    }

    /// Begins to sum `whole` over all ranks; `part` becomes this rank's part of the sum.
    pub(crate) fn reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Said<Work> {
        // SAFETY: a live handle and live tensors, which the work holds on to
        Work::begun(|work| unsafe { dressage_reduce_scatter(self.0, part.as_ptr(), whole.as_ptr(), work) })
    }

    /// Begins to put together `whole` from every rank's `part`.
    pub(crate) fn all_gather(&self, whole: &Tensor, part: &Tensor) -> Said<Work> {
        // SAFETY: a live handle and live tensors, which the work holds on to
        Work::begun(|work| unsafe { dressage_all_gather(self.0, whole.as_ptr(), part.as_ptr(), work) })
    }

    /// Begins to copy a tensor from one rank to all.
    pub(crate) fn broadcast(&self, tensor: &Tensor, from: usize) -> Said<Work> {
        let from = c_int::try_from(from).map_err(|_| format!("there is no rank {from}"))?;
        // SAFETY: a live handle and a live tensor, which the work holds on to
        Work::begun(|work| unsafe { dressage_broadcast(self.0, tensor.as_ptr(), from, work) })
    }

    /// Begins to wait until all ranks do.
    pub(crate) fn barrier(&self) -> Said<Work> {
        // SAFETY: a live handle
        Work::begun(|work| unsafe { dressage_barrier(self.0, work) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: an owned handle, given back once
        unsafe { dressage_group_free(self.0) }
    }
}

/// An operation that was begun.
#[derive(Debug)]
pub(crate) struct Work(*mut c_void);

// SAFETY: libtorch's works are waited for from any thread
unsafe impl Send for Work {}

impl Work {
    fn begun(begin: impl FnOnce(*mut *mut c_void) -> *mut c_char) -> Said<Self> {
        let mut work = null_mut();
        said(begin(&mut work))?;
        Ok(Self(work))
    }

    /// Waits until it is over, at most so long.
    pub(crate) fn wait(&self, timeout: Duration) -> Said<()> {
        // SAFETY: a live handle
        said(unsafe { dressage_work_wait(self.0, milliseconds(timeout)) })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: an owned handle, given back once
        unsafe { dressage_work_free(self.0) }
    }
}
