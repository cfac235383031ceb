//! Rooms: no circle of imports inside a crate, no `impl` far from its type.
//!
//! - An import circle is a set of more than two files that all reach each other (see [`modules`]).
//! - A pair is a file and one of the folder below it that name each other. The parent uses what the child
//!   defines, and the child what the parent defines.
//! - An inherent `impl` stands in the file that defines its type. So does a trait `impl` of a facade: the
//!   type named like its crate (`Array` in `array`) and the `Inner` behind it. Other trait `impl`s may stand
//!   with their trait or their user.
//!
//! Tests are free.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::tree::{SourceFile, area};
use super::{modules, rust};

/// Every file in a circle, and every stray `impl`, of all crates.
pub(super) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut crates: BTreeMap<String, Vec<(&SourceFile, String)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        crates.entry(area(&file.path)).or_default().push((file, rust::code_of(&file.text)));
    }
    let of = |(name, sources): (String, Vec<_>)| {
        let modules = modules::modules(&sources);
        [in_circles(&modules), pairs(&modules), strays(&name, &modules)].concat()
    };
    crates.into_iter().flat_map(of).collect()
}

fn in_circles(modules: &[modules::Module<'_>]) -> Vec<Finding> {
    let circles = modules::circles(&modules::arrows(modules));
    let places = circles.iter().enumerate().flat_map(|(number, circle)| {
        circle.iter().map(move |at| {
            let message = format!("in import circle {} of {} files", number + 1, circle.len());
            Finding::new(&modules[*at].file.path, 0, message)
        })
    });
    places.collect()
}

fn pairs(modules: &[modules::Module<'_>]) -> Vec<Finding> {
    let pairs = modules::pairs(modules).into_iter().map(|(parent, child)| {
        let parent = modules[parent].file.path.display();
        let message = format!("names `{parent}`, which names this file");
        Finding::new(&modules[child].file.path, 0, message)
    });
    pairs.collect()
}

fn strays(krate: &str, modules: &[modules::Module<'_>]) -> Vec<Finding> {
    let local: BTreeSet<&str> =
        modules.iter().flat_map(|module| &module.defined).copied().collect();
    let mut found = Vec::new();
    for module in modules {
        for implementation in impls(&module.tokens) {
            let name = implementation.of;
            let watched = !implementation.is_of_trait || is_facade(krate, name);
            if watched && local.contains(name) && !module.defined.contains(name) {
                let message = format!("`impl` of `{name}` outside the file of `{name}`");
                found.push(Finding::new(&module.file.path, 0, message));
            }
        }
    }
    found
}

fn is_facade(krate: &str, name: &str) -> bool {
    name == "Inner" || name.eq_ignore_ascii_case(krate)
}

struct Impl<'a> {
    /// The last name of the type's path.
    of: &'a str,
    is_of_trait: bool,
}

/// The `impl` blocks among items; `impl Trait` in a signature is none.
fn impls<'a>(tokens: &[&'a str]) -> Vec<Impl<'a>> {
    let starts = tokens.iter().enumerate().filter(|(at, token)| {
        let before = at.checked_sub(1).map(|before| tokens[before]);
        **token == "impl" && matches!(before, None | Some("}" | ";" | "]" | "{" | "unsafe"))
    });
    starts.filter_map(|(at, _)| header(&tokens[at + 1..])).collect()
}

fn header<'a>(tokens: &[&'a str]) -> Option<Impl<'a>> {
    let (mut depth, mut of, mut is_of_trait) = (0_usize, None, false);
    let mut before = "";
    for token in tokens {
        match *token {
            "<" => depth += 1,
            ">" if before != "-" => depth = depth.saturating_sub(1),
            "{" | "where" => break,
            "for" if depth == 0 => (of, is_of_trait) = (None, true),
            name if depth == 0 && name.starts_with(char::is_alphabetic) => of = Some(name),
            _ => {}
        }
        before = token;
    }
    of.map(|of| Impl { of, is_of_trait })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(path, text)| SourceFile { path: (*path).into(), text: (*text).to_owned() })
            .collect();
        check(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_inherent_impl_stands_with_its_type() {
        let home =
            ("crates/array/src/array.rs", "pub struct Array<T>(T); struct Inner; enum Other {}");
        let own = ("crates/array/src/lib.rs", "impl<T: Fn() -> u8> Own<T> { } struct Own<T>(T);");
        assert_eq!(said(&[home, own]), [""; 0]);
        let stray = ("crates/array/src/a.rs", "impl super::array::Inner { fn f(x: impl Fn()) {} }");
        let of = "crates/array/src/a.rs: `impl` of `Inner` outside the file of `Inner`";
        assert_eq!(said(&[home, stray]), [of]);
    }

    #[test]
    fn a_trait_impl_far_from_its_type_is_a_stray_for_facades_only() {
        let home = ("crates/array/src/array.rs", "pub struct Array; enum Other {}");
        let traits =
            "impl Read for Array {} impl<'a> Read for &'a Other {} impl Read for Vec<Array> {}";
        assert_eq!(said(&[home, ("crates/array/src/a.rs", traits)]).len(), 1);
        assert_eq!(said(&[home, ("crates/array/tests/a.rs", traits)]), [""; 0]);
    }

    #[test]
    fn a_parent_and_a_child_that_name_each_other_are_one_place() {
        let parent = ("crates/c/src/a/mod.rs", "mod b; pub use b::B; pub struct A;");
        let names_up = ("crates/c/src/a/b.rs", "use super::A; pub struct B;");
        let of = "crates/c/src/a/b.rs: names `crates/c/src/a/mod.rs`, which names this file";
        assert_eq!(said(&[parent, names_up]), [of]);
        let names_none = ("crates/c/src/a/b.rs", "pub struct B;");
        assert_eq!(said(&[parent, names_none]), [""; 0]);
        let only_holds = ("crates/c/src/a/mod.rs", "mod b; pub struct A;");
        assert_eq!(said(&[only_holds, names_up]), [""; 0]);
    }

    #[test]
    fn every_file_of_a_circle_is_a_place() {
        let files = [
            ("crates/c/src/a.rs", "use crate::b::B;"),
            ("crates/c/src/b.rs", "use crate::d::D;"),
            ("crates/c/src/d.rs", "use crate::a::A;"),
        ];
        assert_eq!(said(&files).len(), 3);
    }
}
