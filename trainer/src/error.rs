//! What can go wrong in the trainer, and what the caller should do about it.

use std::io;

use dressage_schemas::ErrorKind;
use tch::TchError;
use thiserror::Error;

use crate::collective::CollectiveError;
use crate::loss::{LossError, NonFinite};
use crate::metrics::tensorboard::EventFileError;
use crate::micro_batch::{BatchError, Place};
use crate::settings::SettingsError;
use crate::torch_error::TorchError;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation of the trainer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A model of a family that is not implemented.
    #[error("models of type `{model_type}` are not supported: there are {known}")]
    UnknownArchitecture {
        /// As `config.json` says.
        model_type: String,
        /// The families that there are.
        known: &'static str,
    },
    /// A known family with something switched on that is not implemented.
    #[error("config.json: {field} = {value} is not supported{hint}")]
    UnsupportedFeature {
        /// The key in `config.json`.
        field: String,
        /// Its value there.
        value: String,
        /// What would be, or nothing.
        hint: &'static str,
    },
    /// `config.json` is not JSON.
    #[error("{place}/config.json is not JSON")]
    ConfigSyntax {
        /// Where the model's files are.
        place: String,
        /// Where it stops being JSON.
        #[source]
        source: serde_json::Error,
    },
    /// A value of `config.json` is missing or contradicts another.
    #[error("config.json: {field} {problem}")]
    ConfigField {
        /// The key.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the model is not there.
    #[error("{place} has no file {name}")]
    FileMissing {
        /// Where the model's files are.
        place: String,
        /// The file.
        name: String,
    },
    /// A file of the model could not be read.
    #[error("cannot read {name} of {place}")]
    FileRead {
        /// Where the model's files are.
        place: String,
        /// The file.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of the model could not be written.
    #[error("cannot write {name} to {place}")]
    FileWrite {
        /// Where the model's files go.
        place: String,
        /// The file.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A weights file is damaged.
    #[error("{name} is not a safetensors file")]
    WeightsFile {
        /// The file.
        name: String,
        /// What its header says.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// The list of weights files is damaged.
    #[error("{name} is not a list of weights files: {problem}")]
    WeightsIndex {
        /// The file.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model needs a tensor that no weights file has.
    #[error("the weights have no tensor {tensor}")]
    TensorMissing {
        /// The tensor.
        tensor: String,
    },
    /// A weights file has a tensor that the model does not know.
    #[error("{name} has tensor {tensor}, which a model of this config does not have")]
    TensorExtra {
        /// The tensor.
        tensor: String,
        /// The file.
        name: String,
    },
    /// A tensor has another shape than the config says.
    #[error("tensor {tensor} has shape {found:?}, but config.json makes it {expected:?}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// By the config.
        expected: Vec<i64>,
        /// In the file.
        found: Vec<i64>,
    },
    /// A tensor's numbers are of a type that is not read.
    #[error("tensor {tensor} is of type {found}: bf16, f16 and f32 are read")]
    TensorKind {
        /// The tensor.
        tensor: String,
        /// In the file.
        found: String,
    },
    /// Two tied tensors are both stored, and differ.
    #[error("{tensor} is tied to {tied_to} by config.json, but the weights have two different ones")]
    TiedTensorsDiffer {
        /// The tensor that should not be there.
        tensor: &'static str,
        /// The one that it repeats.
        tied_to: &'static str,
    },
    /// A packed row without tokens.
    #[error("the packed row has no tokens")]
    EmptyRow,
    /// Lengths that do not add up.
    #[error("{what}: {found} where {expected} are needed")]
    LengthMismatch {
        /// What was counted.
        what: &'static str,
        /// As many as there should be.
        expected: usize,
        /// As many as there are.
        found: usize,
    },
    /// A token that the model's vocabulary does not have.
    #[error(
        "segment {segment} of the row: token {token_id} at position {position} is not in the model's vocabulary of \
         {vocab_size}; were the rollouts made with another tokenizer?"
    )]
    TokenRange {
        /// The segment's place in the row.
        segment: usize,
        /// The token's place in the segment.
        position: usize,
        /// The token.
        token_id: i64,
        /// Tokens that there are.
        vocab_size: i64,
    },
    /// A segment that is longer than the model can see.
    #[error(
        "segment {segment} of the row has {n_tokens} tokens, and the model has {positions_max} positions: plan with \
         max_segment_tokens = {positions_max} or less"
    )]
    SegmentTooLong {
        /// The segment's place in the row.
        segment: usize,
        /// Its length.
        n_tokens: usize,
        /// `max_position_embeddings`.
        positions_max: i64,
    },
    /// Router choices of another shape than the model's.
    #[error("segment {segment} of the row: routed_experts {problem}")]
    RoutingShape {
        /// The segment's place in the row.
        segment: usize,
        /// What does not fit.
        problem: String,
    },
    /// Router choices that name an expert which the model does not have.
    #[error(
        "segment {segment} of the row: routed_experts names expert {expert} for token {position} in layer {layer}, and \
         the model has {n_experts}"
    )]
    ExpertRange {
        /// The segment's place in the row.
        segment: usize,
        /// The token's place in the segment.
        position: usize,
        /// The layer, counted as in `routed_experts`.
        layer: usize,
        /// The expert.
        expert: i64,
        /// Experts that there are.
        n_experts: i64,
    },
    /// A setting that makes no sense.
    #[error("{setting} = {value}: {problem}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// As set.
        value: String,
        /// Why not.
        problem: &'static str,
    },
    /// Saved optimiser state that belongs to other parameters.
    #[error("the optimiser state does not belong to this model: {problem}")]
    OptimizerState {
        /// What does not fit.
        problem: String,
    },
    /// A policy is to be held near a reference that was not given.
    #[error(
        "[kl] coefficient = {coefficient}: needs the weights of a reference; give them or set the coefficient to 0"
    )]
    NoReference {
        /// As set.
        coefficient: f64,
    },
    /// A reference with another vocabulary than the policy's.
    #[error(
        "the reference has a vocabulary of {reference} and the policy one of {policy}: their log-probs cannot be compared"
    )]
    ReferenceVocabulary {
        /// Tokens of the reference.
        reference: i64,
        /// Tokens of the policy.
        policy: i64,
    },
    /// A step that was not given the log-probs that its ratio is over.
    #[error(
        "{place}: needs old log-probs, since [step] train_steps_per_policy = {steps}: compute those of all {steps} steps before \
         the first of them"
    )]
    OldLogprobsMissing {
        /// The micro-batch.
        place: Place,
        /// As set.
        steps: u32,
    },
    /// A file of a checkpoint is not what was written.
    #[error("{name} of {place} is damaged: {problem}")]
    CheckpointDamaged {
        /// Where the checkpoint is.
        place: String,
        /// The file.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A checkpoint of a format that this release does not read.
    #[error(
        "{place} is a checkpoint of format version {found}, and this release reads version {known}: use the one that wrote it"
    )]
    CheckpointVersion {
        /// Where the checkpoint is.
        place: String,
        /// The version that it has.
        found: String,
        /// The version that is read.
        known: u32,
    },
    /// A checkpoint of another model.
    #[error("{place} is a checkpoint of another model: its {field} is {saved}, here it is {here}")]
    CheckpointModel {
        /// Where the checkpoint is.
        place: String,
        /// The first thing that differs.
        field: String,
        /// In the checkpoint.
        saved: String,
        /// Of the model that was to be restored.
        here: String,
    },
    /// A checkpoint of the middle of a window of steps, which another number of ranks wrote.
    #[error(
        "{place} was saved by {saved} ranks in the middle of a window of train steps, and its old log-probs are of their \
         micro-batches: restore it with {saved} ranks, not {here}, or take a checkpoint of the beginning of a window"
    )]
    CheckpointWindow {
        /// Where the checkpoint is.
        place: String,
        /// How many ranks wrote it.
        saved: usize,
        /// How many ranks there are.
        here: usize,
    },
    /// Settings that cannot be, or do not go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A micro-batch that cannot be trained on.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A loss that was not computed.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// A number that is NaN or infinite, or could not be looked at.
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
    /// An event file that was not written or read.
    #[error(transparent)]
    EventFile(#[from] EventFileError),
    /// Ranks that could not work together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// An operation of libtorch failed.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownArchitecture { .. }
            | Self::UnsupportedFeature { .. }
            | Self::ConfigSyntax { .. }
            | Self::ConfigField { .. }
            | Self::TensorMissing { .. }
            | Self::TensorExtra { .. }
            | Self::TensorShape { .. }
            | Self::TensorKind { .. }
            | Self::TiedTensorsDiffer { .. }
            | Self::EmptyRow
            | Self::LengthMismatch { .. }
            | Self::TokenRange { .. }
            | Self::SegmentTooLong { .. }
            | Self::RoutingShape { .. }
            | Self::ExpertRange { .. }
            | Self::Setting { .. }
            | Self::OptimizerState { .. }
            | Self::NoReference { .. }
            | Self::ReferenceVocabulary { .. }
            | Self::CheckpointVersion { .. }
            | Self::CheckpointModel { .. }
            | Self::CheckpointWindow { .. } => ErrorKind::Invalid,
            Self::OldLogprobsMissing { .. } => ErrorKind::Internal,
            Self::FileMissing { .. } => ErrorKind::NotFound,
            Self::FileRead { .. } => ErrorKind::Unavailable,
            Self::FileWrite { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Exhausted,
                _ => ErrorKind::Unavailable,
            },
            Self::WeightsFile { .. } | Self::WeightsIndex { .. } | Self::CheckpointDamaged { .. } => ErrorKind::Corrupt,
            Self::Settings(error) => error.kind(),
            Self::Batch(error) => error.kind(),
            Self::Loss(error) => error.kind(),
            Self::NonFinite(error) => error.kind(),
            Self::EventFile(error) => error.kind(),
            Self::Collective(error) => error.kind(),
            Self::Torch(error) => error.kind(),
        }
    }
}

impl From<TchError> for Error {
    fn from(error: TchError) -> Self {
        TorchError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_of_a_libtorch_error_is_kept() {
        let error = Error::from(TchError::Torch("shapes do not fit\nException raised from f\nframe #0".to_owned()));
        assert_eq!(error.to_string(), "libtorch: shapes do not fit");
        assert_eq!(error.kind(), ErrorKind::Internal);
    }

    #[test]
    fn a_full_disk_is_no_outage() {
        let of = |kind: io::ErrorKind| {
            Error::FileWrite { place: String::new(), name: String::new(), source: kind.into() }.kind()
        };
        assert_eq!(of(io::ErrorKind::StorageFull), ErrorKind::Exhausted);
        assert_eq!(of(io::ErrorKind::TimedOut), ErrorKind::Unavailable);
    }

    #[test]
    fn an_error_is_small_enough_to_be_returned_by_value() {
        assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
    }

    #[test]
    fn running_out_of_memory_is_no_bug() {
        let error = Error::from(TchError::Torch("CUDA out of memory. Tried to allocate 2 GiB".to_owned()));
        assert_eq!(error.kind(), ErrorKind::Exhausted);
    }
}
