-- Trajectories that have samples. A filter (--filter) is joined in here, behind the estimator: it changes no advantage.
SELECT trajectory_key, reward FROM anchors
