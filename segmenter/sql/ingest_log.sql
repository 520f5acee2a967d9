-- Where every trajectory came from: source, byte range and hash, one row a place where it was read.
--
-- trajectory_id   the recorder's id, of the trajectory in force
-- run_id          the run
-- source          the file, with the zip member after `!`
-- format          the importer
-- byte_offset     where its bytes start in the decompressed file
-- byte_length     how many there are
-- record_hash     hash of those bytes
-- outcome         new, updated, or unchanged: the store had it already
-- logged_at       when
-- in_force        whether the copy read here is the one that counts
-- trajectory_key  integer key that joins the tables
-- write_id        the attempt that wrote it
SELECT
  t.trajectory_id, t.run_id, l.source, l.format, l.byte_offset, l.byte_length, l.record_hash, l.outcome, l.logged_at,
  l.write_id = t.write_id AS in_force, t.trajectory_key, l.write_id
FROM stored.trajectories AS t
JOIN stored.ingest_log AS l ON t.trajectory_key = l.trajectory_key
WHERE setting('run') IS NULL OR t.run_id = setting('run')
