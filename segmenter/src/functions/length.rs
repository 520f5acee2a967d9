//! `length` and `octet_length` of bytes, beside those of text that the engine has: how much of a refused record is kept
//! is asked with `length(raw)`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::functions::string::octet_length;
use datafusion::functions::unicode::character_length;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

/// The engine's function of text, and the number of bytes where it is given bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    name: &'static str,
    of_text: Arc<ScalarUDF>,
    signature: Signature,
}

pub(super) fn functions() -> Vec<ScalarUDF> {
    [("length", character_length()), ("octet_length", octet_length())]
        .map(|(name, of_text)| {
            let signature = Signature::user_defined(Volatility::Immutable);
            ScalarUDF::new_from_impl(Length { name, of_text, signature })
        })
        .into()
}

fn is_bytes(kind: &DataType) -> bool {
    matches!(kind, DataType::Binary | DataType::LargeBinary)
}

impl ScalarUDFImpl for Length {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let [given] = arg_types else {
            return datafusion::common::plan_err!("{} takes one text or some bytes", self.name);
        };
        Ok(vec![match given {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Binary | DataType::LargeBinary => {
                given.clone()
            }
            DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::LargeBinary,
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Struct(_) => {
                return datafusion::common::plan_err!(
                    "{} is of text or bytes, not of {given}; a list's is array_length",
                    self.name
                );
            }
            _ => DataType::Utf8,
        }])
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types {
            [DataType::Binary] => Ok(DataType::Int32),
            [DataType::LargeBinary] => Ok(DataType::Int64),
            _ => self.of_text.inner().return_type(arg_types),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Array(bytes)] if is_bytes(bytes.data_type()) => {
                Ok(ColumnarValue::Array(arrow::compute::kernels::length::length(bytes)?))
            }
            [ColumnarValue::Scalar(bytes)] if is_bytes(&bytes.data_type()) => {
                let lengths = arrow::compute::kernels::length::length(&bytes.to_array()?)?;
                Ok(ColumnarValue::Scalar(datafusion::scalar::ScalarValue::try_from_array(&lengths, 0)?))
            }
            _ => self.of_text.inner().invoke_with_args(args),
        }
    }
}
