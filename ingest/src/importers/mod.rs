//! One file (or folder) a format. To add one: write the file, and add one line to [`ALL`]; `docs/formats.md` says how.

mod agent_lightning;
mod calls;
mod chat;
mod claude_code;
pub(crate) mod columns;
mod completion;
#[cfg(test)]
mod corpus;
pub(crate) mod dressage;
mod fields;
mod inspect;
mod nemo_gym;
mod sampled;
mod swe_agent;
mod timestamp;
mod verdict;

use crate::importer::Importer;

/// Every importer, in the order in which equally sure ones are asked.
pub static ALL: &[&dyn Importer] = &[
    &dressage::Dressage,
    &dressage::DressageEvents,
    &nemo_gym::NemoGym,
    &agent_lightning::AgentLightning,
    &claude_code::ClaudeCode,
    &swe_agent::SweAgent,
    &inspect::InspectEval,
    &inspect::InspectJson,
    &calls::Calls,
    &chat::Chat,
];

/// The importer of that name; `_` is taken for `-`.
pub fn by_name(name: &str) -> Option<&'static dyn Importer> {
    let name = name.replace('_', "-");
    ALL.iter().copied().find(|importer| importer.name() == name)
}
