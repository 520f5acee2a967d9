-- What could not be read, with the reason and the raw bytes.
--
-- source          the file, with the zip member after `!`
-- line            1-based line
-- byte_offset     where the record starts in the decompressed file
-- byte_length     its length; raw may hold less
-- format          the importer that refused it
-- trajectory_id   the trajectory, where the record names one
-- rule            short name of the rule that it broke
-- reason          what is wrong
-- quarantined_at  when
-- quarantine_key  hash of content, byte range and rule
-- raw             the bytes
SELECT
  source, line, byte_offset, byte_length, format, trajectory_id, rule, reason, quarantined_at, quarantine_key, raw
FROM stored.quarantine
