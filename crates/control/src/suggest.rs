//! "Did you mean": the known word nearest to an unknown one.

/// The candidate with the fewest edits from `word`, when it is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let allowed = (word.len() / 3).max(1) + 1;
    candidates
        .iter()
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

/// Levenshtein distance over bytes, one row at a time.
fn edits(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let replace = diagonal + usize::from(!a.eq_ignore_ascii_case(&b));
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
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
        assert!(hint("colour", &keys).starts_with("known: mode, policy"));
    }
}
