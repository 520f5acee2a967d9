//! Token ids to text and back, from a tokenizer.json.
