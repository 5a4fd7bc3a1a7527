//! A new op or dtype must not compile before every match of the backends is decided.

use super::imports;
use crate::support::tree::{files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use syn::visit::{self, Visit};

/// Where what an op or a dtype means is computed or written.
const FOLDERS: [&str; 6] = [
    "ir/src/eval",
    "passes/src/split",
    "passes/src/fuse",
    "kernels/src",
    "backend/src/cpu",
    "backend/src/cuda",
];

/// Files beside those that do so, too.
const FILES: [&str; 1] = ["cli/src/worker.rs"];

const LINT: &str = "#![warn(clippy::wildcard_enum_match_arm)]";

/// The enums by which they decide.
const FAMILIES: [&str; 8] =
    ["BinaryOp", "CompareOp", "DType", "MapOp", "Op", "OpClass", "ReduceOp", "UnaryOp"];

/// Where in a scrutinee something stands: the way through tuples and variants, each step with its
/// name or position.
type Place = Vec<String>;

/// What the pattern of an arm says of the places of a scrutinee.
#[derive(Default)]
struct Said {
    /// An op or a dtype is named there, by its family.
    named: BTreeMap<Place, String>,
    /// Anything fits there.
    open: BTreeSet<Place>,
    /// What is not listed below fits.
    rest: Vec<(Place, BTreeSet<String>)>,
    /// Clippy looks at what is no tuple, `Option` or `Result`.
    is_clippys: bool,
}

fn family(path: &syn::Path) -> Option<String> {
    let of = path.segments.iter().rev().nth(1)?.ident.to_string();
    FAMILIES.contains(&of.as_str()).then_some(of)
}

impl Said {
    fn of(pattern: &syn::Pat) -> Self {
        let mut said = Self::default();
        said.read(pattern, &Place::new());
        said
    }

    fn read_path(&mut self, path: &syn::Path, at: &Place) -> Place {
        self.named.extend(family(path).map(|family| (at.clone(), family)));
        let variant = path.segments.last().map(|part| part.ident.to_string()).unwrap_or_default();
        self.is_clippys |= at.is_empty()
            && !["Some", "None", "Ok", "Err"].contains(&variant.as_str())
            && variant.starts_with(char::is_uppercase);
        [&at[..], &[variant]].concat()
    }

    fn read_all<'a>(&mut self, parts: impl IntoIterator<Item = &'a syn::Pat>, at: &Place) {
        let mut listed = BTreeSet::new();
        let mut is_open = false;
        for (position, part) in parts.into_iter().enumerate() {
            if matches!(part, syn::Pat::Rest(_)) {
                is_open = true;
                // Positions behind it are not known; they are read where no arm has it.
                break;
            }
            let position = position.to_string();
            self.read(part, &[&at[..], std::slice::from_ref(&position)].concat());
            listed.insert(position);
        }
        if is_open {
            self.rest.push((at.clone(), listed));
        }
    }

    fn read(&mut self, pattern: &syn::Pat, at: &Place) {
        match pattern {
            syn::Pat::Guard(guarded) => {
                self.read(&guarded.pat, at);
                // What the guard does not take is left to others.
                self.open.clear();
                self.rest.clear();
            }
            syn::Pat::Or(cases) => cases.cases.iter().for_each(|case| self.read(case, at)),
            syn::Pat::Paren(inner) => self.read(&inner.pat, at),
            syn::Pat::Reference(inner) => self.read(&inner.pat, at),
            syn::Pat::Wild(_) => drop(self.open.insert(at.clone())),
            syn::Pat::Ident(name) => match &name.subpat {
                Some((_, inner)) => self.read(inner, at),
                None if name.ident.to_string().starts_with(char::is_lowercase) => {
                    self.open.insert(at.clone());
                }
                None => {}
            },
            syn::Pat::Path(path) => drop(self.read_path(&path.path, at)),
            syn::Pat::Tuple(tuple) => self.read_all(&tuple.elems, at),
            syn::Pat::TupleStruct(variant) => {
                let at = self.read_path(&variant.path, at);
                self.read_all(&variant.elems, &at);
            }
            syn::Pat::Struct(variant) => {
                let at = self.read_path(&variant.path, at);
                let mut listed = BTreeSet::new();
                for field in &variant.fields {
                    let syn::Member::Named(name) = &field.member else { continue };
                    let name = name.to_string();
                    self.read(&field.pat, &[&at[..], std::slice::from_ref(&name)].concat());
                    listed.insert(name);
                }
                if variant.rest.is_some() {
                    self.rest.push((at, listed));
                }
            }
            // Those of a slice are as many as they are: something has to stand for the others.
            _ => {}
        }
    }

    /// Whether any op or dtype of a family fits at a place.
    fn lets_all(&self, place: &Place, family: &str) -> bool {
        // An op and its class stand beside each other, and either decides for both.
        let is_op = |family: &str| ["Op", "OpClass"].contains(&family);
        if is_op(family) && self.named.values().any(|named| is_op(named)) {
            return false;
        }
        let is_rest = |(at, listed): &(Place, BTreeSet<String>)| {
            let below = place.strip_prefix(&at[..]).and_then(|below| below.first());
            below.is_some_and(|step| !listed.contains(step))
        };
        (0..=place.len()).any(|n| self.open.contains(&place[..n])) || self.rest.iter().any(is_rest)
    }
}

