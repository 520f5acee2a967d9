-- ppo: the reward as it is; a critic of the trainer turns it into per-token advantages.
SELECT trajectory_key, reward AS advantage
FROM anchors
