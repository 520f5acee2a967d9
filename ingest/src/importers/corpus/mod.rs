//! Importers over real files: the few that ship with the repository, and all kept ones where they are beside it.

mod claude_code;
mod harness;
mod inspect;
mod recognition;
mod token_formats;
