//! Models come from and go to the files that transformers writes and reads; what does not fit is named.

use std::collections::BTreeMap;
use std::path::Path;

use dressage_schemas::ErrorKind;
use dressage_trainer::{Error, FileBytes, Folder, Model, ModelFiles, ModelOptions, Result};
use tch::{Kind, Tensor};

use crate::cases::{CASES, Case, distance, folder};

/// A model whose files are in memory: what an object store would give.
struct InMemory(BTreeMap<String, Vec<u8>>);

impl InMemory {
    fn of(folder: &Path) -> Self {
        let files = ["config.json", "model.safetensors"];
        Self(files.iter().map(|f| ((*f).to_owned(), std::fs::read(folder.join(f)).expect("read"))).collect())
    }

    /// With the tensors changed.
    fn changed(name: &str, change: impl FnOnce(&mut Vec<(String, Tensor)>)) -> Self {
        let mut files = Self::of(&folder(name));
        let mut tensors = Tensor::read_safetensors(folder(name).join("model.safetensors")).expect("tensors");
        change(&mut tensors);
        let place = tempfile::tempdir().expect("tempdir");
        let path = place.path().join("model.safetensors");
        Tensor::write_safetensors(&tensors, &path).expect("write");
        files.0.insert("model.safetensors".to_owned(), std::fs::read(path).expect("read"));
        files
    }
}

impl ModelFiles for InMemory {
    fn open(&self, name: &str) -> Result<FileBytes> {
        let bytes = self.0.get(name).cloned();
        bytes.map(FileBytes::from).ok_or_else(|| Error::FileMissing { place: self.place(), name: name.to_owned() })
    }

