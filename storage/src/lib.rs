//! Tables on an object store.
