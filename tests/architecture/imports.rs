//! The graph of imports: which file of a crate names what another one defines.

use super::sources;
use crate::support::tree::root;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::{DiGraphMap, NodeTrait};
use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};

type Path = Vec<String>;

/// The names of a file.
#[derive(Default)]
struct Names {
    defined: BTreeSet<String>,
    /// What `use` makes known by a name, as it is written there.
    brought: BTreeMap<String, Path>,
    globs: Vec<Path>,
    /// What the code names, and each `use` that hands nothing on.
    named: BTreeSet<Path>,
    /// Modules that only tests have.
    tests: BTreeSet<String>,
}

impl Names {
    fn bring(&mut self, tree: &syn::UseTree, mut path: Path, hands_on: bool) {
        let (ident, name) = match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                return self.bring(&tree.tree, path, hands_on);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|t| self.bring(t, path.clone(), hands_on));
            }
            syn::UseTree::Glob(_) => return self.globs.push(path),
            syn::UseTree::Name(tree) => (tree.ident.to_string(), None),
            syn::UseTree::Rename(tree) => (tree.ident.to_string(), Some(tree.rename.to_string())),
        };
        if ident != "self" {
            path.push(ident);
        }
        let name = name.or_else(|| path.last().cloned()).unwrap();
        if !hands_on {
            self.named.insert(path.clone());
        }
        self.brought.insert(name, path);
    }

    /// Paths where no syntax tells what they are: in macros and attributes.
    fn name_tokens(&mut self, mut at: Cursor<'_>) {
        let (mut path, mut colons) = (Path::new(), 0);
        while let Some((_, next)) = at.token_tree() {
            if let Some((ident, _)) = at.ident() {
                if colons < 2 {
                    self.named.insert(std::mem::take(&mut path));
                }
                path.push(ident.to_string());
            } else if let Some((inside, ..)) = at.any_group() {
                self.name_tokens(inside);
            }
            let is_colon = at.punct().is_some_and(|(punct, _)| punct.as_char() == ':');
            colons = if is_colon { colons + 1 } else { 0 };
            at = next;
        }
        self.named.insert(path);
    }
}

/// Whether only tests have a module.
pub(super) fn is_for_tests(module: &syn::ItemMod) -> bool {
    has_only_tests(&module.attrs)
}

fn has_only_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => false,
    })
}

