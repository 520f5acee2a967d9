//! The objects of a line, key by key; keys that have no place are kept.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::fields::{Chunk, Id, Logprobs, Mask, Text, Tokens, Version, Versions};

/// A whole trajectory as its line says it.
#[derive(Debug, Default)]
pub(crate) struct WholeLine<'a> {
    pub(crate) header: Header,
    pub(crate) segments: Option<Vec<SegmentLine<'a>>>,
}

/// What a trajectory is, apart from what was said.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) trajectory_id: Option<String>,
    pub(crate) instance_id: Option<String>,
    pub(crate) group_id: Option<String>,
    pub(crate) run_id: Option<String>,
    pub(crate) parent_trajectory_id: Option<String>,
    pub(crate) status: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) agent: Option<String>,
    pub(crate) created_at: Option<Value>,
    pub(crate) labels: Option<Value>,
    /// `reward`: the outer none means that the key is missing.
    pub(crate) reward: Option<Value>,
    pub(crate) rewards: Option<Value>,
    pub(crate) extra: Map<String, Value>,
}

/// A segment (or the payload of a step event) as its object says it.
#[derive(Debug, Default)]
pub(crate) struct SegmentLine<'a> {
    pub(crate) segment_index: Option<i64>,
    pub(crate) segment_reasons: Option<Vec<String>>,
    pub(crate) turn_id: Option<String>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) trainable: Option<bool>,
    pub(crate) weight_version: Option<String>,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) mask: Option<Mask>,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) versions: Option<Versions>,
    pub(crate) chunks: Option<Vec<Chunk<'a>>>,
    pub(crate) layers: Option<u32>,
    pub(crate) top_k: Option<u32>,
    pub(crate) messages: Option<Value>,
    pub(crate) tools: Option<Value>,
    pub(crate) created_at: Option<Value>,
    pub(crate) extra: Map<String, Value>,
}

fn id<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    Ok(map.next_value::<Option<Id>>()?.map(|id| id.0))
}

impl Header {
    /// Takes the value of a key of the trajectory; false where the key is not one.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "trajectory_id" => self.trajectory_id = id(map)?,
            "instance_id" => self.instance_id = id(map)?,
            "group_id" => self.group_id = id(map)?,
            "run_id" => self.run_id = id(map)?,
            "parent_trajectory_id" => self.parent_trajectory_id = id(map)?,
            "status" => self.status = map.next_value()?,
            "model" => self.model = map.next_value()?,
            "agent" => self.agent = map.next_value()?,
            "created_at" => self.created_at = map.next_value()?,
            "labels" => self.labels = map.next_value()?,
            "reward" => self.reward = Some(map.next_value()?),
            "rewards" => self.rewards = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> SegmentLine<'de> {
    /// Takes the value of a key of the segment; false where the key is not one.
    fn take<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "segment_index" => self.segment_index = map.next_value()?,
            "segment_reasons" => self.segment_reasons = map.next_value()?,
            "turn_id" => self.turn_id = id(map)?,
            "finish_reason" => self.finish_reason = map.next_value()?,
            "trainable" => self.trainable = map.next_value()?,
            "weight_version" => {
                self.weight_version = map.next_value::<Option<Version<'de>>>()?.map(|v| v.0.into_owned())
            }
            "tokens" | "token_ids" => self.tokens = map.next_value()?,
            "full_loss_mask" | "loss_mask" => self.mask = map.next_value()?,
            "full_logprobs" | "logprobs" => self.logprobs = map.next_value()?,
            "full_versions" | "versions" => self.versions = map.next_value()?,
            "routed_experts_chunks" => self.chunks = map.next_value()?,
            "routed_experts_layers" => self.layers = map.next_value()?,
            "routed_experts_topk" => self.top_k = map.next_value()?,
            "messages" => self.messages = map.next_value()?,
            "tools" => self.tools = map.next_value()?,
            "timestamp" | "created_at" => self.created_at = map.next_value()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<'de> Deserialize<'de> for SegmentLine<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SegmentVisitor;
        impl<'de> Visitor<'de> for SegmentVisitor {
            type Value = SegmentLine<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a segment")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SegmentLine<'de>, A::Error> {
                let mut line = SegmentLine::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if !line.take(&key.0, &mut map)? {
                        line.extra.insert(key.0.into_owned(), map.next_value()?);
                    }
                }
                Ok(line)
            }
        }
        deserializer.deserialize_map(SegmentVisitor)
    }
}

impl<'de> Deserialize<'de> for WholeLine<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;
        impl<'de> Visitor<'de> for WholeVisitor {
            type Value = WholeLine<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a trajectory")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WholeLine<'de>, A::Error> {
                let mut line = WholeLine::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if line.header.take(&key.0, &mut map)? {
                        continue;
                    }
                    match &*key.0 {
                        "segments" => line.segments = map.next_value()?,
                        _ => drop(line.header.extra.insert(key.0.into_owned(), map.next_value()?)),
                    }
                }
                Ok(line)
            }
        }
        deserializer.deserialize_map(WholeVisitor)
    }
}

/// One event: what kind, of which trajectory, and its keys.
#[derive(Debug, Default)]
pub(crate) struct EventLine<'a> {
    pub(crate) kind: String,
    pub(crate) header: Header,
    pub(crate) step: SegmentLine<'a>,
}

impl<'de> Deserialize<'de> for EventLine<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EventVisitor;
        impl<'de> Visitor<'de> for EventVisitor {
            type Value = EventLine<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EventLine<'de>, A::Error> {
                let mut line = EventLine::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if &*key.0 == "kind" {
                        line.kind = map.next_value()?;
                        continue;
                    }
                    // of the keys that both have, a step's own ones are the step's
                    let of_step = matches!(&*key.0, "created_at" | "model");
                    let taken = !of_step && line.header.take(&key.0, &mut map)?;
                    if !taken && !line.step.take(&key.0, &mut map)? {
                        line.step.extra.insert(key.0.into_owned(), map.next_value()?);
                    }
                }
                Ok(line)
            }
        }
        deserializer.deserialize_map(EventVisitor)
    }
}
