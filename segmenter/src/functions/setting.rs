//! `setting('name')`: a variable of the session (`--set name=value`), or NULL.
//!
//! It becomes a constant when a query is planned, so that a filter on it reaches the store like any other.

use std::hash::{Hash, Hasher};

use arrow::datatypes::DataType;
use datafusion::common::{exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::scalar::ScalarValue;

use crate::settings::Variables;

pub(super) fn function(variables: Variables) -> ScalarUDF {
    ScalarUDF::new_from_impl(Setting { signature: Signature::any(1, Volatility::Stable), variables })
}

#[derive(Debug)]
struct Setting {
    signature: Signature,
    variables: Variables,
}

// one session has one of it
impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        self.signature == other.signature
    }
}

impl Eq for Setting {}

impl Hash for Setting {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.signature.hash(state);
    }
}

impl Setting {
    fn value(&self, name: &ScalarValue) -> Result<ScalarValue> {
        match name.try_as_str() {
            Some(Some(name)) => Ok(ScalarValue::Utf8(self.variables.get(name))),
            _ => exec_err!("setting takes the name of a variable, such as setting('grader')"),
        }
    }
}

impl ScalarUDFImpl for Setting {
    fn name(&self) -> &str {
        "setting"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View] => Ok(DataType::Utf8),
            _ => plan_err!("setting takes the name of a variable, such as setting('grader')"),
        }
    }

    fn simplify(&self, args: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match args.as_slice() {
            [Expr::Literal(name, _)] => Ok(ExprSimplifyResult::Simplified(lit(self.value(name)?))),
            _ => Ok(ExprSimplifyResult::Original(args)),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Scalar(name)] => Ok(ColumnarValue::Scalar(self.value(name)?)),
            _ => exec_err!("setting takes one constant name"),
        }
    }
}
