//! Functions that one place calls: who calls them, however the call is written.

use super::{crates, imports, sources};
use crate::support::tree::{files, root};
use std::collections::BTreeSet;
use std::path::Path;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// The last name of a type's path.
fn name_of(ty: &syn::Type) -> Option<String> {
    let path = match ty {
        syn::Type::Path(ty) => &ty.path,
        syn::Type::Reference(ty) => return name_of(&ty.elem),
        syn::Type::Paren(ty) => return name_of(&ty.elem),
        syn::Type::TraitObject(ty) => return ty.bounds.iter().find_map(name_of_bound),
        _ => return None,
    };
    path.segments.last().map(|part| part.ident.to_string())
}

fn name_of_bound(bound: &syn::TypeParamBound) -> Option<String> {
    let syn::TypeParamBound::Trait(bound) = bound else { return None };
    bound.path.segments.last().map(|part| part.ident.to_string())
}

/// What a type or trait is called anywhere: by another name, or as what has the trait.
struct Owners(BTreeSet<String>);

impl Owners {
    fn has(&self, name: Option<String>) -> bool {
        name.is_some_and(|name| self.0.contains(&name))
    }
}

impl<'a> Visit<'a> for Owners {
    fn visit_use_rename(&mut self, item: &'a syn::UseRename) {
        if self.0.contains(&item.ident.to_string()) {
            self.0.insert(item.rename.to_string());
        }
    }

    fn visit_item_type(&mut self, item: &'a syn::ItemType) {
        if self.has(name_of(&item.ty)) {
            self.0.insert(item.ident.to_string());
        }
    }

    fn visit_type_param(&mut self, param: &'a syn::TypeParam) {
        if param.bounds.iter().any(|bound| self.has(name_of_bound(bound))) {
            self.0.insert(param.ident.to_string());
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        if self.has(of.map(|part| part.ident.to_string())) {
            self.0.extend(name_of(&item.self_ty));
        }
        visit::visit_item_impl(self, item);
    }
}

/// The calls of a function of its owners in a file.
struct Calls<'o> {
    owners: &'o Owners,
    function: &'static str,
    /// How many it takes besides its receiver; a method of another number is another one.
    arguments: usize,
    /// Whether `Self` is an owner here.
    is_within: bool,
    found: usize,
}

impl<'a> Visit<'a> for Calls<'_> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !imports::is_for_tests(module) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        self.is_within = self.owners.has(name_of(&item.self_ty));
        visit::visit_item_impl(self, item);
        self.is_within = false;
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.is_within = self.owners.has(Some(item.ident.to_string()));
        visit::visit_item_trait(self, item);
        self.is_within = false;
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        let mut parts = path.path.segments.iter().rev().map(|part| part.ident.to_string());
        let is_function = parts.next().is_some_and(|last| last == self.function);
        let mut of = [parts.next(), path.qself.as_ref().and_then(|of| name_of(&of.ty))].into_iter();
        let is_owner = |name: Option<String>| {
            self.owners.has(name.clone()) || self.is_within && name.is_some_and(|of| of == "Self")
        };
        self.found += usize::from(is_function && of.any(is_owner));
        visit::visit_expr_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let is_function = call.method == self.function && call.args.len() == self.arguments;
        self.found += usize::from(is_function);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        let expressions = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(inside) = expressions.parse2(called.tokens.clone()) {
            // They live no longer than this call.
            let mut calls = Calls { found: 0, ..*self };
            inside.iter().for_each(|expression| calls.visit_expr(expression));
            self.found += calls.found;
            return;
        }
        // No expressions, such as what a macro is made of: both names, then.
        let text = called.tokens.to_string();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let words = BTreeSet::from_iter(words);
        let names_owner = self.owners.0.iter().any(|owner| words.contains(owner.as_str()));
        self.found += usize::from(names_owner && words.contains(self.function));
    }
}

/// The files that call a function of `owner`, and how often.
fn callers(
    files: &[(String, syn::File)],
    owner: &str,
    function: &'static str,
    arguments: usize,
) -> Vec<(String, usize)> {
    let mut owners = Owners(BTreeSet::from([owner.to_owned()]));
    let mut known = 0;
    while owners.0.len() > known {
        known = owners.0.len();
        files.iter().for_each(|(_, file)| owners.visit_file(file));
    }
    let calls = |file: &syn::File| {
        let owners = &owners;
        let mut calls = Calls { owners, function, arguments, is_within: false, found: 0 };
        calls.visit_file(file);
        calls.found
    };
    let found = files.iter().map(|(name, file)| (name.clone(), calls(file)));
    found.filter(|(_, calls)| *calls > 0).collect()
}

