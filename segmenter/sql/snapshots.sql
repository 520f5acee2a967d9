-- Consistent sets of table versions: what --as-of takes.
--
-- snapshot_id  counting up from 1
-- created_at   when it was taken
-- tag          its name, where it has one; tagged versions are never removed
-- versions     JSON object: table name to version
SELECT snapshot_id, created_at, tag, versions
FROM stored.snapshots