/// Whether an arm lets any op or dtype through where others name some, and clippy sees nothing,
/// since what is matched is no enum or the place lies deeper in it.
fn hides(decided: &syn::ExprMatch) -> bool {
    let arms = Vec::from_iter(decided.arms.iter().map(|arm| Said::of(&arm.pat)));
    let places = arms.iter().flat_map(|said| &said.named).filter(|(place, _)| !place.is_empty());
    let places = BTreeMap::from_iter(places);
    let is_of_enum = arms.iter().any(|said| said.is_clippys);
    let is_clippys = |said: &Said| is_of_enum && said.open.contains(&Place::new());
    let mut hiding = arms.iter().filter(|said| !is_clippys(said));
    hiding.any(|said| places.iter().any(|(place, family)| said.lets_all(place, family)))
}

/// What a file does with ops and dtypes outside its tests.
#[derive(Default)]
struct Decisions {
    /// Arms name them.
    decides: bool,
    /// The functions with a match that [`hides`] some.
    hidden: Vec<String>,
    function: String,
}

impl<'a> Visit<'a> for Decisions {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !imports::is_for_tests(module) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        self.function = signature.ident.to_string();
        visit::visit_signature(self, signature);
    }

    fn visit_expr_match(&mut self, decided: &'a syn::ExprMatch) {
        self.decides |= decided.arms.iter().any(|arm| names(&arm.pat));
        if hides(decided) {
            self.hidden.push(self.function.clone());
        }
        visit::visit_expr_match(self, decided);
    }
}

/// Whether a pattern names an op or a dtype.
fn names(pattern: &syn::Pat) -> bool {
    struct Named(bool);
    impl<'a> Visit<'a> for Named {
        fn visit_path(&mut self, path: &'a syn::Path) {
            self.0 |= family(path).is_some();
            visit::visit_path(self, path);
        }
    }
    let mut named = Named(false);
    named.visit_pat(pattern);
    named.0
}

fn decisions(text: &str) -> Decisions {
    let mut decisions = Decisions::default();
    decisions.visit_file(&syn::parse_file(text).unwrap());
    decisions
}
#[test]
fn who_matches_on_ops_or_dtypes_names_each() {
    let is_test = |file: &PathBuf| file.to_string_lossy().contains("/tests");
    let below = |folder: &str| {
        let found = files(&root().join(folder), &["rs"]);
        assert!(found.len() > 2, "{folder} has no sources");
        found
    };
    let mut deciding = 0;
    let beside = FILES.into_iter().map(|file| root().join(file));
    let files = FOLDERS.into_iter().flat_map(below).chain(beside);
    for file in files.filter(|file| !is_test(file)) {
        let text = std::fs::read_to_string(&file).unwrap();
        let decisions = decisions(&text);
        if decisions.decides {
            deciding += 1;
            assert!(
                text.lines().any(|line| line == LINT),
                "{} matches on ops or dtypes without `{LINT}`; a function that hands the rest to \
                 another takes `#[expect(.., reason = ..)]`",
                file.display()
            );
        }
        let (file, hidden) = (file.display(), decisions.hidden);
        assert!(
            hidden.is_empty(),
            "{file}: {hidden:?} let ops or dtypes through where others \
                                    are named; name each, or its class"
        );
    }
    assert!(deciding > 15, "{deciding}");
}

