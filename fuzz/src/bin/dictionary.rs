//! Prints the part of a target's dictionary that the product's tables make. For `scripts/fuzz.sh`.

fn main() {
    let target = std::env::args().nth(1).unwrap_or_default();
    for line in voltier_fuzz::dictionary(&target) {
        println!("{line}");
    }
}
