//! Which parameters get their gradient at the same point of the backward pass.

use super::Model;

/// The output matrix, unless it is the embedding, and the last norm.
pub(super) const HEAD_UNIT: usize = 0;

impl Model {
    pub(super) fn unit_of_layer(&self, layer: usize) -> usize {
        self.layers.len() - layer
    }

    pub(super) fn embedding_unit(&self) -> usize {
        self.layers.len() + 1
    }

    /// Places of parameters, a list a unit, in the order in which a backward pass in pieces is done with them: the output matrix
    /// and the last norm, layers from the last to the first, the embedding. Where output matrix and embedding are one, that is
    /// done last.
    pub(crate) fn units(&self) -> Vec<Vec<usize>> {
        let n_layers = self.layers.len();
        let mut units = vec![Vec::new(); n_layers + 2];
        for (at, parameter) in self.parameters.iter().enumerate() {
            let unit = match layer_of(parameter.name()) {
                Some(layer) => self.unit_of_layer(layer),
                None if parameter.name().starts_with("model.embed_tokens.") => self.embedding_unit(),
                None => HEAD_UNIT,
            };
            units[unit].push(at);
        }
        units
    }
}

/// The layer that a parameter's name says.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_layer() {
        assert_eq!(layer_of("model.layers.12.mlp.gate_proj.weight"), Some(12));
        assert_eq!((layer_of("model.norm.weight"), layer_of("lm_head.weight")), (None, None));
    }
}
