//! Functions for trajectories, one concept a file. What SQL has already (`array_min`, `array_transform`,
//! `percentile_cont`, `median`, `approx_percentile_cont`, …) is not here.
//!
//! | function | gives |
//! | --- | --- |
//! | `token_ids(bytes)`, `floats(bytes)` | stored payload as a list |
//! | `mask(spans)`, `mask_sum(spans)` | a loss mask token by token; how many tokens have gradient |
//! | `mask_length(spans)`, `mask_start(spans)`, `mask_cap(spans, n)` | tokens; those before the first with gradient; the first n |
//! | `mask_none(spans)` | the mask of as many tokens without gradient |
//! | `train_mask(spans, version_spans, masked)` | the mask without tokens of older weights, if so wanted |
//! | `trained_versions(spans, version_spans, version)`, `first_…`, `last_…` | the weights that produced the tokens with gradient |
//! | `join_masks(spans, trainable, step)`, `join_versions(…)` | aggregates: the steps of a segment as one |
//! | `exact_mean(x)`, `exact_std(x)` | aggregates: the same bits for any order of rows |
//! | `masked_sum(list, spans)`, `masked_mean(list, spans)` | over the tokens with gradient |
//! | `list_sum(list)`, `list_mean(list)` | over all values that are not null |
//! | `decode(tokens [, tokenizer])` | text |
//! | `versions(spans)`, `real_versions(spans)`, `is_real_version(text)` | weight version of each token; the distinct ones that name weights; whether one does |
//! | `experts(routes, token, layer)`, `experts_info(routes)` | router choices |
//! | `json_get(text, path)`, `json_number(text, path)` | a value inside JSON text |
//! | `setting(name)` | a variable of the session |
//! | `length(bytes)`, `octet_length(bytes)` | how many bytes; of text, as everywhere |
//! | `abs`, `round`, `floor`, `ceil`, `sqrt`, `exp`, `ln`, `log10`, `power`, `sign`, `is_finite` | arithmetic |

mod decode;
mod exact;
mod gather;
mod join_spans;
mod json;
mod length;
mod lists;
mod masks;
mod math;
mod payload;
mod percentile;
mod routes;
mod setting;
mod simple;
mod spans;
mod training;
mod versions;
mod views;

use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::SessionContext;

use crate::settings::Variables;

/// Makes the functions known to a session.
pub(crate) fn register(context: &SessionContext, variables: &Variables) {
    for function in scalar(variables) {
        context.register_udf(function);
    }
    context.register_udaf(percentile::function());
    for function in exact::functions().into_iter().chain(join_spans::functions()) {
        context.register_udaf(function);
    }
}

/// All scalar functions of ours.
pub(crate) fn scalar(variables: &Variables) -> Vec<ScalarUDF> {
    let mut all = vec![setting::function(variables.clone()), decode::function(variables.clone())];
    all.extend(payload::functions());
    all.extend(masks::functions());
    all.extend(training::functions());
    all.extend(lists::functions());
    all.extend(versions::functions());
    all.extend(routes::functions());
    all.extend(json::functions());
    all.extend(math::functions());
    all.extend(length::functions());
    all
}

/// The names of our functions, for completion.
pub(crate) fn names() -> Vec<String> {
    let mut names: Vec<String> = scalar(&Variables::default()).iter().map(|f| f.name().to_owned()).collect();
    names.push(percentile::NAME.to_owned());
    names.extend(exact::NAMES.iter().chain(&join_spans::NAMES).map(|name| (*name).to_owned()));
    names.sort();
    names
}
