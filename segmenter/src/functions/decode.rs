//! `decode(tokens [, tokenizer])`: token ids to text. `tokens` is a list of ids or the bytes of a payload column; the
//! tokenizer is a path to a `tokenizer.json`, by default the session's variable `tokenizer`.
//!
//! The engine has a `decode(text or bytes, 'hex' | 'base64')` of its own, which stays reachable under the same name.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type};
use datafusion::common::{exec_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion::scalar::ScalarValue;
use dressage_tokenizer::Tokenizer;

use super::views::{Bytes, Lists, is_bytes, is_text, list_values, texts};
use crate::settings::Variables;

/// Tokenizers that one session keeps loaded: each may be tens of megabytes.
const TOKENIZERS_MAX: usize = 4;

pub(super) fn function(variables: Variables) -> ScalarUDF {
    ScalarUDF::new_from_impl(Decode {
        signature: Signature::one_of(vec![TypeSignature::Any(1), TypeSignature::Any(2)], Volatility::Stable),
        variables,
        loaded: Mutex::default(),
        of_engine: datafusion::functions::encoding::decode(),
    })
}

#[derive(Debug)]
struct Decode {
    signature: Signature,
    variables: Variables,
    loaded: Mutex<HashMap<String, Arc<Tokenizer>>>,
    of_engine: Arc<ScalarUDF>,
}

// one session has one of it
impl PartialEq for Decode {
    fn eq(&self, other: &Self) -> bool {
        self.signature == other.signature
    }
}

impl Eq for Decode {}

impl Hash for Decode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.signature.hash(state);
    }
}

/// The encodings of the engine's function.
fn is_encoding(word: &str) -> bool {
    matches!(word.to_ascii_lowercase().as_str(), "hex" | "base64" | "base64pad")
}

fn constant_text(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}

impl Decode {
    fn is_of_engine(types: &[DataType], second: Option<&ScalarValue>) -> bool {
        types.first().is_some_and(|t| is_text(t) || is_bytes(t))
            && second.and_then(constant_text).is_some_and(is_encoding)
    }

    fn tokenizer(&self, path: Option<&str>) -> Result<Arc<Tokenizer>> {
        let Some(path) = path.map(str::to_owned).or_else(|| self.variables.get("tokenizer")) else {
            return plan_err!(
                "decode needs a tokenizer: decode(tokens, 'path/to/tokenizer.json') or --set tokenizer=path"
            );
        };
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokenizer) = loaded.get(&path) {
            return Ok(Arc::clone(tokenizer));
        }
        let tokenizer = Tokenizer::load(&path).map_err(|e| DataFusionError::External(Box::new(e)))?;
        if loaded.len() >= TOKENIZERS_MAX {
            loaded.clear();
        }
        let tokenizer = Arc::new(tokenizer);
        loaded.insert(path, Arc::clone(&tokenizer));
        Ok(tokenizer)
    }
}

impl ScalarUDFImpl for Decode {
    fn name(&self) -> &str {
        "decode"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        datafusion::common::internal_err!("decode has its type from its arguments")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        if Self::is_of_engine(&types, args.scalar_arguments.get(1).copied().flatten()) {
            let fields = of_engine_fields(args.arg_fields);
            return self.of_engine.inner().return_field_from_args(ReturnFieldArgs { arg_fields: &fields, ..args });
        }
        let ids = types.first().is_some_and(|t| is_bytes(t) || list_values(t).is_some_and(DataType::is_integer));
        if !ids || !types.get(1).is_none_or(is_text) {
            return plan_err!("decode takes token ids (a list or payload bytes) and a tokenizer.json's path");
        }
        Ok(Arc::new(Field::new("decode", DataType::Utf8, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        let second = match args.args.get(1) {
            None => None,
            Some(ColumnarValue::Scalar(value)) => Some(value.clone()),
            Some(ColumnarValue::Array(paths)) => one_value(paths)?,
        };
        if Self::is_of_engine(&types, second.as_ref()) {
            let mut args = args;
            args.args[0] = args.args[0].cast_to(of_engine_fields(&args.arg_fields)[0].data_type(), None)?;
            args.arg_fields = of_engine_fields(&args.arg_fields);
            return self.of_engine.invoke_with_args(args);
        }
        let tokenizer = self.tokenizer(second.as_ref().and_then(constant_text))?;
        let constant = matches!(args.args[0], ColumnarValue::Scalar(_));
        let tokens = args.args[0].to_array(if constant { 1 } else { args.number_rows })?;
        let text = decoded(&tokens, &tokenizer)?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&text, 0)?));
        }
        Ok(ColumnarValue::Array(text))
    }
}

/// The arguments as the engine's function takes them: text as its bytes.
fn of_engine_fields(fields: &[FieldRef]) -> Vec<FieldRef> {
    let mut fields = fields.to_vec();
    if let Some(first) = fields.first_mut()
        && is_text(first.data_type())
    {
        *first = Arc::new(first.as_ref().clone().with_data_type(DataType::Binary));
    }
    fields
}

/// The one value of a column that should have been a constant.
fn one_value(paths: &ArrayRef) -> Result<Option<ScalarValue>> {
    let paths = texts(paths)?;
    let mut values: Vec<&str> = paths.iter().flatten().collect();
    values.dedup();
    match values.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(ScalarValue::from(*one))),
        _ => exec_err!("decode takes one tokenizer for all rows"),
    }
}

fn decoded(tokens: &ArrayRef, tokenizer: &Tokenizer) -> Result<ArrayRef> {
    let mut out = StringBuilder::new();
    if is_bytes(tokens.data_type()) {
        let bytes = Bytes::of(tokens)?;
        for row in 0..tokens.len() {
            let Some(row_bytes) = bytes.get(row) else {
                out.append_null();
                continue;
            };
            let (ids, rest) = row_bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return exec_err!("decode: {} bytes are not a number of 4-byte ids", row_bytes.len());
            }
            let ids: Vec<i32> = ids.iter().map(|id| i32::from_le_bytes(*id)).collect();
            out.append_value(tokenizer.decode_lossy(&ids));
        }
        return Ok(Arc::new(out.finish()));
    }
    let lists = Lists::of(tokens)?;
    let values = arrow::compute::cast(lists.values(), &DataType::Int32)?;
    let values = values.as_primitive::<Int32Type>().values();
    for row in 0..tokens.len() {
        match lists.range(row) {
            Some(range) => out.append_value(tokenizer.decode_lossy(&values[range])),
            None => out.append_null(),
        }
    }
    Ok(Arc::new(out.finish()))
}
