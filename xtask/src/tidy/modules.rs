//! The modules of one crate, what each file names of the others, and the circles among them.
//!
//! A `use`, or a path in code, counts as an arrow from its file to the file that defines the name. A
//! name that a module only passes on (`pub use`) is followed to its origin, and is no arrow of the module.
//! A folder's `mod.rs` is a file like any other. Where the folder's file and one file inside name each
//! other, the two are a pair, which has a rule of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::rust;
use super::tree::SourceFile;

/// One file of a crate that is not compiled for tests only.
pub(super) struct Module<'a> {
    pub(super) file: &'a SourceFile,
    /// `["engine", "write"]`; empty for the crate's root.
    pub(super) path: Vec<String>,
    pub(super) tokens: Vec<&'a str>,
    uses: Vec<Use>,
    /// Types, functions and constants that the file defines.
    pub(super) defined: BTreeSet<&'a str>,
}

/// One name brought in by `use`.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    path: Vec<String>,
    /// The name in this module; `*` for all of them.
    alias: String,
    /// Whether the name is for others: `pub use`.
    is_passed_on: bool,
}

/// The files of one crate with their code: (file, code without comments and strings).
pub(super) fn modules<'a>(sources: &'a [(&'a SourceFile, String)]) -> Vec<Module<'a>> {
    let paths: Vec<_> =
        sources.iter().filter_map(|(file, code)| Some((module_path(file)?, *file, code))).collect();
    let tests: BTreeSet<Vec<String>> = paths
        .iter()
        .flat_map(|(path, _, code)| {
            let names = rust::test_modules(code).into_iter();
            names.map(|name| [path.as_slice(), &[name]].concat())
        })
        .collect();
    let shipped =
        paths.into_iter().filter(|(path, _, _)| !tests.iter().any(|test| path.starts_with(test)));
    shipped
        .map(|(path, file, code)| {
            let tokens = without_inline_modules(rust::tokens(code));
            Module { file, path, uses: uses(&tokens), defined: defined(&tokens), tokens }
        })
        .collect()
}

/// The tokens with paths as from the file itself: in `mod name { .. }` a `super` leads to the file.
fn without_inline_modules(mut tokens: Vec<&str>) -> Vec<&str> {
    // For every open brace, whether it is that of a module.
    let mut braces = Vec::new();
    for at in 0..tokens.len() {
        match tokens[at] {
            "{" => braces.push(at >= 2 && tokens[at - 2] == "mod"),
            "}" => drop(braces.pop()),
            "super" => {
                let leads_up = |pair: &&[&str]| matches!(**pair, ["super" | "self", "::"]);
                let before = tokens[..at].rchunks(2).take_while(leads_up).count();
                if before < braces.iter().filter(|is_module| **is_module).count() {
                    tokens[at] = "self";
                }
            }
            _ => {}
        }
    }
    tokens
}

/// None for files that are no part of the library or program: tests, examples, `src/bin`.
fn module_path(file: &SourceFile) -> Option<Vec<String>> {
    let path = file.path.to_string_lossy();
    let inside = path.split_once("/src/").map(|(_, inside)| inside)?;
    let mut parts: Vec<String> =
        inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts[0] == "bin" {
        return None;
    }
    let last = parts.last().map(String::as_str);
    if last == Some("mod") || parts.len() == 1 && matches!(last, Some("lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

const DEFINING: [&str; 7] = ["struct", "enum", "union", "trait", "type", "fn", "const"];

fn defined<'a>(tokens: &[&'a str]) -> BTreeSet<&'a str> {
    let pairs = tokens.windows(2).filter(|pair| DEFINING.contains(&pair[0]) || pair[0] == "static");
    pairs.map(|pair| pair[1]).collect()
}

fn uses(tokens: &[&str]) -> Vec<Use> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        // `use<'a>` in a signature says what a type captures
        if *token == "use" && tokens.get(at + 1) != Some(&"<") {
            let first = found.len();
            use_tree(&tokens[at + 1..], &[], &mut found);
            let is_passed_on = at > 0 && ["pub", ")"].contains(&tokens[at - 1]);
            found[first..].iter_mut().for_each(|used: &mut Use| used.is_passed_on = is_passed_on);
        }
    }
    found
}

