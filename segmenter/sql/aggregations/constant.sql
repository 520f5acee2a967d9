-- constant:c: trajectories weigh alike and the summed loss of each is divided by c, whatever its length (Dr. GRPO). A bare
-- `constant` takes max_segment_tokens for c.
SELECT s.*, setting('loss_constant')::double AS denominator
FROM internal.rated AS s
