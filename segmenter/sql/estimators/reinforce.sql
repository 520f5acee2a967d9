-- reinforce: the reward as it is.
SELECT trajectory_key, reward AS advantage
FROM anchors
