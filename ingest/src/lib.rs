//! Rollouts people already have, streamed into the lake.
