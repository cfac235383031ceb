//! "Did you mean": the known word nearest to an unknown one.

/// The candidate with the fewest edits from `word`, when it is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // A word of which half is another one was not meant.
    let allowed = ((word.len() / 3).max(1) + 1).min(word.len() / 2);
    candidates
        .iter()
        // Each byte more is an edit at least. Words come from the control socket, and are long if
        // somebody wants them to be: they are not compared then.
        .filter(|candidate| word.len().abs_diff(candidate.len()) <= allowed)
        .map(|candidate| (edits(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// ` did you mean X?`-style hint for an unknown word: the nearest candidate, or all of them.
pub(crate) fn hint(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates) {
        Some(known) => format!("did you mean `{known}`? (known: {})", candidates.join(", ")),
        None => format!("known: {}", candidates.join(", ")),
    }
}

/// Bytes to insert, drop, replace, or swap with their neighbour (optimal string alignment).
fn edits(left: &str, right: &str) -> usize {
    let (left, right) = (left.to_ascii_lowercase(), right.to_ascii_lowercase());
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=right.len()).collect()];
    for i in 1..=left.len() {
        let mut row = vec![i];
        for j in 1..=right.len() {
            let replace = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replace.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            let is_swap =
                i > 1 && j > 1 && left[i - 2] == right[j - 1] && left[i - 1] == right[j - 2];
            if is_swap {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_and_far_ones_are_not() {
        let keys = ["mode", "policy", "seq_cutoff", "dirty_high"];
        assert_eq!(nearest("mod", &keys), Some("mode"));
        assert_eq!(nearest("seqcutoff", &keys), Some("seq_cutoff"));
        assert_eq!(nearest("MODE", &keys), Some("mode"));
        assert_eq!(nearest("colour", &keys), None);
        assert_eq!(nearest("bw", &["pt", "wt", "wb"]), Some("wb"), "letters changed places");
        assert_eq!(nearest("xy", &["pt", "wt"]), None);
        assert_eq!(nearest("arc", &["lru", "fifo"]), None);
        assert!(hint("colour", &keys).starts_with("known: mode, policy"));
        assert_eq!(nearest(&"mode".repeat(4 << 20), &keys), None, "16 MiB are not compared");
    }
}
