//! One contract, four stores: memory, a folder, a real S3 server, and that server on a bad day.