impl<'a> Visit<'a> for Names {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let ident = match item {
            syn::Item::Const(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Fn(item) => Some(&item.sig.ident),
            syn::Item::Macro(item) => item.ident.as_ref(),
            syn::Item::Static(item) => Some(&item.ident),
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.defined.extend(ident.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if is_for_tests(module) {
            self.tests.insert(module.ident.to_string());
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if has_only_tests(&item.attrs) {
            return;
        }
        self.bring(&item.tree, Path::new(), !matches!(item.vis, syn::Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.named.insert(path.segments.iter().map(|part| part.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        self.visit_path(&called.path);
        self.name_tokens(TokenBuffer::new2(called.tokens.clone()).begin());
    }

    fn visit_meta_list(&mut self, list: &'a syn::MetaList) {
        self.name_tokens(TokenBuffer::new2(list.tokens.clone()).begin());
    }
}

/// The files of a crate by the paths of their modules, those of tests left out.
pub(super) struct Files(BTreeMap<Path, Names>);

impl Files {
    fn read(sources: impl IntoIterator<Item = (Path, String)>) -> Self {
        let mut files = BTreeMap::new();
        let mut tests = Vec::new();
        for (module, text) in sources {
            let mut names = Names::default();
            names.visit_file(&syn::parse_file(&text).unwrap());
            tests.extend(
                names.tests.iter().map(|name| [&module[..], slice::from_ref(name)].concat()),
            );
            files.insert(module, names);
        }
        files.retain(|module: &Path, _| !tests.iter().any(|test| module.starts_with(test)));
        Self(files)
    }

    pub(super) fn of_crate(folder: &str) -> Self {
        let src = root().join(folder).join("src");
        let files = sources().into_iter().filter(|file| file.starts_with(&src));
        Self::read(files.map(|file| {
            let relative = file.strip_prefix(&src).unwrap().with_extension("");
            let mut module: Path =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            module.pop_if(|last| matches!(last.as_str(), "mod" | "lib" | "main"));
            (module, std::fs::read_to_string(&file).unwrap())
        }))
    }

    /// The files that hand on what `path` names in the file of `module`, and at the end the one that
    /// defines it; none where that is no item of this crate. A module alone is none: files that only
    /// go through it name what is in it.
    fn way(&self, module: &[String], path: &[String], steps: usize) -> Option<Vec<&Path>> {
        let steps = steps.checked_sub(1)?;
        let ups = path.iter().take_while(|part| *part == "super").count();
        match path.first()?.as_str() {
            "crate" => return self.way(&[], &path[1..], steps),
            "self" => return self.way(module, &path[1..], steps),
            "super" => return self.way(&module[..module.len() - ups], &path[ups..], steps),
            _ => {}
        }
        let (name, rest) = path.split_first()?;
        let child = [module, slice::from_ref(name)].concat();
        if !rest.is_empty() && self.0.contains_key(&child) {
            return self.way(&child, rest, steps);
        }
        let (file, names) = self.0.get_key_value(module)?;
        if names.defined.contains(name) {
            return Some(vec![file]);
        }
        let further = match names.brought.get(name) {
            Some(to) => self.way(module, &[to, rest].concat(), steps)?,
            None => names
                .globs
                .iter()
                .find_map(|glob| self.way(module, &[glob, path].concat(), steps))?,
        };
        Some([vec![file], further].concat())
    }

    /// An edge from each file to those that define what it names, and to those that hand it on.
    pub(super) fn imports(&self) -> DiGraphMap<&Path, ()> {
        let mut imports = DiGraphMap::new();
        for (module, names) in &self.0 {
            for path in &names.named {
                let way = self.way(module, path, 9).unwrap_or_default();
                imports.extend(way.into_iter().map(|file| (module, file)));
            }
        }
        imports
    }

    /// An edge from each module right below the root to those that define what it names.
    pub(super) fn modules(&self) -> DiGraphMap<&str, ()> {
        let mut modules = DiGraphMap::new();
        for (module, names) in &self.0 {
            for path in &names.named {
                let home = self.way(module, path, 9).and_then(|way| way.last().copied());
                modules.extend(home.map(|home| (floor(module), floor(home))));
            }
        }
        modules
    }
}

/// The module right below the root that a file stands in; the root's own file is none.
fn floor(file: &Path) -> &str {
    file.first().map_or("", String::as_str)
}

/// The groups in which each leads to every other.
pub(super) fn circles<N: NodeTrait>(imports: &DiGraphMap<N, ()>) -> Vec<BTreeSet<N>> {
    let circles = tarjan_scc(imports).into_iter().filter(|circle| circle.len() > 1);
    circles.map(BTreeSet::from_iter).collect()
}

/// What stands here, each after the path of its module.
fn planted(files: &[(&str, &str)]) -> Files {
    let path = |module: &str| module.split("::").map(str::to_owned).collect();
    Files::read(files.iter().map(|(module, code)| (path(module), (*code).to_owned())))
}

fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files = planted(files);
    let circles = circles(&files.imports()).into_iter();
    circles.map(|circle| circle.into_iter().map(|file| file.join("::")).collect()).collect()
}

#[test]
fn a_circle_is_found_whichever_way_it_is_written() {
    let planted: [(&str, &[(&str, &str)]); 6] = [
        (
            "`use` of braces, of another name, of a name that is handed on, and of a module",
            &[
                ("a", "use crate::{b::{B as Other, Two}}; pub fn f(_: Other, _: Two) {}"),
                ("b", "use super::hub::C; pub struct B(C); pub struct Two;"),
                ("c", "use super::a; pub struct C; fn f() { a::f() }"),
                ("hub", "pub(crate) use super::c::C;"),
            ],
        ),
        (
            "paths in code",
            &[
                ("a", "pub const SIZE: usize = super::b::f();"),
                ("b", "pub const fn f() -> usize { crate::c::C([1]).0[0] }"),
                ("c", "pub struct C(pub [usize; super::a::SIZE]);"),
            ],
        ),
        (
            "paths into modules of a file's own",
            &[
                ("a", "mod b; mod c; pub struct A(Box<b::B>);"),
                ("a::b", "use super::c; pub enum B { One(c::C) }"),
                ("a::c", "pub struct C; impl From<self::super::A> for C {}"),
            ],
        ),
        (
            "a file's own use of what it hands on",
            &[
                ("a", "mod b; mod c; pub use b::b; pub struct A { b: [u8; b()] }"),
                ("a::b", "use super::c::C; pub const fn b() -> usize { C::SIZE }"),
                ("a::c", "pub struct C; impl super::A { fn c() -> C { C } }"),
            ],
        ),
        (
            "names behind `*`",
            &[
                ("a", "use crate::hub::*; pub fn f() -> B { B }"),
                ("b", "pub struct B; fn f() { super::hub::g() }"),
                ("c", "pub fn g() { crate::a::f(); }"),
                ("hub", "pub use super::b::*; pub use super::c::*;"),
            ],
        ),
        (
            "macros and attributes",
            &[
                ("a", "pub fn f() { assert!(matches!(1, super::b::B), \"{}\", 2); }"),
                ("b", "pub const B: u8 = 1; #[debug(\"{}\", crate::c::f())] struct D;"),
                ("c", "macro_rules! call { () => { $crate::a::f() } } pub fn f() {}"),
            ],
        ),
    ];
    for (how, files) in planted {
        let names = files.iter().map(|(name, _)| *name).filter(|name| *name != "hub");
        assert_eq!(circles_of(files), [Vec::from_iter(names)], "{how}");
    }
}

/// Neither a parent that declares and hands on, nor a test, nor who may see an item is an import.
#[test]
fn what_is_handed_on_and_what_tests_import_makes_no_circle() {
    let files = [
        ("a", "mod b; mod c; pub use b::B; pub use c::*; pub struct A; #[cfg(test)] mod tests;"),
        ("a::b", "use super::{A, C}; pub(in crate::a) struct B(A, C);"),
        ("a::c", "pub struct C; #[cfg(test)] mod tests { use crate::a::B; }"),
        ("a::tests", "use super::*; fn f() -> B { B(C) }"),
    ];
    assert!(circles_of(&files).is_empty(), "{:?}", circles_of(&files));
}

/// Who takes a thing from where it is handed on needs that file, too; modules are judged by where
/// things stand.
#[test]
fn what_is_handed_on_is_of_the_file_that_does_so_as_well() {
    let through_the_parent = planted(&[
        ("a", "mod b; mod c; pub use b::B; pub fn f(c: c::C) {}"),
        ("a::b", "pub struct B;"),
        ("a::c", "use super::B; pub struct C(B);"),
    ]);
    let named = |files: BTreeSet<&Path>| Vec::from_iter(files.into_iter().map(|f| f.join("::")));
    let circles_of_files = circles(&through_the_parent.imports()).into_iter().map(named);
    assert_eq!(Vec::from_iter(circles_of_files), [["a", "a::c"]]);

    let through_the_root = planted(&[
        ("a", "use crate::c::B; pub struct A(B);"),
        ("b", "mod one; mod two; pub use one::B;"),
        ("b::one", "pub struct B;"),
        ("b::two", "pub struct Two(crate::d::D);"),
        ("c", "pub use crate::b::*;"),
        ("d", "pub struct D(crate::a::A);"),
    ]);
    assert!(circles(&through_the_root.imports()).is_empty());
    let floors = circles(&through_the_root.modules());
    assert_eq!(floors, [BTreeSet::from(["a", "b", "d"])], "`c` only hands on");
}
