//! Printing: streams, tables, sizes.

use std::io::{self, BufWriter, IsTerminal as _, Read, Write};

use serde_json::Value;

use crate::failure::Failure;

/// The streams of a command.
pub(crate) struct Io {
    /// Taken by whoever reads it.
    pub(crate) stdin: Option<Box<dyn Read + Send>>,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// Whether a person watches standard error.
    pub(crate) watched: bool,
    /// Whether standard output goes to a person too, so that nothing should be drawn over it.
    pub(crate) shown: bool,
}

impl Io {
    /// The process's own.
    pub(crate) fn real() -> Self {
        Self {
            stdin: Some(Box::new(io::stdin())),
            out: Box::new(BufWriter::with_capacity(256 << 10, io::stdout())),
            err: Box::new(io::stderr()),
            watched: io::stderr().is_terminal(),
            shown: io::stdout().is_terminal(),
        }
    }

    #[cfg(test)]
    pub(crate) fn fake(
        stdin: impl Read + Send + 'static,
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
    ) -> Self {
        Self {
            stdin: Some(Box::new(stdin)),
            out: Box::new(out),
            err: Box::new(err),
            watched: false,
            shown: false,
        }
    }

    pub(crate) fn print(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text.as_bytes())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// One value with line breaks, for people who look at JSON.
    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.print(&format!("{value:#}\n"))
    }

    /// Says something beside the data. If even that fails there is nobody left to tell.
    pub(crate) fn tell(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes());
        let _ = self.err.flush();
    }
}

/// Rows under titles, each column as wide as its widest cell; two spaces between.
pub(crate) struct Table {
    /// Each with whether its cells stand on the right, as numbers do.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A title that begins with `>` is that of a column of numbers.
    pub(crate) fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('>') {
            Some(title) => (title, true),
            None => (*title, false),
        };
        Self { columns: titles.iter().map(column).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn render(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let rows = || std::iter::once(&titles).chain(&self.rows);
        let width = |at: usize| rows().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..titles.len()).map(|at| width(at).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for ((cell, &width), (_, right)) in row.iter().zip(&widths).zip(&self.columns) {
                line.push_str(&if *right {
                    format!("{cell:>width$}  ")
                } else {
                    format!("{cell:<width$}  ")
                });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// `17 B`, `1.5 KiB`, `3.0 GiB`.
pub(crate) fn size(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes.unsigned_abs() < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        value /= 1024.0;
        unit = next;
        // What would round to 1024.0 belongs to the next unit.
        if value.abs() < 1023.95 {
            break;
        }
    }
    format!("{value:.1} {unit}")
}

/// `1,234,567`.
pub(crate) fn count(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `250 ms`, `1.5 s`, `2 min`, `7 d`: whole where it is whole.
pub(crate) fn span(ms: i64) -> String {
    const UNITS: [(&str, i64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)];
    for (unit, length) in UNITS {
        if ms.unsigned_abs() >= length.unsigned_abs() {
            let value = ms as f64 / length as f64;
            return if ms % length == 0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") };
        }
    }
    format!("{ms} ms")
}

/// Numbers with commas between: `1,2,3`; `-` for none.
pub(crate) fn list(numbers: &[i32]) -> String {
    if numbers.is_empty() {
        return "-".to_owned();
    }
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// "1 record", "2 records".
pub(crate) fn many(number: i64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_spans_are_rounded_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1_073_741_824, "1.0 GiB"),
            (i64::MAX, "8.0 EiB"),
            (-2048, "-2.0 KiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (value, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(count(value), text);
        }
        for (ms, text) in
            [(5, "5 ms"), (1500, "1.5 s"), (120_000, "2 min"), (604_800_000, "7 d"), (-1, "-1 ms")]
        {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_on_the_right() {
        let mut table = Table::new(&["TOPIC", ">RECORDS", "ISR"]);
        table.row(["a".to_owned(), "5".to_owned(), "1,2".to_owned()]);
        table.row(["longer-name".to_owned(), "12345".to_owned(), "2".to_owned()]);
        assert_eq!(
            table.render(),
            "TOPIC        RECORDS  ISR\na                  5  1,2\nlonger-name    12345  2\n"
        );
    }
}
