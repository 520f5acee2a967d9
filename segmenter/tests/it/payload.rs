//! Functions on real payload: token ids through a tokenizer, router choices through the codec.

use std::sync::Arc;

use dressage_codec::{Dtype, Mode, RoutedView, encode};
use dressage_schemas::Table;
use dressage_schemas::tables::{steps, trajectories};
use dressage_segmenter::MemoryLake;

use crate::fixture::{chain, ids, rows, session, step, trajectory};

const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,
"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
"fuse_unk":false,"byte_fallback":false,"vocab":{"hel":0,"lo":1,"Ġworld":2,"ð":3,"Ł":4,"ı":5,"·":6},"merges":[]}}"#;

fn lake() -> Arc<MemoryLake> {
    let owner = trajectory("run", "t", 1);
    let mut first = step(&owner, 0, 1, 2);
    first.token_ids = Some(ids(&[0, 1, 2]));
    // two tokens, two layers, top-2
    let view = RoutedView::new(&[7, 3, 1, 2, 9, 8, 0, 5], Dtype::Uint8, 2, 2, 2).unwrap();
    first.routed_experts = Some(encode(&view, Mode::Ranked, Some(16)).unwrap());
    let mut second = step(&owner, 1, 1, 0);
    second.token_ids = None;
    second.logprobs = None;
    let lake = MemoryLake::new()
        .with(Table::Trajectories, trajectories::batch(&[owner]).unwrap())
        .with(Table::Steps, steps::batch(&[first, second]).unwrap());
    Arc::new(lake)
}

#[tokio::test]
async fn token_ids_decode_to_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let path = path.to_str().unwrap();
    let session = session(&lake());
    let sql = format!("SELECT decode(token_ids, '{path}') FROM steps ORDER BY step_index");
    assert_eq!(rows(&session, &sql).await, ["hello world", ""]);
    let error = session.sql("SELECT decode(token_ids) FROM steps").await.unwrap().collect().await.unwrap_err();
    assert!(chain(&error).contains("--set tokenizer"), "{}", chain(&error));
    session.set("tokenizer", Some(path)).unwrap();
    assert_eq!(rows(&session, "SELECT decode(token_ids) FROM steps ORDER BY step_index").await, ["hello world", ""]);
    let stored = "SELECT decode(token_ids) FROM stored.steps WHERE step_index = 0";
    assert_eq!(rows(&session, stored).await, ["hello world"], "the bytes as they are stored");
    assert_eq!(rows(&session, "SELECT decode(arrow_cast(make_array(0, 99), 'List(Int32)'))").await, ["hel\u{fffd}"]);
    session.set("tokenizer", Some("/nowhere/tokenizer.json")).unwrap();
    let error = session.sql("SELECT decode(token_ids) FROM steps").await.unwrap().collect().await.unwrap_err();
    assert!(chain(&error).contains("/nowhere/tokenizer.json"), "{}", chain(&error));
}

#[tokio::test]
async fn router_choices_are_read_by_token_and_layer() {
    let session = session(&lake());
    let sql = "SELECT experts(routed_experts, 0, 0), experts(routed_experts, 1, 1), experts(routed_experts, 2, 0), \
               experts_info(routed_experts) FROM steps WHERE step_index = 0";
    assert_eq!(
        rows(&session, sql).await,
        ["[7, 3]|[0, 5]||{rows: 2, layers: 2, topk: 2, n_experts: 16, ranked: true}"]
    );
    let sql = "SELECT experts(routed_experts, 0, 0), experts_info(routed_experts) FROM steps WHERE step_index = 1";
    assert_eq!(rows(&session, sql).await, ["|"]);
    let error = session.sql("SELECT experts_info(arrow_cast('nonsense', 'Binary'))").await;
    let error = match error {
        Ok(query) => query.collect().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), dressage_schemas::ErrorKind::Invalid, "{}", chain(&error));
}
