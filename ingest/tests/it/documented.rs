//! What `docs/dressage-format.md` shows is what is read.

use dressage_schemas::Table;

use crate::lake::TestLake;

const PAGE: &str = include_str!("../../../docs/dressage-format.md");

fn examples() -> Vec<&'static str> {
    let fenced = PAGE.split("```jsonl\n").skip(1);
    fenced.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_are_read_without_a_word_of_complaint() {
    let lake = TestLake::new().await;
    assert_eq!(examples().len(), 2);
    for (index, example) in examples().iter().enumerate() {
        let report = lake.ingest(lake.file(&format!("{index}"), example)).await;
        assert_eq!((report.trajectories_new, report.quarantined), (1, 0), "{example}\n{report:?}");
    }
    assert_eq!(lake.texts(Table::Steps, "mask_spans", None).await, ["[4, 2]", "[4, 2]", "[2, 1]"]);
    assert_eq!(lake.texts(Table::WeightVersions, "weight_version", None).await, ["7", "8"]);
    assert_eq!(lake.floats(Table::Rewards, "value").await, [Some(1.0), Some(0.5)]);
}

#[test]
fn the_schema_names_every_key_that_the_page_documents() {
    let schema = include_str!("../../../docs/dressage-format.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let keys = |name: &str| schema["$defs"][name]["properties"].as_object().unwrap();
    for key in keys("header").keys().chain(keys("segment").keys()) {
        assert!(PAGE.contains(&format!("`{key}`")), "{key} is in the schema and not on the page");
    }
}
