//! The tokenizers of the policies whose rollouts are kept beside the repository, where that folder exists.

use std::path::PathBuf;

use dressage_tokenizer::Tokenizer;

fn kept(name: &str) -> Option<Tokenizer> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tokenizers").join(name);
    path.exists().then(|| Tokenizer::load(&path).unwrap())
}

#[test]
fn an_emoji_split_over_three_tokens_is_whole_again() {
    for name in ["qwen3.tokenizer.json.zst", "qwen2.5.tokenizer.json.zst"] {
        let Some(tokenizer) = kept(name) else {
            eprintln!("skipped: {name} is not here");
            continue;
        };
        let ids = [6023, 11162, 237, 115, 0];
        assert_eq!(tokenizer.decode(&ids).unwrap(), "hi 🏷!");
        assert_eq!(tokenizer.encode("hi 🏷!").unwrap(), ids);
        assert_eq!(tokenizer.token_bytes(11162), Some(&[0x20, 0xf0, 0x9f][..]));
        assert_eq!(tokenizer.decode(&[237]).unwrap(), "\u{fffd}");

        let mut stream = tokenizer.stream();
        let parts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(parts, ["hi", " ", "", "🏷", "!"]);
    }
}

#[test]
fn control_tokens_have_the_ids_that_the_policies_were_trained_with() {
    let Some(tokenizer) = kept("qwen3.tokenizer.json.zst") else {
        eprintln!("skipped: the kept tokenizers are not here");
        return;
    };
    for (text, id) in [("<|endoftext|>", 151_643), ("<|im_start|>", 151_644), ("<|im_end|>", 151_645)] {
        assert_eq!(tokenizer.id_of(text), Some(id));
        assert!(tokenizer.is_special(id));
        assert_eq!(tokenizer.decode(&[id]).unwrap(), text);
    }
    assert_eq!(tokenizer.id_of("<think>"), Some(151_667));
    assert!(!tokenizer.is_special(151_667), "think marks are text to the tokenizer");
    assert_eq!(tokenizer.encode("<|im_start|>user\n").unwrap(), [151_644, 872, 198]);
}
