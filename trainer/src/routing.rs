//! Routing replay (R3): the experts that were chosen when tokens were sampled, chosen again when they are trained on.
//!
//! A server and a trainer round differently, and a router's choice is all or nothing: replaying it keeps both on the
//! same experts. Only the choice is replayed; gate weights come from the router as it is now.

use tch::{Device, Kind, Tensor};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::row::PackedRow;

/// Recorded experts of one segment: `[T − 1, layers, top_k]`, since the last token was never put into the model.
///
/// `layers` is either all layers of the model or only those that have experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedExperts {
    ids: Vec<u16>,
    n_layers: usize,
    top_k: usize,
}

impl RoutedExperts {
    /// Takes ids in the order `[token][layer][rank]`.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`] if they are not a multiple of `n_layers · top_k`.
    pub fn new(ids: Vec<u16>, n_layers: usize, top_k: usize) -> Result<Self> {
        let width = n_layers * top_k;
        if width == 0 || !ids.len().is_multiple_of(width) {
            let expected = ids.len().next_multiple_of(width.max(1));
            return Err(Error::LengthMismatch { what: "routed_experts of a segment", expected, found: ids.len() });
        }
        Ok(Self { ids, n_layers, top_k })
    }

    /// Tokens that have experts.
    pub fn n_tokens(&self) -> usize {
        self.ids.len() / (self.n_layers * self.top_k)
    }

    /// Layers of each token, as recorded.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// Experts of each token in a layer.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// The experts of one token in one layer.
    pub fn of(&self, position: usize, layer: usize) -> &[u16] {
        let start = (position * self.n_layers + layer) * self.top_k;
        &self.ids[start..start + self.top_k]
    }

    /// Checks that these can be replayed in a model.
    pub(crate) fn check(&self, segment: usize, n_tokens: usize, config: &ModelConfig) -> Result<()> {
        let misfit = |problem: String| Err(Error::RoutingShape { segment, problem });
        let Some(experts) = &config.experts else {
            return misfit("are there, and the model has no experts".to_owned());
        };
        let with_experts = experts.layers.iter().filter(|l| **l).count();
        if self.n_layers != config.n_layers && self.n_layers != with_experts {
            return misfit(format!(
                "has {} layers, and the model has {} of which {with_experts} have experts",
                self.n_layers, config.n_layers
            ));
        }
        if self.top_k as i64 != experts.top_k {
            return misfit(format!("has {} experts a token, and the model {}", self.top_k, experts.top_k));
        }
        if self.n_tokens() + 1 != n_tokens {
            return misfit(format!("has {} tokens for a segment of {n_tokens}: one less is right", self.n_tokens()));
        }
        let Some(bad) = self.ids.iter().position(|id| i64::from(*id) >= experts.n_experts) else { return Ok(()) };
        let (position, layer) = (bad / (self.n_layers * self.top_k), bad / self.top_k % self.n_layers);
        // what a layer without experts recorded is never looked at
        if self.n_layers == config.n_layers && !config.has_experts(layer) {
            return self.check_used(segment, config, experts.n_experts);
        }
        Err(Error::ExpertRange { segment, position, layer, expert: self.ids[bad].into(), n_experts: experts.n_experts })
    }

    /// As the last part of [`Self::check`], looking only at layers that have experts.
    fn check_used(&self, segment: usize, config: &ModelConfig, n_experts: i64) -> Result<()> {
        for position in 0..self.n_tokens() {
            for layer in (0..self.n_layers).filter(|l| config.has_experts(*l)) {
                if let Some(expert) = self.of(position, layer).iter().find(|id| i64::from(**id) >= n_experts) {
                    return Err(Error::ExpertRange { segment, position, layer, expert: (*expert).into(), n_experts });
                }
            }
        }
        Ok(())
    }
}

/// What one layer is to choose for a row.
#[derive(Debug)]
pub(crate) enum LayerRouting {
    /// The router chooses.
    Free,
    /// `ids` `[T, top_k]` where `recorded` `[T, 1]` is true; elsewhere the router chooses.
    Replay { ids: Tensor, recorded: Tensor },
    /// `ids` `[T, top_k]` for every token: what an earlier pass over the same row chose.
    Fixed { ids: Tensor },
}

/// The choices of every layer that has experts, in their order.
pub(crate) fn layer_routings(row: &PackedRow, config: &ModelConfig, device: Device) -> Result<Vec<LayerRouting>> {
    let Some(experts) = &config.experts else { return Ok(Vec::new()) };
    let layers: Vec<usize> = (0..config.n_layers).filter(|l| config.has_experts(*l)).collect();
    if row.routed_experts().iter().all(Option::is_none) {
        return Ok(layers.iter().map(|_| LayerRouting::Free).collect());
    }
    let (n_tokens, top_k) = (row.n_tokens(), experts.top_k as usize);
    let mut recorded = vec![false; n_tokens];
    let mut start = 0;
    for (n, routed) in row.lengths().iter().zip(row.routed_experts()) {
        if routed.is_some() {
            recorded[start..start + n - 1].fill(true);
        }
        start += n;
    }
    let recorded = Tensor::f_from_slice(&recorded)?.f_unsqueeze(1)?.f_to_device(device)?;
    let mut routings = Vec::with_capacity(layers.len());
    for (ordinal, layer) in layers.iter().enumerate() {
        let mut ids = vec![0i64; n_tokens * top_k];
        let mut first = 0;
        for (n, routed) in row.lengths().iter().zip(row.routed_experts()) {
            if let Some(routed) = routed {
                let recorded_layer = if routed.n_layers() == config.n_layers { *layer } else { ordinal };
                for position in 0..n - 1 {
                    let place = &mut ids[(first + position) * top_k..(first + position + 1) * top_k];
                    for (to, from) in place.iter_mut().zip(routed.of(position, recorded_layer)) {
                        *to = i64::from(*from);
                    }
                }
            }
            first += n;
        }
        let ids = Tensor::f_from_slice(&ids)?.f_view([n_tokens as i64, top_k as i64])?.f_to_device(device)?;
        routings.push(LayerRouting::Replay { ids, recorded: recorded.shallow_clone() });
    }
    Ok(routings)
}

/// What a pass over a row chose, as it would have been recorded: one entry a segment, layers with experts only.
pub(crate) fn recorded_of(row: &PackedRow, chosen: &[Tensor]) -> Result<Vec<RoutedExperts>> {
    let Some(first) = chosen.first() else { return Ok(Vec::new()) };
    let top_k = first.size().last().copied().unwrap_or_default() as usize;
    let layers = chosen
        .iter()
        .map(|ids| Ok(Vec::<i64>::try_from(ids.f_to_kind(Kind::Int64)?.f_to_device(Device::Cpu)?.f_reshape([-1])?)?))
        .collect::<Result<Vec<_>>>()?;
    let mut segments = Vec::with_capacity(row.lengths().len());
    let mut start = 0;
    for n in row.lengths() {
        let mut ids = Vec::with_capacity((n - 1) * layers.len() * top_k);
        for token in start..start + n - 1 {
            for layer in &layers {
                // an expert's number comes from a config that was checked, and fits
                ids.extend(layer[token * top_k..(token + 1) * top_k].iter().map(|id| *id as u16));
            }
        }
        segments.push(RoutedExperts::new(ids, layers.len(), top_k)?);
        start += n;
    }
    Ok(segments)
}
