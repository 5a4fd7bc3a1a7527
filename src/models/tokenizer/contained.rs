//! Keeping the `tokenizers` crate's panics over a bad file from ending the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::IgnoredAny;

/// Nested lists and objects that a `tokenizer.json` may have; real ones have about eight.
const DEEPEST: usize = 64;

/// Checks that `text` is JSON and not deeply nested.
///
/// The `tokenizers` crate takes both for granted in one place, where it panics otherwise.
pub(super) fn check_json(text: &[u8]) -> Result<(), tokenizers::Error> {
    serde_json::from_slice::<IgnoredAny>(text)?;
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} nested lists and objects").into());
        }
    }
    Ok(())
}

/// Runs `work`, a call of the `tokenizers` crate, and makes an error of a panic in it.
///
/// A file can hold a tokenizer that reads well and still breaks an assumption of that crate. The
/// tokenizer may be in any state afterwards, but it is only ever used through this function.
pub(super) fn contained<T>(
    work: impl FnOnce() -> Result<T, tokenizers::Error>,
) -> Result<T, tokenizers::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("for no stated reason");
        Err(format!("the tokenizers library gave up: {message}").into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(contained(|| Ok(7)).unwrap(), 7);
        let error = contained::<()>(|| panic!("at {}", 7)).unwrap_err();
        assert!(error.to_string().ends_with("gave up: at 7"), "{error}");
    }

    #[test]
    fn nesting_is_counted_outside_strings() {
        let nested = |depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        check_json(nested(DEEPEST).as_bytes()).unwrap();
        let error = check_json(nested(DEEPEST + 1).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("nested"), "{error}");
        check_json(format!(r#"{{"a": "\\\"{}", "b\\": []}}"#, "[".repeat(100)).as_bytes()).unwrap();
        check_json(b"{").unwrap_err();
    }
}
