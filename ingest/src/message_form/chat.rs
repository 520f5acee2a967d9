//! OpenAI chat messages, and the variants of them that harnesses write.

use serde_json::{Map, Value};

use super::Message;
use super::draft::{Draft, ToolCall, string};
use super::reasoning::split_think;

/// A message object with `role` and `content`.
///
/// Reads content as a string, null, one part, parts, or bare strings; reasoning as `reasoning_content`, `reasoning`,
/// `reasoning_details`, a `thinking` or `reasoning` part, or `<think>` marks in the text (the first of these that is
/// there; all of them stay in the body); tool calls in OpenAI form, flat form, or as JSON strings.
pub fn chat_message(message: Value) -> Message {
    let Value::Object(map) = message else {
        // a bare string in a list of messages is what the user said
        let text = message.as_str().map(str::to_owned);
        return Draft {
            role: "user".to_owned(),
            body: text.is_none().then_some(message),
            text: text.into_iter().collect(),
            ..Draft::default()
        }
        .finish();
    };
    let mut draft = Draft {
        role: string(&map, "role").unwrap_or_else(|| "unknown".to_owned()),
        name: string(&map, "name"),
        tool_call_id: tool_call_id(&map),
        ..Draft::default()
    };
    if let Some(content) = map.get("content") {
        add_content(&mut draft, content);
    }
    let part_reasoning = std::mem::take(&mut draft.reasoning);
    draft.reasoning = field_reasoning(&map).map_or(part_reasoning, |text| vec![text]);
    let mut split = false;
    if draft.role == "assistant"
        && let [text] = draft.text.as_slice()
        && let Some((thought, rest)) = split_think(text)
    {
        split = true;
        if draft.reasoning.is_empty() {
            draft.reasoning = vec![thought];
        }
        draft.text = vec![rest];
    }
    let calls = map.get("tool_calls").and_then(Value::as_array);
    draft.calls.extend(calls.into_iter().flatten().map(tool_call));
    if split || !is_said_by_columns(&map) {
        draft.body = Some(Value::Object(map));
    }
    draft.finish()
}

/// Whether role, text and tool call id are all there is, so that the exact JSON can be written again from them.
fn is_said_by_columns(map: &Map<String, Value>) -> bool {
    map.get("role").is_some_and(Value::is_string)
        && map.get("content").is_some_and(Value::is_string)
        && map.iter().all(|(key, value)| match key.as_str() {
            "role" | "content" => true,
            "tool_call_id" => value.is_string(),
            _ => false,
        })
}

fn tool_call_id(map: &Map<String, Value>) -> Option<String> {
    string(map, "tool_call_id").or_else(|| {
        // SWE-agent writes a list on its tool rows
        map.get("tool_call_ids")?.as_array()?.first()?.as_str().map(str::to_owned)
    })
}

fn add_content(draft: &mut Draft, content: &Value) {
    match content {
        Value::String(text) => draft.text.push(text.clone()),
        Value::Array(parts) => parts.iter().for_each(|part| add_part(draft, part)),
        Value::Object(_) => add_part(draft, content),
        _ => {}
    }
}

fn add_part(draft: &mut Draft, part: &Value) {
    let Value::Object(map) = part else {
        draft.text.extend(part.as_str().map(str::to_owned));
        return;
    };
    match map.get("type").and_then(Value::as_str).unwrap_or("text") {
        "text" | "input_text" | "output_text" | "refusal" => {
            draft.text.extend(string(map, "text").or_else(|| string(map, "refusal")));
        }
        "thinking" => draft.reasoning.extend(string(map, "thinking")),
        "reasoning" => {
            // the first that says something: providers that encrypt reasoning leave an empty text beside a summary
            let said = ["reasoning", "text", "summary"].iter().filter_map(|key| string(map, key));
            draft.reasoning.extend(said.into_iter().find(|text| !text.is_empty()));
        }
        "tool_use" | "tool_call" => draft.calls.push(tool_call(part)),
        _ => {}
    }
}

