//! What goes before a source for an argument that it has by elements or rows.

use crate::lower::LowerError;
use piecewise_ir::types::TensorType;
use std::fmt::Write;

/// How the elements or rows of an argument are had.
pub(super) struct Argument {
    /// Goes before the source.
    pub(super) text: String,
    /// Types of the parameters besides the counts, and whether these follow.
    pub(super) params: Vec<String>,
    pub(super) counts: bool,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
}

impl Argument {
    /// The macros of the argument at `position`, of which `PW_{name}_N` gives an object with these
    /// `members`: `a0`, `a1` and so on are its parameters, and what is in `text` stands before it.
    pub(super) fn of(
        position: usize,
        name: &str,
        text: &str,
        params: Vec<String>,
        counts: bool,
        members: &str,
    ) -> Self {
        let space = name.to_ascii_lowercase();
        let mut text = format!("namespace {space}_{position} {{\n{text}struct Argument {{\n");
        let named: Vec<(String, String)> =
            (0..).zip(&params).map(|(i, ty)| (ty.clone(), format!("a{i}"))).collect();
        let counted = counts.then(|| ("const i32*".to_owned(), "counts".to_owned()));
        let all: Vec<(String, String)> = named.into_iter().chain(counted).collect();
        for (ty, name) in &all {
            let _ = writeln!(text, "  {ty} {name};");
        }
        let list = |of: &dyn Fn(&(String, String)) -> String| {
            all.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        let declared = list(&|(ty, name)| format!("{ty} e{position}_{name}"));
        let given = list(&|(_, name)| format!("e{position}_{name}"));
        let _ = write!(
            text,
            "{members}}};\n}}\n#define PW_PARAMS_{position} {declared}\n\
             #define PW_{name}_{position} {space}_{position}::Argument{{{given}}}\n\n"
        );
        Self { text, params, counts, shared: 0 }
    }
}

/// The names of so many members, each with a comma after it.
pub(super) fn names(params: &[String]) -> String {
    (0..params.len()).map(|i| format!("a{i}, ")).collect()
}

/// Elements of a row.
pub(super) fn columns(position: usize, ty: &TensorType) -> Result<u64, LowerError> {
    let elements = Some(ty).filter(|ty| ty.rank() > 0).and_then(|ty| ty.row().static_elements());
    elements.ok_or_else(|| {
        LowerError(format!("argument {position} has no rows of one length; take it whole"))
    })
}