/// Reads one tree of a `use`; returns how many tokens it took.
fn use_tree(tokens: &[&str], prefix: &[String], found: &mut Vec<Use>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at).copied() {
            Some("{") => {
                at += 1;
                while !matches!(tokens.get(at).copied(), None | Some("}" | ";")) {
                    at += use_tree(&tokens[at..], &path, found);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            Some("::") => at += 1,
            Some("as") => {
                let alias = tokens.get(at + 1).copied().unwrap_or("_").to_owned();
                found.push(Use { path, alias, is_passed_on: false });
                return at + 2;
            }
            Some("," | "}" | ";") | None => {
                if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                    path.pop();
                }
                let alias = path.last().cloned().unwrap_or_default();
                found.push(Use { path, alias, is_passed_on: false });
                return at;
            }
            Some(name) => {
                path.push(name.to_owned());
                at += 1;
            }
        }
    }
}

/// For each module, the indices of the modules whose names its own code uses.
pub(super) fn arrows(modules: &[Module<'_>]) -> Vec<BTreeSet<usize>> {
    names(modules, |used| !used.is_passed_on)
}

/// Modules that name one inside them which names them: (parent, child).
pub(super) fn pairs(modules: &[Module<'_>]) -> Vec<(usize, usize)> {
    let names = names(modules, |_| true);
    let inside = |parent: usize, child: usize| {
        parent != child && modules[child].path.starts_with(&modules[parent].path)
    };
    let mutual = names.iter().enumerate().flat_map(|(parent, targets)| {
        let children = targets.iter().copied().filter(move |child| inside(parent, *child));
        children.map(move |child| (parent, child))
    });
    mutual.filter(|(parent, child)| names[*child].contains(parent)).collect()
}

/// For each module, the indices of all modules whose names its file uses, in code or by a counted `use`.
fn names(modules: &[Module<'_>], counts: impl Fn(&Use) -> bool) -> Vec<BTreeSet<usize>> {
    let index = modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
    let graph = Graph { modules, index };
    let of = |at: usize| {
        let module = &modules[at];
        let counted = module.uses.iter().filter(|used| counts(used));
        let named = counted.map(|used| used.path.clone()).chain(paths(&module.tokens));
        named.flat_map(|path| graph.targets(at, &path, 0)).collect()
    };
    (0..modules.len()).map(of).collect()
}

/// Every path of two or more names in code: `crate::a::b`, `super::x()`, `child::f()`. Those of a `use` are
/// counted apart.
fn paths(tokens: &[&str]) -> Vec<Vec<String>> {
    let mut is_use = false;
    let in_code = tokens.iter().enumerate().filter(|(at, token)| {
        is_use = is_use && **token != ";" || **token == "use" && tokens.get(at + 1) != Some(&"<");
        !is_use
    });
    let tokens: Vec<&str> = in_code.map(|(_, token)| *token).collect();
    let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let begins = is_name(tokens[at]) && (at == 0 || !["::", "in"].contains(&tokens[at - 1]));
        let mut end = at + 1;
        while begins && end + 1 < tokens.len() && tokens[end] == "::" && is_name(tokens[end + 1]) {
            end += 2;
        }
        if end > at + 1 {
            found.push(tokens[at..end].iter().step_by(2).map(|name| (*name).to_owned()).collect());
        }
        at = end;
    }
    found
}

struct Graph<'a> {
    modules: &'a [Module<'a>],
    index: BTreeMap<Vec<String>, usize>,
}

/// Longer chains of `use` that pass a name on are not followed.
const DEPTH_MAX: usize = 8;

impl Graph<'_> {
    /// The files that `path`, written in module `from`, leads to: one, or those behind a glob.
    fn targets(&self, from: usize, path: &[String], depth: usize) -> Vec<usize> {
        let mut at = self.modules[from].path.clone();
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop();
                }
                _ => break,
            }
            rest = after;
        }
        let relative = rest.len() == path.len();
        while let Some((first, after)) = rest.split_first() {
            let child = [at.as_slice(), std::slice::from_ref(first)].concat();
            if !self.index.contains_key(&child) {
                break;
            }
            (at, rest) = (child, after);
        }
        let Some(module) = self.index.get(&at).copied() else { return Vec::new() };
        if relative && rest.len() == path.len() {
            return Vec::new();
        }
        rest.first().map_or_else(|| vec![module], |name| self.origin(module, name, depth))
    }

    /// The file that defines `name`, as seen from `module`.
    fn origin(&self, module: usize, name: &str, depth: usize) -> Vec<usize> {
        let here = &self.modules[module];
        if depth == DEPTH_MAX || here.defined.contains(name) {
            return vec![module];
        }
        let direct = here.uses.iter().find(|used| used.alias == name && name != "*");
        if let Some(used) = direct {
            let found = self.targets(module, &used.path, depth + 1);
            return if found.is_empty() { vec![module] } else { found };
        }
        let globs = here.uses.iter().filter(|used| used.alias == "*");
        let behind = globs
            .flat_map(|used| self.targets(module, &used.path[..used.path.len() - 1], depth + 1));
        let defining: Vec<usize> =
            behind.filter(|target| self.modules[*target].defined.contains(name)).collect();
        if defining.is_empty() { vec![module] } else { defining }
    }
}

