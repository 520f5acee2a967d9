//! One file a format. To add one: write the file, and add one line to [`ALL`].

mod claude_code;
pub(crate) mod columns;
pub(crate) mod dressage;
mod fields;
mod nemo_gym;
mod timestamp;
mod verdict;

use crate::importer::Importer;

/// Every importer, in the order in which equally sure ones are asked.
pub static ALL: &[&dyn Importer] = &[&dressage::Dressage, &dressage::DressageEvents, &nemo_gym::NemoGym, &claude_code::ClaudeCode];

/// The importer of that name.
pub fn by_name(name: &str) -> Option<&'static dyn Importer> {
    ALL.iter().copied().find(|importer| importer.name() == name)
}
