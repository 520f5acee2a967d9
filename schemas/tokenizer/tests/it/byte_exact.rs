//! Byte-exactness, streaming and refusals, on a tokenizer small enough to see through.

use dressage_schemas::ErrorKind;
use dressage_tokenizer::{Error, Tokenizer};
use proptest::prelude::*;
use serde_json::json;

use crate::tiny::{tiny, tiny_json};

#[test]
fn text_comes_back_with_control_tokens_written_out() {
    let tokenizer = tiny();
    let text = "<|im_start|>user\nhe hé 🏷!";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids[0], 259);
    assert!(ids.contains(&256), "the merge of h and e is used: {ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert!(tokenizer.is_special(259) && !tokenizer.is_special(260) && !tokenizer.is_special(65));
    assert_eq!(tokenizer.id_of("<|im_start|>"), Some(259));
}

#[test]
fn an_added_token_outside_ascii_stands_for_its_own_text() {
    // its é is also the name of byte e9 in the byte-level alphabet
    assert_eq!(tiny().decode(&[260]).unwrap(), "<é>");
}

#[test]
fn an_id_in_a_gap_or_beyond_the_vocabulary_is_an_error_that_names_it() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.id_count(), 401);
    for id in [399, 401, -1, i32::MAX] {
        let error = tokenizer.decode(&[65, id]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        assert_eq!(tokenizer.decode_lossy(&[65, id, 66]), "A\u{fffd}B");
    }
}

#[test]
fn a_character_cut_at_an_end_is_one_replacement_character_and_whole_bytes() {
    let tokenizer = tiny();
    let ids = tokenizer.encode("🏷").unwrap();
    assert_eq!(ids.len(), 4);
    assert_eq!(tokenizer.decode(&ids[..3]).unwrap(), "\u{fffd}");
    assert_eq!(tokenizer.decode_bytes(&ids[..3]).unwrap(), &"🏷".as_bytes()[..3]);
}

#[test]
fn a_stream_gives_a_character_only_when_it_is_whole() {
    let tokenizer = tiny();
    let ids = tokenizer.encode("a🏷b").unwrap();
    let mut stream = tokenizer.stream();
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(parts, ["a", "", "", "", "🏷", "b"]);
    assert_eq!(stream.finish(), "");

    let mut cut = tokenizer.stream();
    assert_eq!(cut.push(ids[1]).unwrap(), "");
    assert!(matches!(cut.push(399), Err(Error::UnknownToken { id: 399, .. })));
    assert_eq!(cut.finish(), "\u{fffd}");
}

#[test]
fn one_leading_space_of_a_metaspace_tokenizer_is_not_text() {
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let tokenizer = Tokenizer::from_json("stripping", tiny_json(&decoder).as_bytes()).unwrap();
    let ids = tokenizer.encode("  hi").unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), " hi");
    let mut stream = tokenizer.stream();
    let streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(streamed, " hi");
}

#[test]
fn files_that_are_no_tokenizer_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(folder.path()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("tokenizer.json"), "a folder stands for the file in it: {missing}");

    let prompts = Tokenizer::from_json("prompts.jsonl", b"{\"prompt\": \"hi\"}").unwrap_err();
    assert_eq!(prompts.kind(), ErrorKind::Invalid);
    let text = Tokenizer::from_json("notes.txt", b"not json").unwrap_err();
    assert!(matches!(text, Error::NotATokenizer { .. }));
    let word_piece = Tokenizer::from_json("bert", tiny_json(&json!({"type": "WordPiece"})).as_bytes()).unwrap_err();
    assert!(matches!(word_piece, Error::DecoderNotByteExact { .. }));
}

#[test]
fn a_folder_and_a_zstd_file_load_like_the_plain_one() {
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tiny_json(&decoder)).unwrap();
    let packed = folder.path().join("named-by-nobody");
    std::fs::write(&packed, zstd::encode_all(tiny_json(&decoder).as_bytes(), 3).unwrap()).unwrap();
    for path in [folder.path(), packed.as_path()] {
        assert_eq!(Tokenizer::load(path).unwrap().decode(&[257, 256]).unwrap(), " hhe");
    }
}

proptest! {
    #[test]
    fn any_text_comes_back(text in "\\PC{0,60}") {
        let tokenizer = tiny();
        let ids = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }

    #[test]
    fn decoding_in_two_parts_or_one_by_one_is_decoding_whole(
        ids in proptest::collection::vec(0_i32..258, 0..60), cut in 0_usize..60,
    ) {
        let tokenizer = tiny();
        let whole = tokenizer.decode_bytes(&ids).unwrap();
        let cut = cut.min(ids.len());
        let mut parts = tokenizer.decode_bytes(&ids[..cut]).unwrap();
        parts.extend(tokenizer.decode_bytes(&ids[cut..]).unwrap());
        prop_assert_eq!(&parts, &whole);

        let mut stream = tokenizer.stream();
        let mut streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        streamed.push_str(&stream.finish());
        prop_assert_eq!(streamed, String::from_utf8_lossy(&whole));
    }
}