/// The sets of modules that reach each other, of three files or more: Tarjan's algorithm.
pub(super) fn circles(arrows: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search { arrows, ..Search::default() };
    for node in 0..arrows.len() {
        if !search.seen.contains_key(&node) {
            search.visit(node);
        }
    }
    search.circles.retain(|circle| circle.len() > 2);
    search.circles
}

#[derive(Default)]
struct Search<'a> {
    arrows: &'a [BTreeSet<usize>],
    /// The order in which a node was first met.
    seen: BTreeMap<usize, usize>,
    stack: Vec<usize>,
    circles: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Returns the earliest node on the stack that `node` reaches.
    fn visit(&mut self, node: usize) -> usize {
        let order = self.seen.len();
        self.seen.insert(node, order);
        self.stack.push(node);
        let arrows = self.arrows;
        let mut earliest = order;
        for next in &arrows[node] {
            if !self.seen.contains_key(next) {
                earliest = earliest.min(self.visit(*next));
            } else if self.stack.contains(next) {
                earliest = earliest.min(self.seen[next]);
            }
        }
        if earliest == order {
            let start = self.stack.iter().position(|other| *other == node).unwrap_or_default();
            self.circles.push(self.stack.split_off(start));
        }
        earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle_of(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(path, text)| SourceFile {
                path: format!("crates/c/src/{path}").into(),
                text: (*text).to_owned(),
            })
            .collect();
        let sources: Vec<_> = files.iter().map(|file| (file, file.text.clone())).collect();
        let modules = modules(&sources);
        let mut names: Vec<String> = circles(&arrows(&modules))
            .concat()
            .into_iter()
            .map(|at| modules[at].path.join("::"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_circle_of_three_files_is_found() {
        let root = ("lib.rs", "mod a; mod b; mod c;");
        let a = ("a.rs", "use crate::{b::{B, self}, x};");
        let c = ("c/mod.rs", "fn f() -> crate::a::A {}");
        let closed = ("b.rs", "use super::c as other;");
        assert_eq!(circle_of(&[root, a, closed, c]), ["a", "b", "c"]);
        let open = ("b.rs", "#[cfg(test)] mod tests { use super::c; }");
        assert_eq!(circle_of(&[root, a, open, c]), [""; 0]);
    }

    #[test]
    fn a_name_passed_on_belongs_to_the_file_that_defines_it() {
        let root = ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use b::*;");
        let a = ("a.rs", "pub struct A; use crate::c::C;");
        let b = ("b.rs", "pub struct B; use crate::A;");
        let c = ("c.rs", "pub struct C;");
        assert_eq!(circle_of(&[root, a, b, c]), [""; 0]);
        let closing = ("c.rs", "pub struct C; use crate::B;");
        assert_eq!(circle_of(&[root, a, b, closing]), ["a", "b", "c"]);
    }

    #[test]
    fn in_a_module_inside_a_file_super_leads_to_the_file() {
        let code =
            "use super::A; mod b { use super::{C, D}; fn f(a: super::super::G) {} } super::g";
        let tokens = without_inline_modules(rust::tokens(code)).join(" ");
        assert!(
            tokens.contains("use self :: {") && tokens.contains("self :: super :: G"),
            "{tokens}"
        );
        assert!(tokens.starts_with("use super :: A") && tokens.ends_with("super :: g"), "{tokens}");
    }

    #[test]
    fn a_way_through_a_folder_back_to_its_own_file_is_a_circle() {
        let parent = ("a/mod.rs", "mod b; mod c; use b::B; pub struct A; #[cfg(test)] mod t;");
        let child = ("a/b.rs", "use super::c::C; pub struct B;");
        let test = ("a/t.rs", "use super::b::B; fn f() { super::super::a::A }");
        let back = ("a/c.rs", "use super::A; pub struct C;");
        assert_eq!(circle_of(&[parent, child, back, test]), ["a", "a::b", "a::c"]);
        let passing = ("a/mod.rs", "mod b; mod c; pub use b::B; pub struct A; #[cfg(test)] mod t;");
        assert_eq!(circle_of(&[passing, child, back, test]), [""; 0]);
        let ending = ("a/c.rs", "pub struct C;");
        assert_eq!(circle_of(&[parent, child, ending, test]), [""; 0]);
    }
}
