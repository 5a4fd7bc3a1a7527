//! From messages to a prompt, and from a reply's text to a message.

mod generation;
mod messages;
mod python;
mod template;
mod template_files;

pub use generation::{GenerationDefaults, GenerationDefaultsError};
pub use template::{ChatPrompt, ChatTemplate, TemplateError};
pub use template_files::TemplateFileError;
