-- A filter: only groups whose rewards differ, since the others have advantages of 0.
SELECT run_id, group_id
FROM groups
WHERE NOT zero_variance