#[test]
fn a_match_on_ops_or_dtypes_is_seen_however_it_is_written() {
    for text in [
        "fn f(x: DType) -> u8 { match x { DType::F32 => 1, _ => 2 } }",
        "fn f(x: T) -> u8 { match (x.op, 1) { (Op::Reduce { .. }, _) => 1, _ => 2 } }",
        "fn f(x: T) -> u8 { match x { Some(dtype::DType::F32 | DType::F16) => 1, _ => 2 } }",
        "impl T { fn f(&self) { g(|x| { match &x { &Op::Cast => 1, _ => 2 } }) } }",
        "fn f(x: BinaryOp) -> u8 { match x { op::BinaryOp::Add | BinaryOp::Sub => 1, x => 2 } }",
        "fn f(x: T) -> u8 { match x.op { MapOp::Unary(UnaryOp::Neg) => 1, _ => 2 } }",
    ] {
        assert!(decisions(text).decides, "{text}");
    }
    for text in [
        "fn f(x: T) -> DType { match x { T::A => DType::F32, _ => DType::F16 } }",
        "#[cfg(test)] mod tests { fn f(x: Op) { match x { Op::Cast => 1, _ => 2 } } }",
    ] {
        assert!(!decisions(text).decides, "{text}");
    }
}

/// What clippy's lint lets pass, since it looks at what a match is over, and at nothing but enums.
#[test]
fn an_arm_for_all_others_is_seen_beside_what_else_is_decided() {
    let hides = |arms: &str| {
        let text = format!("fn f(x: T) -> u8 {{ g(|| match x {{ {arms} }}) }}");
        decisions(&text).hidden == ["f"]
    };
    for arms in [
        "(Op::Gather, 0) => 1, _ => 2",
        "(&Op::Gather, 0) => 1, (Op::Scatter, n) => 2, (op, n) => 3",
        "(Op::Gather, 0) => 1, (.., n) => 3",
        "Some(DType::F32) => 1, Some(_) => 2, None => 3",
        "Some(DType::F32) => 1, _ => 2",
        "Ok(T { op: ReduceOp::Sum, .. }) => 1, Ok(T { axes, .. }) => 2, Err(_) => 3",
        "(DType::Bool, DType::F32 | DType::F16) => 1, (DType::Bool, other) => 2",
        "Op::Unary(UnaryOp::Neg) => 1, Op::Unary(_) => 2, Op::Cast => 3",
        "(1, OpClass::Reduction) => 1, (_, (_)) => 2",
    ] {
        assert!(hides(arms), "{arms}");
    }
    for arms in [
        "(Op::Gather, 0) => 1, (Op::Gather | Op::Scatter, _) => 2",
        "(Op::Broadcast, _) => 1, (_, OpClass::Remap | OpClass::Search) => 2",
        "Some(DType::F32) => 1, Some(DType::F16) => 2, None => 3",
        "(a, b) if a == b => 1, (DType::F32, DType::F16) => 2, (DType::F16, DType::F32) => 3",
        "Op::Reduce { op: ReduceOp::Sum, .. } => 1, Op::Reduce { op: ReduceOp::Max, axes } => 2",
        // Clippy's.
        "Op::Unary(UnaryOp::Neg) => 1, _ => 2",
    ] {
        assert!(!hides(arms), "{arms}");
    }
}
