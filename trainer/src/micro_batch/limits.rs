//! What a model can take, and what a loss has to be given.

/// What a model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Rows of the embedding: a token id must be below.
    pub vocab_size: usize,
    /// Positions that the model was made for (`max_position_embeddings`): the length of the longest segment.
    pub positions_max: usize,
    /// The router's shape; none for a dense model.
    pub router: Option<RouterShape>,
}

/// The shape of a mixture-of-experts model, as recorded router choices have to fit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterShape {
    /// Layers of the model. Inference servers record a choice for each, for dense layers zeros.
    pub layers: usize,
    /// Layers that have experts: fewer where dense ones are mixed in. Choices may be recorded for only these.
    pub expert_layers: usize,
    /// Experts a token and layer.
    pub top_k: usize,
    /// Experts of a layer: an id must be below.
    pub n_experts: usize,
}

/// What a loss has to be given in a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// The rollout's log-probs on every trained token.
    pub logprobs: bool,
}
