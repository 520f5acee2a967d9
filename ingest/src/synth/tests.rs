//! That a made-up load is what was ordered, the same in every format and for every run of one seed.

use arrow::array::AsArray;
use arrow::datatypes::{Int8Type, Int32Type};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use super::*;

fn small() -> SynthSettings {
    SynthSettings {
        trajectories: 20,
        tokens: 600,
        layers: 3,
        weight_versions: 2,
        ungraded_share: 0.2,
        length_spread: 0.5,
        ..SynthSettings::default()
    }
}

fn write(settings: &SynthSettings, format: SynthFormat) -> (SynthReport, Vec<u8>) {
    let mut out = Vec::new();
    let report = synth(settings, format, &mut out).unwrap();
    assert_eq!(report.bytes, out.len() as u64);
    (report, out)
}

#[test]
fn equal_seeds_give_equal_bytes_and_a_longer_load_begins_with_the_shorter() {
    let mut settings = SynthSettings { weight_versions: 0, ..small() };
    for format in [SynthFormat::Jsonl, SynthFormat::Arrow, SynthFormat::Parquet] {
        assert!(write(&settings, format) == write(&settings, format));
    }
    let (_, short) = write(&settings, SynthFormat::Jsonl);
    settings.trajectories = 30;
    let (_, long) = write(&settings, SynthFormat::Jsonl);
    assert!(long.starts_with(&short));
    settings.seed = 1;
    assert!(!write(&settings, SynthFormat::Jsonl).1.starts_with(&short));
}

#[test]
fn lines_keep_the_rules_of_the_format() {
    let (report, out) = write(&small(), SynthFormat::Jsonl);
    let mut tokens_total = 0;
    let mut outputs = 0;
    for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let value: Value = serde_json::from_slice(line).unwrap();
        assert!(value["reward"].is_null() || value["reward"] == 0.0 || value["reward"] == 1.0);
        for segment in value["segments"].as_array().unwrap() {
            let length = segment["tokens"].as_array().unwrap().len();
            tokens_total += length as u64;
            let mask = segment["full_loss_mask"].as_array().unwrap();
            let logprobs = segment["full_logprobs"].as_array().unwrap();
            let versions = segment["full_versions"].as_array().unwrap();
            assert_eq!((mask.len(), logprobs.len(), versions.len()), (length, length, length));
            assert_eq!(mask.last().unwrap(), 1, "a segment ends in output");
            for (mask, logprob) in mask.iter().zip(logprobs) {
                outputs += mask.as_u64().unwrap();
                assert!(logprob.as_f64().unwrap() <= 0.0 && (mask == 1 || logprob == 0.0));
            }
            let chunk = &segment["routed_experts_chunks"][0];
            assert_eq!(chunk["row_count"], length - 1);
            let bytes = (length - 1) * 3 * 8;
            assert_eq!(chunk["data"].as_str().unwrap().len(), bytes.div_ceil(3) * 4);
        }
    }
    assert_eq!(tokens_total, report.tokens);
    let share = outputs as f64 / tokens_total as f64;
    assert!((share - 0.5).abs() < 0.02, "{share} of the tokens are output, half was asked for");
}

#[test]
fn base64_is_the_standard_one() {
    let settings =
        SynthSettings { trajectories: 1, segments: 1, tokens: 3, layers: 1, topk: 1, length_spread: 0.0, ..small() };
    let maker = Maker::new(&settings).unwrap();
    let experts = &maker.trajectory(0).segments[0].routed_experts;
    let (_, out) = write(&settings, SynthFormat::Jsonl);
    let value: Value = serde_json::from_slice(&out).unwrap();
    let text = value["segments"][0]["routed_experts_chunks"][0]["data"].as_str().unwrap();
    let digit = |c: u8| "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".find(c as char).unwrap();
    let bits = text.bytes().filter(|c| *c != b'=').fold(0_u64, |bits, c| bits << 6 | digit(c) as u64);
    // Two bytes are sixteen bits, padded with two zero bits to three digits.
    assert_eq!(text.len(), 4);
    assert_eq!((bits >> 2).to_be_bytes()[6..], experts[..]);
}

#[test]
fn parquet_and_lines_tell_the_same_trajectories() {
    let (report, lines) = write(&small(), SynthFormat::Jsonl);
    let (columns_report, parquet) = write(&small(), SynthFormat::Parquet);
    assert_eq!(SynthReport { bytes: 0, ..report }, SynthReport { bytes: 0, ..columns_report });
    let segments: Vec<(Value, Value)> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .flat_map(|line| {
            let value: Value = serde_json::from_slice(line).unwrap();
            let id = value["trajectory_id"].clone();
            value["segments"].as_array().unwrap().iter().map(|s| (id.clone(), s.clone())).collect::<Vec<_>>()
        })
        .collect();
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(parquet)).unwrap().build().unwrap();
    let mut row = 0;
    for batch in reader {
        let batch = batch.unwrap();
        let list = |name: &str| batch.column_by_name(name).unwrap().as_list::<i64>().clone();
        let (ids, tokens, mask) =
            (batch.column_by_name("trajectory_id").unwrap().as_string::<i32>(), list("tokens"), list("full_loss_mask"));
        for index in 0..batch.num_rows() {
            let (id, segment) = &segments[row];
            assert_eq!(ids.value(index), id.as_str().unwrap());
            let tokens: Vec<i32> = tokens.value(index).as_primitive::<Int32Type>().values().to_vec();
            assert_eq!(serde_json::to_value(tokens).unwrap(), segment["tokens"]);
            let mask: Vec<i8> = mask.value(index).as_primitive::<Int8Type>().values().to_vec();
            assert_eq!(serde_json::to_value(mask).unwrap(), segment["full_loss_mask"]);
            row += 1;
        }
    }
    assert_eq!(row as u64, report.segments);
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let refused = |settings: SynthSettings| match synth(&settings, SynthFormat::Jsonl, std::io::sink()) {
        Err(Error::BadSetting { setting, .. }) => setting,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(SynthSettings { context_share: 1.5, ..small() }), "context_share");
    assert_eq!(refused(SynthSettings { tokens: 3, ..small() }), "tokens");
    assert_eq!(refused(SynthSettings { experts: 8, ..small() }), "layers");
    assert_eq!(refused(SynthSettings { length_spread: f64::NAN, ..small() }), "length_spread");
}
