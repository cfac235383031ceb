//! Published tables, as they were published: comma-separated, in the folder `tables`.

/// A table by rows and columns; the first row names the columns, the first column the rows.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<&'static str>>,
}

impl Table {
    /// Reads one of the tables that are part of the program.
    pub fn read(text: &'static str) -> Self {
        let mut lines = text.lines().filter(|line| !line.is_empty()).map(cells);
        let columns = lines.next().unwrap_or_default();
        Self { columns, rows: lines.collect() }
    }

    /// A figure.
    ///
    /// # Panics
    /// If there is no such cell, or no figure in it: the tables do not change.
    pub fn figure(&self, row: &str, column: &str) -> f64 {
        let text = self.text(row, column);
        text.trim_start_matches(['>', '<', '~']).parse().unwrap_or_else(|_| {
            panic!("{row}, {column}: '{text}' is a figure");
        })
    }

    /// A cell.
    ///
    /// # Panics
    /// If there is none.
    pub fn text(&self, row: &str, column: &str) -> &'static str {
        let place = self.columns.iter().position(|name| *name == column);
        let found = self.rows.iter().find(|cells| cells[0] == row);
        let (Some(place), Some(found)) = (place, found) else {
            panic!("no cell in row {row}, column {column}")
        };
        found[place]
    }
}

/// The cells of a line; quoted ones may hold commas.
fn cells(line: &'static str) -> Vec<&'static str> {
    let mut cells = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (place, character) in line.char_indices() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => {
                cells.push(line[start..place].trim_matches('"'));
                start = place + 1;
            }
            _ => {}
        }
    }
    cells.push(line[start..].trim_matches('"'));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_row_and_column_also_behind_a_quoted_comma() {
        let table = Table::read("a,b,c\nx,\"1, 2\",>3.5\n");
        assert_eq!(table.text("x", "b"), "1, 2");
        assert!((table.figure("x", "c") - 3.5).abs() < 1e-9);
    }
}
