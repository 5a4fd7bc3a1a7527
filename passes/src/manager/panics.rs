//! What is said and kept of a pass that panicked.

use super::error::PassError;
use super::observer::Observer;
use piecewise_ir::module::Module;
use piecewise_ir::text::print_module;
use std::any::Any;

/// What a panic said; `nothing` where that is no text.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("nothing").to_owned()
}

/// The error of a pass, given by its place and name, that panicked over `before`; observers may keep
/// what it was given.
pub(super) fn panicked(
    observers: &mut [Box<dyn Observer + '_>],
    (index, name): (usize, &str),
    spec: &str,
    before: &Module,
    panic: &(dyn Any + Send),
) -> PassError {
    let before = print_module(before);
    let kept = observers.iter_mut().find_map(|observer| {
        observer.panicked(index, name, &before).unwrap_or_else(|error| {
            tracing::warn!(%error, "what a pass panicked over is not kept");
            None
        })
    });
    let (pass, said, spec) = (name.to_owned(), panic_text(panic), spec.to_owned());
    PassError::Panicked { pass, said, spec, before, kept }
}