/// All code but that of tests, benches and examples too.
fn code() -> Vec<(String, syn::File)> {
    let is_test = |file: &str| {
        let is_double = file.contains("src/testing/") || file.starts_with("testing/");
        file.ends_with("tests.rs") || file.contains("/tests/") || is_double
    };
    let examples = files(&root().join("examples"), &["rs"]);
    let benches: Vec<_> =
        crates().iter().flat_map(|of| files(&root().join(of).join("benches"), &["rs"])).collect();
    assert!(examples.len() > 2 && benches.len() > 5, "{examples:?}, {benches:?}");
    let all = sources().into_iter().chain(examples).chain(benches).map(|file| {
        let relative = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        (relative, file)
    });
    let parsed = |file: &Path| syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap();
    all.filter(|(relative, _)| !is_test(relative))
        .map(|(name, file)| (name, parsed(&file)))
        .collect()
}

/// One test, since all code is parsed for it.
#[test]
fn what_has_one_door_is_called_there_alone() {
    let code = code();
    let held = |owner, function, arguments, expected: &[&str]| {
        let places = callers(&code, owner, function, arguments);
        let found: BTreeSet<_> =
            places.iter().map(|(file, calls)| (file.as_str(), *calls)).collect();
        assert_eq!(found, expected.iter().map(|file| (*file, 1)).collect(), "{owner}::{function}");
    };
    // Whoever wants a compiled model asks the assembly.
    held("CompiledModel", "build", 7, &["src/assembly/planned.rs"]);
    // What is compiled comes from the store, or goes there.
    held("Compiler", "compile", 3, &["runtime/src/store/session.rs"]);
    // Who has a model planned asks the planner, which knows the levels; a pipeline of one's own is run by
    // the command that is for it, and by the example of a pass.
    let pipelines = ["runtime/src/pipeline.rs", "cli/src/opt.rs", "examples/custom_pass.rs"];
    held("PassManager", "new", usize::MAX, &pipelines);
}

#[test]
fn a_call_is_seen_however_it_is_written() {
    let calls = [
        "fn f() { Owner::made(1, 2) }",
        "fn f() { x::Owner::<D>::made(1, 2) }",
        "fn f() { <Owner<D>>::made(1, 2) }",
        "fn f() { let made = Owner::made; made(1, 2) }",
        "use x::{y::Owner as Other}; fn f() { Other::made(1, 2) }",
        "type Other<D> = x::Owner<D>; type Third = Other<u8>; fn f() { Third::made(1, 2) }",
        "impl<D> Owner<D> { fn f() { Self::made(1, 2) } }",
        "trait Owner { fn f(&self) { Self::made(self, 1) } }",
        "fn f(x: &dyn Owner) { x.made(1, 2) }",
        "fn f(x: &dyn Owner) { <dyn Owner>::made(x, 1, 2) }",
        "fn f<O: Owner>(x: O) { O::made(&x, 1, 2) }",
        "struct A; impl Owner for A {} fn f() { A::made(&A, 1, 2) }",
        "struct A; impl Owner for A { fn f(&self) { <Self as Owner>::made(self, 1, 2) } }",
        "fn f() { assert!(vec![Owner::made(1, 2)].is_empty(), \"{}\", 1) }",
        "macro_rules! made { () => { $crate::Owner::<u8>::made(1, 2) } }",
    ];
    let file = |text| [("file".to_owned(), syn::parse_file(text).unwrap())];
    for call in calls {
        let files = file(call);
        assert_eq!(callers(&files, "Owner", "made", 2), [("file".to_owned(), 1)], "{call}");
    }
    for other in [
        "fn f(x: Other) { x.made(1); Other::made(1, 2); made(1, 2) }",
        "struct Owner; impl Owner { fn made() {} } impl Other { fn f() { Self::made() } }",
        "#[cfg(test)] mod tests { fn f() { Owner::made(1, 2) } }",
    ] {
        let files = file(other);
        assert!(callers(&files, "Owner", "made", 2).is_empty(), "{other}");
    }
}
