//! Tables as comma-separated values: quoted cells, a header, cells by name.

/// Rows of cells. Quotes may hold commas, line ends and doubled quotes.
pub(crate) fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let (mut row, mut cell) = (Vec::new(), String::new());
    let (mut quoted, mut characters) = (false, text.chars().peekable());
    while let Some(c) = characters.next() {
        match (c, quoted) {
            ('"', true) if characters.peek() == Some(&'"') => {
                characters.next();
                cell.push('"');
            }
            ('"', _) => quoted = !quoted,
            (',', false) => row.push(std::mem::take(&mut cell)),
            ('\r', false) if characters.peek() == Some(&'\n') => {}
            ('\n', false) => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            (c, _) => cell.push(c),
        }
    }
    if !cell.is_empty() || !row.is_empty() {
        row.push(cell);
        rows.push(row);
    }
    rows.retain(|row| row.iter().any(|cell| !cell.trim().is_empty()));
    rows
}

/// A table whose first row names the columns.
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Reads a table; `None` when there is no header.
    pub(crate) fn read(text: &str) -> Option<Table> {
        let mut rows = rows(text).into_iter();
        let header = rows.next()?.iter().map(|name| name.trim().to_owned()).collect();
        Some(Table { header, rows: rows.collect() })
    }

    pub(crate) fn header(&self) -> &[String] {
        &self.header
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { header: &self.header, cells })
    }
}

/// One row.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    header: &'a [String],
    cells: &'a [String],
}

impl<'a> Row<'a> {
    /// The cell of a column; `None` when it is empty or not there.
    pub(crate) fn text(&self, column: &str) -> Option<&'a str> {
        let at = self.header.iter().position(|name| name == column)?;
        self.cells.get(at).map(|cell| cell.trim()).filter(|cell| !cell.is_empty())
    }

    /// A figure; signs of "more than", "less than" and "about" are dropped.
    pub(crate) fn number(&self, column: &str) -> Option<f64> {
        let text = self.text(column)?.trim_start_matches(['>', '<', '~']);
        text.parse::<f64>().ok().filter(|value| value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_cells_hold_anything_and_an_empty_cell_is_none() {
        let table = Table::read("a,b,c\r\n1,\"x, \"\"y\"\"\n\",\n>5,,z").unwrap();
        let rows: Vec<Row<'_>> = table.rows().collect();
        assert_eq!(rows[0].text("b"), Some("x, \"y\""));
        assert_eq!((rows[0].text("c"), rows[1].number("a")), (None, Some(5.0)));
        assert_eq!((rows[1].text("c"), rows[1].text("nothing")), (Some("z"), None));
        assert!(Table::read("").is_none());
    }
}
