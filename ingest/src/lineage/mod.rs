//! Finds what each model call extends: lineages, branches and segments (semantics 3.3 and 3.4).
//!
//! Importers know the calls of a trajectory, each with its whole prompt (messages, token ids, or both), or with a link
//! to the call before it. A step stores only what its call appended. In between lies this module.
//!
//! ```text
//!  call 1  [u1]                    ─▶ create   lineage 0   boundary (initial)
//!  call 2  [u1 a1 t1]              ─▶ append   lineage 0   stores [t1 | a2]
//!  call 3  [s]            sub-agent─▶ create   lineage 1   boundary (initial, history_rewrite)
//!  call 4  [u1 a1 t1 a2 t2]        ─▶ append   lineage 0   stores [t2 | a4]
//!  call 5  [u1 a1 u2]              ─▶ branch   lineage 2   boundary; stores all of [u1 a1 u2 | a5], the prefix masked
//! ```
//!
//! * **Token ids decide where there are any.** A call extends an earlier one if its prompt ids begin with all ids of
//!   that one (prompt and output). If they do not, and its messages still extend the latest step of a lineage, the step
//!   stays in that lineage behind a boundary, `token_prefix_mismatch`.
//! * **Messages decide otherwise**, compared by [`MessageKey`](crate::message_form::MessageKey). The reference
//!   compares rendered text; that needs the policy's chat template, which logs do not have. Equality of normalised
//!   messages stands for it.
//! * **Links decide** where a format has them (`parentUuid`): see [`SessionBuilder::attached_call`].
//! * A step behind a boundary, a branch and a new lineage hold their whole prompt, with mask 0: each segment can be
//!   trained on by itself, and no output is trained on twice.

mod experts;
mod finder;
mod pairing;
mod session;

pub use experts::CallExperts;
pub use finder::{Call, CallTokens, Finder, Placement};
pub use session::{CallOutput, ModelCall, SessionBuilder};