fn field_reasoning(map: &Map<String, Value>) -> Option<String> {
    let said = |key: &str| string(map, key).filter(|text| !text.is_empty());
    if let Some(text) = said("reasoning_content").or_else(|| said("reasoning")) {
        return Some(text);
    }
    let details = map.get("reasoning_details").or_else(|| map.get("thinking_blocks"))?.as_array()?;
    let texts: Vec<&str> = details
        .iter()
        .filter_map(|detail| ["text", "summary", "thinking"].iter().find_map(|key| detail.get(*key)?.as_str()))
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn tool_call(call: &Value) -> ToolCall {
    // verifiers writes each call as a JSON string
    let parsed = call.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let call = parsed.as_ref().unwrap_or(call);
    let Some(map) = call.as_object() else {
        return ToolCall::new(None, None, Some(call));
    };
    let id = string(map, "id").or_else(|| string(map, "tool_call_id"));
    match map.get("function") {
        Some(Value::Object(function)) => ToolCall::new(id, string(function, "name"), function.get("arguments")),
        // Inspect has the name right there and the arguments beside it
        Some(Value::String(name)) => ToolCall::new(id, Some(name.clone()), map.get("arguments")),
        _ => {
            let arguments = map.get("arguments").or_else(|| map.get("input")).or_else(|| map.get("args"));
            ToolCall::new(id, string(map, "name"), arguments)
        }
    }
}

#[cfg(test)]
mod tests {
    use dressage_schemas::words::flag;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plain_message_needs_no_body_and_anything_richer_keeps_its_json() {
        assert_eq!(chat_message(json!({"role": "user", "content": "hi"})).content.body, None);
        assert_eq!(chat_message(json!({"role": "tool", "content": "r", "tool_call_id": "c1"})).content.body, None);
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]});
        let message = chat_message(parts.clone());
        assert_eq!(message.content.text.as_deref(), Some("a\nb"));
        assert_eq!(serde_json::from_str::<Value>(message.content.body.as_deref().unwrap()).unwrap(), parts);
    }

    #[test]
    fn null_empty_and_missing_content_stay_apart() {
        let bodies: Vec<_> = [
            json!({"role": "assistant", "content": null}),
            json!({"role": "assistant", "content": ""}),
            json!({"role": "assistant", "content": []}),
            json!({"role": "assistant"}),
        ]
        .map(|m| chat_message(m).content)
        .map(|content| (content.text.clone(), content.body.clone()))
        .into();
        for (i, one) in bodies.iter().enumerate() {
            assert!(bodies.iter().skip(i + 1).all(|other| other != one), "{bodies:?}");
        }
    }

    #[test]
    fn reasoning_is_found_in_every_form_and_the_text_is_what_is_left() {
        let forms = [
            json!({"role": "assistant", "reasoning_content": "think", "content": "x"}),
            json!({"role": "assistant", "reasoning": "think", "content": "x"}),
            json!({"role": "assistant", "content": "<think>\nthink\n</think>\n\nx"}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "think", "signature": "s"},
                                                    {"type": "text", "text": "x"}]}),
            json!({"role": "assistant", "content": "x",
                   "reasoning_details": [{"type": "reasoning.text", "text": "think"}]}),
            json!({"role": "assistant", "content": "think\n</think>\n\nx"}),
            json!({"role": "assistant", "reasoning_content": "think", "reasoning": "other",
                   "content": "<think>third</think>x"}),
        ];
        for form in forms {
            let message = chat_message(form.clone());
            assert_eq!(message.content.reasoning.as_deref(), Some("think"), "{form}");
            assert_eq!(message.content.text.as_deref(), Some("x"), "{form}");
            assert_eq!(serde_json::from_str::<Value>(message.content.body.as_deref().unwrap()).unwrap(), form);
        }
    }

    #[test]
    fn arguments_keep_the_form_they_came_in() {
        let arguments = |call: Value| {
            let message = chat_message(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
            let calls: Value = serde_json::from_str(message.content.tool_calls.as_deref().unwrap()).unwrap();
            (calls[0]["function"]["arguments"].as_str().unwrap().to_owned(), message.flags)
        };
        let openai = |arguments: Value| {
            json!({"id": "c1", "type": "function",
                                               "function": {"name": "lookup", "arguments": arguments}})
        };
        for (given, kept) in [
            (json!("{\"city\":\"Paris\"}"), "{\"city\":\"Paris\"}"),
            (json!({"city": "Paris"}), "{\"city\":\"Paris\"}"),
            (json!("null"), "null"),
            (json!("\"{\\\"a\\\":1}\""), "\"{\\\"a\\\":1}\""),
            (json!("{\"city\":\"Paris\",\"city\":\"Rome\"}"), "{\"city\":\"Paris\",\"city\":\"Rome\"}"),
        ] {
            assert_eq!(arguments(openai(given)), (kept.to_owned(), vec![]));
        }
        assert_eq!(arguments(openai(json!("{\"city\": \"Pa"))).1, [flag::ARGUMENTS_NOT_JSON]);
        let as_string = json!("{\"id\":\"c1\",\"function\":{\"name\":\"lookup\",\"arguments\":\"{}\"}}");
        assert_eq!(arguments(as_string).0, "{}");
        let inspect = json!({"id": "c1", "function": "lookup", "arguments": {"a": 1}, "type": "function"});
        assert_eq!(arguments(inspect).0, "{\"a\":1}");
    }
}
