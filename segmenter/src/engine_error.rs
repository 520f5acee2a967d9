//! What the engine says, sorted into our errors: it has few kinds, and puts much into words.

use std::sync::Arc;

use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;

use crate::error::Error;
use crate::lake::SourceError;
use crate::nearest::{listed, nearest};

/// The limits that an engine error may name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) memory_limit_bytes: u64,
    pub(crate) spill_limit_bytes: u64,
}

impl Limits {
    /// Sorts an engine error into one of ours.
    pub(crate) fn classify(&self, error: DataFusionError) -> Error {
        let error = unwrapped(error);
        match error {
            DataFusionError::External(inner) => match inner.downcast::<SourceError>() {
                Ok(source) => Error::Store { source: *source },
                // what a view said while it was being looked up
                Err(inner) if inner.is::<Error>() => match inner.downcast::<Error>() {
                    Ok(error) => *error,
                    Err(inner) => Error::Execution { source: Box::new(DataFusionError::External(inner)) },
                },
                Err(inner) => Error::Execution { source: Box::new(DataFusionError::External(inner)) },
            },
            // the engine has one variant for both limits and only its text tells them apart
            DataFusionError::ResourcesExhausted(ref text) if text.contains("disk space") => {
                Error::SpillLimit { limit_bytes: self.spill_limit_bytes, engine: Box::new(error) }
            }
            DataFusionError::ResourcesExhausted(_) => {
                Error::MemoryLimit { limit_bytes: self.memory_limit_bytes, engine: Box::new(error) }
            }
            DataFusionError::SchemaError(ref problem, _) if let Some(unknown) = unknown_column(problem) => unknown,
            DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::Diagnostic(..)
            | DataFusionError::Collection(_) => Error::InvalidQuery { source: Box::new(error) },
            DataFusionError::Internal(_) | DataFusionError::Substrait(_) | DataFusionError::ExecutionJoin(_) => {
                Error::Internal { source: Box::new(error) }
            }
            _ => Error::Execution { source: Box::new(error) },
        }
    }
}

/// Names that an error lists at most.
const NAMES_SHOWN: usize = 12;

/// A column that is in none of the tables: the engine's own message compares it with names that have their table in
/// front, and then lists all of them.
fn unknown_column(problem: &SchemaError) -> Option<Error> {
    let SchemaError::FieldNotFound { field, valid_fields } = problem else { return None };
    let mut names: Vec<&str> = valid_fields.iter().map(|column| column.name.as_str()).collect();
    // the column is there, only not of the table that is named in front of it
    let elsewhere = valid_fields.iter().find(|column| column.name == field.name).map(Column::flat_name);
    let near = elsewhere.or_else(|| nearest(&field.name, names.iter().copied()).map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    Some(Error::UnknownColumn { column: field.flat_name(), near, known: listed(names, NAMES_SHOWN) })
}

/// A table that is not there, if that is what the engine says; it says so in words only.
pub(crate) fn unknown_table(error: &Error, tables: &[String]) -> Option<Error> {
    let Error::InvalidQuery { source } = error else { return None };
    let DataFusionError::Plan(text) = source.find_root() else { return None };
    let name = text.split_once("table '")?.1.split_once("' not found")?.0;
    let table = name.strip_prefix("dressage.public.").unwrap_or(name.strip_prefix("dressage.").unwrap_or(name));
    Some(Error::UnknownTable {
        table: table.to_owned(),
        near: nearest(table, tables.iter().map(String::as_str)).map(str::to_owned),
        known: listed(tables.iter().map(String::as_str), NAMES_SHOWN),
    })
}

/// Takes the wrappers off that say where an error passed through, not what it is.
fn unwrapped(error: DataFusionError) -> DataFusionError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => unwrapped(*inner),
        DataFusionError::Shared(inner) => match Arc::try_unwrap(inner) {
            Ok(inner) => unwrapped(inner),
            Err(inner) => match inner.find_root() {
                DataFusionError::ResourcesExhausted(text) => DataFusionError::ResourcesExhausted(text.clone()),
                DataFusionError::External(source) => match source.downcast_ref::<SourceError>() {
                    Some(source) => DataFusionError::External(Box::new(source.clone())),
                    None => DataFusionError::Shared(inner),
                },
                _ => DataFusionError::Shared(inner),
            },
        },
        DataFusionError::External(inner) => match inner.downcast::<DataFusionError>() {
            Ok(inner) => unwrapped(*inner),
            Err(inner) => DataFusionError::External(inner),
        },
        DataFusionError::ArrowError(inner, backtrace) => match *inner {
            arrow::error::ArrowError::ExternalError(source) => match source.downcast::<DataFusionError>() {
                Ok(source) => unwrapped(*source),
                Err(source) => {
                    DataFusionError::ArrowError(Box::new(arrow::error::ArrowError::ExternalError(source)), backtrace)
                }
            },
            other => DataFusionError::ArrowError(Box::new(other), backtrace),
        },
        other => other,
    }
}
