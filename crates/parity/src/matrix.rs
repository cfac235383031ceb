//! The coefficients of the parity rows, and the inversion of small matrices over the field.

use crate::field::{invert, multiply, power_of_two};

/// The most parity rows of a code.
pub const ROWS_MAX: usize = 8;

/// The most data members that `rows` rows protect.
pub(crate) const fn data_max(rows: usize) -> usize {
    if rows <= 2 { 255 } else { 257 - rows }
}

/// The coefficient of member `column` in parity `row`. Neither the number of members nor of rows
/// matters, so a row or a member can be added later and nothing already written changes.
///
/// Row 0 is 1; row 1 is 2^column; row r from 2 is (x + 1) / (x + 2^-column) with x = 2^(r - 1).
pub(crate) fn coefficient(row: usize, column: usize) -> u8 {
    match row {
        0 => 1,
        1 => power_of_two(column),
        _ => {
            let x = power_of_two(row - 1);
            let y = invert(power_of_two(column));
            multiply(x ^ 1, invert(x ^ y))
        }
    }
}

/// A square matrix of at most [`ROWS_MAX`] rows.
pub(crate) type Square = [[u8; ROWS_MAX]; ROWS_MAX];

/// The inverse of the upper left `size` x `size` of `matrix`, by Gauss-Jordan; none if singular.
pub(crate) fn inverse(mut matrix: Square, size: usize) -> Option<Square> {
    let mut result = [[0; ROWS_MAX]; ROWS_MAX];
    for (index, row) in result.iter_mut().enumerate().take(size) {
        row[index] = 1;
    }
    for column in 0..size {
        let pivot = (column..size).find(|&row| matrix[row][column] != 0)?;
        matrix.swap(pivot, column);
        result.swap(pivot, column);
        let scale = invert(matrix[column][column]);
        for cell in 0..size {
            matrix[column][cell] = multiply(matrix[column][cell], scale);
            result[column][cell] = multiply(result[column][cell], scale);
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            if factor == 0 {
                continue;
            }
            for cell in 0..size {
                matrix[row][cell] ^= multiply(factor, matrix[column][cell]);
                result[row][cell] ^= multiply(factor, result[column][cell]);
            }
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, ROWS_MAX};

    /// Calls `visit` with every choice of `count` numbers below `bound`, ascending.
    fn choices(count: usize, bound: usize, visit: &mut impl FnMut(&[usize])) {
        let mut chosen: Vec<usize> = (0..count).collect();
        loop {
            visit(&chosen);
            let Some(last) = (0..count).rev().find(|&index| chosen[index] < bound - count + index)
            else {
                return;
            };
            chosen[last] += 1;
            for index in last + 1..count {
                chosen[index] = chosen[index - 1] + 1;
            }
        }
    }

    /// Whether the columns of `matrix` are independent, by elimination.
    fn is_regular(mut matrix: Square, size: usize) -> bool {
        (0..size).all(|column| {
            let Some(pivot) = (column..size).find(|&row| matrix[row][column] != 0) else {
                return false;
            };
            matrix.swap(pivot, column);
            let scale = invert(matrix[column][column]);
            let reference = matrix[column];
            for row in &mut matrix[column + 1..size] {
                if row[column] != 0 {
                    let factor = multiply(row[column], scale);
                    for cell in column..size {
                        row[cell] ^= multiply(factor, reference[cell]);
                    }
                }
            }
            true
        })
    }

    /// Checks all square parts of the first `rows` rows and `columns` columns; says how many.
    fn prove(rows: usize, columns: usize) -> usize {
        let mut count = 0;
        for size in 1..=rows.min(columns) {
            choices(size, rows, &mut |rows| {
                choices(size, columns, &mut |columns| {
                    let mut matrix = [[0; ROWS_MAX]; ROWS_MAX];
                    for (cells, &row) in matrix.iter_mut().zip(rows) {
                        for (cell, &column) in cells.iter_mut().zip(columns) {
                            *cell = TABLE[row][column];
                        }
                    }
                    assert!(is_regular(matrix, size), "rows {rows:?}, columns {columns:?}");
                    count += 1;
                });
            });
        }
        count
    }

    static TABLE: std::sync::LazyLock<Vec<Vec<u8>>> = std::sync::LazyLock::new(|| {
        let row = |row| (0..255).map(|column| coefficient_or_zero(row, column)).collect();
        (0..ROWS_MAX).map(row).collect()
    });

    /// Columns past the end of a long row do not exist; the tests do not ask for them.
    fn coefficient_or_zero(row: usize, column: usize) -> u8 {
        if column < Code::data_max(row + 1) { coefficient(row, column) } else { 0 }
    }

    #[test]
    fn every_square_part_of_three_rows_is_regular_at_every_width() {
        // 3 x 254, 3 x C(254,2), C(254,3): all that three rows can meet.
        assert_eq!(prove(3, Code::data_max(3)), 762 + 96_393 + 2_699_004);
    }

    #[test]
    fn every_square_part_of_five_rows_is_regular_up_to_32_members() {
        // All choices of 32 out of 32 + 5, the one without rows left out.
        assert_eq!(prove(5, 32), 435_896);
    }

    #[test]
    fn every_square_part_of_eight_rows_is_regular_up_to_12_members() {
        assert_eq!(prove(8, 12), 125_969);
    }

    /// The condition of Cauchy's theorem (see the crate's page), at the full width of every number of
    /// rows. The x of the rows and the y of the columns are all different.
    #[test]
    fn rows_and_columns_of_the_construction_never_meet() {
        for rows in 1..=ROWS_MAX {
            let x = (2..rows).map(|row| power_of_two(row - 1)).chain((rows > 1).then_some(0));
            let y = (0..Code::data_max(rows)).map(|column| invert(power_of_two(column)));
            let all: std::collections::BTreeSet<u8> = x.chain(y).collect();
            assert_eq!(all.len(), rows - 1 + Code::data_max(rows));
        }
    }

    /// The coefficients are part of what is on the members: these numbers never change.
    #[test]
    fn the_coefficients_are_fixed() {
        let row =
            |row: usize| -> Vec<u8> { (0..8).map(|column| coefficient(row, column)).collect() };
        assert_eq!(row(0), [1; 8]);
        assert_eq!(row(1), [1, 2, 4, 8, 16, 32, 64, 128]);
        assert_eq!(row(2), [0x01, 0xf5, 0xd2, 0xc4, 0x9a, 0x71, 0xf1, 0x7f]);
        assert_eq!(row(3), [0x01, 0xbb, 0xa6, 0xd7, 0xc7, 0x07, 0xce, 0x82]);
        assert_eq!(row(7), [0x01, 0xfd, 0x1b, 0x89, 0xf1, 0x53, 0x5e, 0x86]);
    }

    #[test]
    fn an_inverse_undoes_its_matrix_and_a_singular_matrix_has_none() {
        let mut matrix = [[0; ROWS_MAX]; ROWS_MAX];
        for (row, cells) in matrix.iter_mut().enumerate() {
            for (column, cell) in cells.iter_mut().enumerate() {
                *cell = coefficient(row, column + 3);
            }
        }
        let inverse = inverse(matrix, ROWS_MAX).unwrap();
        for (row, cells) in inverse.iter().enumerate() {
            for column in 0..ROWS_MAX {
                let terms = cells.iter().zip(&matrix);
                let sum = terms.fold(0, |sum, (cell, row)| sum ^ multiply(*cell, row[column]));
                assert_eq!(sum, u8::from(row == column));
            }
        }
        matrix[4] = matrix[2];
        assert_eq!(super::inverse(matrix, ROWS_MAX), None);
    }
}