    fn has(&self, name: &str) -> Result<bool> {
        Ok(self.0.contains_key(name))
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}

fn refusal(files: &InMemory) -> Error {
    Model::load(files, ModelOptions::default()).expect_err("refused")
}

#[test]
fn a_saved_model_is_the_model_whole_or_in_shards() {
    for name in CASES {
        let case = Case::load(name);
        let expected = case.model.logits(&case.row).expect("logits");
        for shard_bytes_max in [u64::MAX, 20_000] {
            let place = tempfile::tempdir().expect("tempdir");
            case.model.save(&mut Folder::at(place.path()), Kind::Float, shard_bytes_max).expect("save");
            let sharded = place.path().join("model.safetensors.index.json").exists();
            assert_eq!(sharded, shard_bytes_max < u64::MAX, "{name}");
            let again = Model::load(&Folder::at(place.path()), ModelOptions::default()).expect("load");
            assert_eq!(distance(&again.logits(&case.row).expect("logits"), &expected), 0.0, "{name}");
        }
    }
}

#[test]
fn a_saved_file_has_the_tensors_that_transformers_wrote() {
    for name in CASES {
        let case = Case::load(name);
        let place = tempfile::tempdir().expect("tempdir");
        case.model.save(&mut Folder::at(place.path()), Kind::Float, u64::MAX).expect("save");
        let read = |path: &Path| -> BTreeMap<String, Tensor> {
            Tensor::read_safetensors(path.join("model.safetensors")).expect("tensors").into_iter().collect()
        };
        let (ours, theirs) = (read(place.path()), read(&folder(name)));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (tensor, values) in &ours {
            assert_eq!(values, &theirs[tensor], "{name}: {tensor}");
        }
    }
}

#[test]
fn a_model_can_come_from_elsewhere_than_a_folder() {
    let case = Case::load("qwen3_moe");
    let model = Model::load(&InMemory::of(&folder("qwen3_moe")), ModelOptions::default()).expect("load");
    let expected = case.model.logits(&case.row).expect("logits");
    assert_eq!(distance(&model.logits(&case.row).expect("logits"), &expected), 0.0);
}

#[test]
fn a_missing_an_extra_and_a_misshapen_tensor_are_named() {
    let tensor = "model.layers.1.mlp.experts.3.up_proj.weight";
    let missing = refusal(&InMemory::changed("qwen3_moe", |tensors| tensors.retain(|(name, _)| name != tensor)));
    assert!(matches!(&missing, Error::TensorMissing { tensor: t } if t == tensor), "{missing}");
    let extra = refusal(&InMemory::changed("qwen3_moe", |tensors| {
        tensors.push(("model.layers.2.input_layernorm.weight".to_owned(), Tensor::from_slice(&[1f32])));
    }));
    assert!(extra.to_string().contains("model.layers.2.input_layernorm.weight"), "{extra}");
    let misshapen = refusal(&InMemory::changed("qwen3_moe", |tensors| {
        for (_, values) in tensors.iter_mut().filter(|(name, _)| name == tensor) {
            *values = values.transpose(0, 1).contiguous();
        }
    }));
    assert!(misshapen.to_string().contains(tensor) && misshapen.to_string().contains("[32, 16]"), "{misshapen}");
    let integers = refusal(&InMemory::changed("qwen3_moe", |tensors| {
        for (_, values) in tensors.iter_mut().filter(|(name, _)| name == tensor) {
            *values = values.to_kind(Kind::Int64);
        }
    }));
    assert!(matches!(&integers, Error::TensorKind { tensor: t, .. } if t == tensor), "{integers}");
}

#[test]
fn a_tied_output_matrix_may_be_stored_twice_if_it_is_the_same() {
    let with_head = |change: f64| {
        InMemory::changed("qwen2_tied", |tensors| {
            let embedding = tensors.iter().find(|(name, _)| name == "model.embed_tokens.weight").expect("embedding");
            let head = &embedding.1 + change;
            tensors.push(("lm_head.weight".to_owned(), head));
        })
    };
    assert!(Model::load(&with_head(0.0), ModelOptions::default()).is_ok());
    assert!(matches!(refusal(&with_head(1.0)), Error::TiedTensorsDiffer { .. }));
}

#[test]
fn damaged_and_missing_files_are_named() {
    let mut files = InMemory::of(&folder("qwen3"));
    let whole = files.0["model.safetensors"].clone();
    files.0.insert("model.safetensors".to_owned(), whole[..whole.len() / 2].to_vec());
    let cut = refusal(&files);
    assert_eq!(cut.kind(), ErrorKind::Corrupt);
    assert!(cut.to_string().contains("model.safetensors"), "{cut}");
    files.0.remove("model.safetensors");
    let missing = refusal(&files);
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let index = r#"{"weight_map": {"a": "../elsewhere.safetensors"}}"#;
    files.0.insert("model.safetensors.index.json".to_owned(), index.as_bytes().to_vec());
    assert!(matches!(refusal(&files), Error::WeightsIndex { .. }), "a name that leads out of the folder");
    files.0.insert("config.json".to_owned(), b"{".to_vec());
    assert!(matches!(refusal(&files), Error::ConfigSyntax { .. }));
    let nowhere = Model::load(&Folder::at("/nowhere"), ModelOptions::default()).expect_err("nothing there");
    assert!(nowhere.to_string().contains("/nowhere"), "{nowhere}");
}

#[test]
fn tokens_and_lengths_that_the_model_does_not_have_are_refused() {
    let case = Case::load("qwen3");
    let row = |tokens: Vec<i32>| {
        let first = dressage_trainer::Segment::of(vec![1]);
        dressage_trainer::PackedRow::new(vec![first, dressage_trainer::Segment::of(tokens)]).expect("row")
    };
    let error = case.model.logits(&row(vec![1, 96])).expect_err("no such token");
    assert!(matches!(error, Error::TokenRange { segment: 1, position: 1, token_id: 96, vocab_size: 96 }), "{error}");
    assert!(case.model.logits(&row(vec![-1])).is_err());
    let error = case.model.logits(&row(vec![1; 129])).expect_err("too long");
    assert!(matches!(error, Error::SegmentTooLong { segment: 1, n_tokens: 129, positions_max: 128 }), "{error}");
}
