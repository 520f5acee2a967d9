//! The shape that our functions share: fixed arity, result type from argument types, arrays in, array out.

use std::fmt;
use std::hash::{Hash, Hasher};

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion::scalar::ScalarValue;

/// A function without state: equal if it has the same name.
pub(super) struct Simple {
    pub(super) name: &'static str,
    signature: Signature,
    returns: fn(&[DataType]) -> Result<DataType>,
    call: fn(&[ArrayRef], usize) -> Result<ArrayRef>,
}

impl Simple {
    /// A function of `arity` arguments. `returns` refuses argument types; `call` gets all arguments at full length.
    pub(super) fn function(
        name: &'static str,
        arity: usize,
        returns: fn(&[DataType]) -> Result<DataType>,
        call: fn(&[ArrayRef], usize) -> Result<ArrayRef>,
    ) -> ScalarUDF {
        Self::with_arities(name, &[arity], returns, call)
    }

    /// A function that takes one of several numbers of arguments.
    pub(super) fn with_arities(
        name: &'static str,
        arities: &[usize],
        returns: fn(&[DataType]) -> Result<DataType>,
        call: fn(&[ArrayRef], usize) -> Result<ArrayRef>,
    ) -> ScalarUDF {
        let signature = match arities {
            [one] => Signature::any(*one, Volatility::Immutable),
            many => Signature::one_of(many.iter().map(|n| TypeSignature::Any(*n)).collect(), Volatility::Immutable),
        };
        ScalarUDF::new_from_impl(Self { name, signature, returns, call })
    }
}

impl fmt::Debug for Simple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simple").field("name", &self.name).finish()
    }
}

impl PartialEq for Simple {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Simple {}

impl Hash for Simple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Simple {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        (self.returns)(arg_types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let arrays = args.args.into_iter().map(|a| a.into_array(rows)).collect::<Result<Vec<_>>>()?;
        let result = (self.call)(&arrays, rows)?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?));
        }
        Ok(ColumnarValue::Array(result))
    }
}
