//! Why messages can't be made a prompt.

/// Why messages can't be made a prompt. Each but [`TemplateError::Template`] is the request's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template refuses the messages by `raise_exception`.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed: it is broken, or not made for such messages.
    #[error("the model's chat template can't render these messages: {0}")]
    Template(String),
    /// The template goes on for too long with these messages.
    #[error("the model's chat template takes more than {most} steps for these messages")]
    TooManySteps {
        /// The steps that it may take.
        most: u64,
    },
    /// The text of the prompt is longer than it may be.
    #[error("the model's chat template makes more than {most} bytes of these messages")]
    TooLong {
        /// The bytes that it may make.
        most: usize,
    },
    /// Nobody waits for the text any more.
    #[error("who asked for it has left")]
    Unwanted,
    /// There is no template of this name, or none to fall back on.
    #[error("the model has chat templates for {names:?} only, and no default one")]
    NoDefault {
        /// Templates that the tokenizer's configuration has.
        names: Vec<String>,
    },
    /// A field of the request can't be used.
    #[error("{field}: {message}")]
    Field {
        /// The field, as OpenAI's interface names it.
        field: &'static str,
        /// Why it can't be used.
        message: String,
    },
}

impl TemplateError {
    /// The field of the request that is at fault.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Field { field, .. } => field,
            _ => "messages",
        }
    }
}
