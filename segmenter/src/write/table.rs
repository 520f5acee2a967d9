//! A table for a person at a terminal: columns as wide as the first rows need, cells cut, numbers to the right.

use std::io::Write;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;

use super::Sink;

/// Rows from which the widths of the columns are taken.
const LAYOUT_ROWS: usize = 1_000;

/// What a table may look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableStyle {
    /// Characters of a cell; longer ones end in `…`.
    pub cell_chars_max: usize,
    /// What stands for null.
    pub null: &'static str,
}

impl Default for TableStyle {
    fn default() -> Self {
        Self { cell_chars_max: 60, null: "" }
    }
}

/// Rows of cells wait until the layout is known, then go out as they come.
pub(super) struct TableSink<'a> {
    schema: SchemaRef,
    style: TableStyle,
    out: &'a mut (dyn Write + Send),
    waiting: Vec<Vec<String>>,
    widths: Option<Vec<usize>>,
}

impl<'a> TableSink<'a> {
    pub(super) fn new(schema: SchemaRef, style: TableStyle, out: &'a mut (dyn Write + Send)) -> Self {
        Self { schema, style, out, waiting: Vec::new(), widths: None }
    }

    fn lay_out(&mut self) -> Result<(), DataFusionError> {
        let names: Vec<String> = self.schema.fields().iter().map(|f| f.name().clone()).collect();
        let mut widths: Vec<usize> = names.iter().map(|n| width(n)).collect();
        for row in &self.waiting {
            for (column, cell) in row.iter().enumerate() {
                widths[column] = widths[column].max(width(cell));
            }
        }
        let header = self.line(&names, &widths, false);
        let rule: Vec<String> = widths.iter().map(|w| "─".repeat(w + 2)).collect();
        writeln!(self.out, "{header}\n{}", rule.join("┼"))?;
        for row in std::mem::take(&mut self.waiting) {
            let line = self.line(&row, &widths, true);
            writeln!(self.out, "{line}")?;
        }
        self.widths = Some(widths);
        Ok(())
    }

    fn line(&self, cells: &[String], widths: &[usize], align: bool) -> String {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(width(cell)));
            let number = align && self.schema.field(column).data_type().is_numeric();
            if column > 0 {
                line.push('│');
            }
            line.push(' ');
            if number {
                line.push_str(&pad);
            }
            line.push_str(cell);
            if !number {
                line.push_str(&pad);
            }
            line.push(' ');
        }
        line.truncate(line.trim_end().len());
        line
    }
}

impl Sink for TableSink<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<(), DataFusionError> {
        let columns = batch.columns().iter().map(|column| cells(column, &self.style)).collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|column| column[row].clone()).collect();
            match &self.widths {
                Some(widths) => {
                    let line = self.line(&cells, widths, true);
                    writeln!(self.out, "{line}")?;
                }
                None => self.waiting.push(cells),
            }
            if self.widths.is_none() && self.waiting.len() >= LAYOUT_ROWS {
                self.lay_out()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), DataFusionError> {
        if self.widths.is_none() && !self.schema.fields().is_empty() {
            self.lay_out()?;
        }
        Ok(self.out.flush()?)
    }
}

/// The cells of a column. Bytes are shown by their number: nobody reads payload in a terminal.
fn cells(column: &ArrayRef, style: &TableStyle) -> Result<Vec<String>, DataFusionError> {
    let options = FormatOptions::default()
        .with_display_error(true)
        .with_null(style.null)
        .with_timestamp_tz_format(Some("%Y-%m-%d %H:%M:%S%.f"));
    let bytes = match column.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            Some(arrow::compute::cast(column, &DataType::LargeBinary)?)
        }
        _ => None,
    };
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let mut out = Vec::with_capacity(column.len());
    for row in 0..column.len() {
        out.push(match &bytes {
            Some(bytes) if bytes.is_valid(row) => match bytes.as_binary::<i64>().value(row).len() {
                1 => "<1 byte>".to_owned(),
                n => format!("<{n} bytes>"),
            },
            _ => short(&formatter.value(row).to_string(), style.cell_chars_max),
        });
    }
    Ok(out)
}

/// One line of at most so many characters; control characters would move the cursor.
fn short(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            out.pop();
            out.push('…');
            break;
        }
        match c {
            '\n' => out.push('⏎'),
            '\t' => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Columns of a terminal that a text takes: wide scripts and emoji take two.
fn width(text: &str) -> usize {
    text.chars()
        .map(|c| match u32::from(c) {
            0x0300..=0x036f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
            0x1100..=0x115f
            | 0x2e80..=0xa4cf
            | 0xac00..=0xd7a3
            | 0xf900..=0xfaff
            | 0xfe30..=0xfe6f
            | 0xff00..=0xff60
            | 0xffe0..=0xffe6
            | 0x1f300..=0x1f64f
            | 0x1f680..=0x1faff
            | 0x20000..=0x3fffd => 2,
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_short_line() {
        assert_eq!(short("a\nb\u{1b}[0m", 60), "a⏎b\u{fffd}[0m");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(short("abcd", 4), "abcd");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(width("ab漢字"), 6);
        assert_eq!(width("🏷"), 2);
    }
}
