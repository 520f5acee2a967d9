//! What there is to query, with words for people: for `\d`, completion and documentation.

use std::borrow::Cow;
use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use datafusion::catalog::CatalogProvider;
use serde::Serialize;

use crate::catalog::{Origin, PUBLIC, STORED};
use crate::error::{Error, Result};
use crate::functions;
use crate::session::Session;
use crate::views::Header;

/// A table or view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableInfo {
    /// `public` or `stored`.
    pub schema: String,
    /// Its name; in schema `public` usable without the schema.
    pub name: String,
    /// Where it comes from.
    pub origin: Origin,
    /// One sentence on what a row is; empty for what the user brought.
    pub doc: String,
    /// Its columns, in order.
    pub columns: Vec<ColumnInfo>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type, as SQL people write it.
    pub data_type: String,
    /// Whether it may be null.
    pub nullable: bool,
    /// What it holds; empty where nobody said.
    pub doc: String,
}

impl Session {
    /// Everything that a query can name, views for people first.
    ///
    /// # Errors
    /// Whatever a view's definition or the store gives.
    pub async fn tables(&self) -> Result<Vec<TableInfo>> {
        let mut tables = Vec::new();
        for schema in [PUBLIC, STORED] {
            for name in self.names(schema) {
                if let Some(table) = self.table(&format!("{schema}.{name}")).await? {
                    tables.push(table);
                }
            }
        }
        Ok(tables)
    }

    /// The names of tables and views, without planning any: those of `public` bare, the others with their schema.
    pub fn table_names(&self) -> Vec<String> {
        let stored = self.names(STORED).into_iter().map(|name| format!("{STORED}.{name}"));
        self.names(PUBLIC).into_iter().chain(stored).collect()
    }

    /// One table or view; none if there is none of that name.
    ///
    /// # Errors
    /// Whatever its definition or the store gives.
    pub async fn table(&self, name: &str) -> Result<Option<TableInfo>> {
        let (schema, name) = name.split_once('.').unwrap_or((PUBLIC, name));
        let Some(provider) = self.catalog().schema(schema) else { return Ok(None) };
        let failed = |source| Error::View { name: name.to_owned(), source: Box::new(source) };
        let Some(table) = provider.table(name).await.map_err(failed)? else { return Ok(None) };
        let public = self.catalog().public();
        let (origin, header) = match schema {
            PUBLIC => {
                let definition = public.definition(name).await.map_err(failed)?;
                let origin = public.origin(name).unwrap_or(Origin::View);
                (origin, definition.as_deref().map(Header::parse).unwrap_or_default())
            }
            _ => (Origin::Stored, Header::default()),
        };
        let columns = table
            .schema()
            .fields()
            .iter()
            .map(|field| ColumnInfo {
                name: field.name().clone(),
                data_type: type_name(field.data_type()),
                nullable: field.is_nullable(),
                doc: header.column(field.name()).unwrap_or_default().to_owned(),
            })
            .collect();
        Ok(Some(TableInfo { schema: schema.to_owned(), name: name.to_owned(), origin, doc: header.doc, columns }))
    }

    /// The SQL of a built-in view, as it applies to this store.
    ///
    /// # Errors
    /// Whatever the store gives when asked which definition applies.
    pub async fn view_definition(&self, name: &str) -> Result<Option<String>> {
        let definition = self.catalog().public().definition(name).await;
        definition
            .map(|sql| sql.map(Cow::into_owned))
            .map_err(|source| Error::View { name: name.to_owned(), source: Box::new(source) })
    }

    /// Names of all functions: ours (`true`) and the engine's.
    pub fn functions(&self) -> BTreeMap<String, bool> {
        let state = self.context().state();
        let engine = state.scalar_functions().keys().chain(state.aggregate_functions().keys());
        let engine = engine.chain(state.window_functions().keys()).chain(state.higher_order_functions().keys());
        let mut all: BTreeMap<String, bool> = engine.map(|name| (name.clone(), false)).collect();
        all.extend(functions::names().into_iter().map(|name| (name, true)));
        all
    }

    fn names(&self, schema: &str) -> Vec<String> {
        self.catalog().schema(schema).map(|s| s.table_names()).unwrap_or_default()
    }
}

/// A type in words that a person who writes SQL knows.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "text".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytes".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::Int8 => "int8".to_owned(),
        DataType::Int16 => "int16".to_owned(),
        DataType::Int32 => "int32".to_owned(),
        DataType::Int64 => "int64".to_owned(),
        DataType::Float32 => "float32".to_owned(),
        DataType::Float64 => "float64".to_owned(),
        DataType::Timestamp(..) => "timestamp".to_owned(),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            format!("{}[]", type_name(field.data_type()))
        }
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| format!("{} {}", f.name(), type_name(f.data_type()))).collect();
            format!("struct({})", fields.join(", "))
        }
        other => other.to_string().to_lowercase(),
    }
}
