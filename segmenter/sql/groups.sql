-- Reward statistics of each group, over its live, graded trajectories (aborted and failed ones have no part).
--
-- run_id           the run
-- group_id         the group
-- n_trajectories   all trajectories of the group
-- n_live           those neither aborted nor failed
-- n_graded         live ones whose reward is in the statistics
-- n_ungraded       live ones without a reward: left out of the statistics, not counted as 0 (unless null_reward=zero)
-- reward_mean      mean reward
-- reward_std       population standard deviation
-- reward_min       lowest reward
-- reward_max       highest reward
-- zero_variance    whether the rewards are all the same (deviation up to 1e-6): nothing to learn from comparing them
-- n_trained_tokens tokens that receive gradient, of live trajectories
-- drop_reason      why the group has no samples: stale, incomplete, dead or ungraded; null where it has some
SELECT
  run_id, group_id, count(*) AS n_trajectories,
  count(*) FILTER (WHERE status NOT IN ('aborted', 'failed')) AS n_live,
  count(*) FILTER (WHERE reason IS NULL) AS n_graded,
  count(*) FILTER (WHERE reason = 'ungraded') AS n_ungraded,
  exact_mean(reward) FILTER (WHERE reason IS NULL) AS reward_mean,
  exact_std(reward) FILTER (WHERE reason IS NULL) AS reward_std,
  min(reward) FILTER (WHERE reason IS NULL) AS reward_min,
  max(reward) FILTER (WHERE reason IS NULL) AS reward_max,
  exact_std(reward) FILTER (WHERE reason IS NULL) <= 1e-6 AS zero_variance,
  coalesce(sum(n_trained_tokens) FILTER (WHERE status NOT IN ('aborted', 'failed')), 0) AS n_trained_tokens,
  CASE
    WHEN bool_or(stale) THEN 'stale'
    WHEN setting('whole_groups_only') = 'true' AND count(reason) > 0 THEN 'incomplete'
    WHEN count(*) FILTER (WHERE status NOT IN ('aborted', 'failed')) = 0 THEN 'dead'
    WHEN count(*) FILTER (WHERE reason IS NULL) = 0 THEN 'ungraded'
  END AS drop_reason
FROM internal.candidates
GROUP BY run_id, group_id
