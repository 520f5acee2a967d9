-- Reward statistics of each group, over its live, graded trajectories (aborted and failed ones have no part).
--
-- run_id           the run
-- group_id         the group
-- n_trajectories   all trajectories of the group
-- n_live           those neither aborted nor failed
-- n_graded         live ones with a reward
-- n_ungraded       live ones without: left out of the statistics, not counted as 0
-- reward_mean      mean reward
-- reward_std       population standard deviation
-- reward_min       lowest reward
-- reward_max       highest reward
-- n_trained_tokens tokens that receive gradient, of live trajectories
SELECT
  run_id, group_id, count(*) AS n_trajectories,
  count(*) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS n_live,
  count(reward) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS n_graded,
  count(*) FILTER (WHERE status NOT IN ('aborted', 'failed') AND reward IS NULL) AS n_ungraded,
  avg(reward) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS reward_mean,
  stddev_pop(reward) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS reward_std,
  min(reward) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS reward_min,
  max(reward) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS reward_max,
  coalesce(sum(n_trained_tokens) FILTER (WHERE status NOT IN ('aborted', 'failed')), 0) AS n_trained_tokens
FROM trajectories
GROUP BY run_id, group_id
