//! A chat message in the one form that we store: text and tool calls apart, the rest kept word for word.

/// One row of the `contents` table before it is hashed: a message, a tool schema list, or an inlined file.
///
/// A message with string content and nothing else is fully described by `role` and `text`; anything richer keeps
/// its exact JSON in `body`, so that nothing is lost by the normalisation into `text`, `reasoning` and
/// `tool_calls`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Content {
    /// `message`, `tools` or `data`.
    pub kind: ContentKind,
    /// `system`, `user`, `assistant`, `tool`, … ; none for tools and data.
    pub role: Option<String>,
    /// All text parts, joined by a newline; none where the message has none (which is not the same as empty).
    pub text: Option<String>,
    /// Reasoning text, whichever field it came in; the form is in `body`.
    pub reasoning: Option<String>,
    /// JSON array of tool calls in OpenAI form: `[{"id","type","function":{"name","arguments"}}]`.
    pub tool_calls: Option<String>,
    /// On a tool result: the call it answers.
    pub tool_call_id: Option<String>,
    /// The exact JSON as it came; none where `role` and `text` say everything. Large base64 data is replaced by
    /// `{"$content": "<hash>"}`, the hash of a row of kind `data`.
    pub body: Option<String>,
    /// Raw bytes of a row of kind `data`.
    pub data: Option<Vec<u8>>,
}

/// What a `contents` row holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ContentKind {
    /// A chat message.
    #[default]
    Message,
    /// A list of tool schemas, in `body`.
    Tools,
    /// Bytes that a message had inlined (an image), in `data`.
    Data,
}

impl ContentKind {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Tools => "tools",
            Self::Data => "data",
        }
    }
}

impl Content {
    /// A plain message: a role and text, nothing else.
    pub fn plain(role: &str, text: &str) -> Self {
        Self { role: Some(role.to_owned()), text: Some(text.to_owned()), ..Self::default() }
    }

    /// The bytes that identify this content: every field, length-prefixed, in a fixed order. Hash these (BLAKE3,
    /// first 16 bytes) to get the row's `content_hash`.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.text.as_ref().map_or(0, String::len));
        let fields = [
            Some(self.kind.as_str().as_bytes()),
            self.role.as_deref().map(str::as_bytes),
            self.text.as_deref().map(str::as_bytes),
            self.reasoning.as_deref().map(str::as_bytes),
            self.tool_calls.as_deref().map(str::as_bytes),
            self.tool_call_id.as_deref().map(str::as_bytes),
            self.body.as_deref().map(str::as_bytes),
            self.data.as_deref(),
        ];
        for field in fields {
            match field {
                None => out.extend_from_slice(&u64::MAX.to_le_bytes()),
                Some(bytes) => {
                    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                    out.extend_from_slice(bytes);
                }
            }
        }
        out
    }
}
