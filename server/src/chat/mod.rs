//! From messages to a prompt, and from a reply's text to a message.

mod call_list;
mod calls;
mod filters;
mod formats;
mod generation;
mod messages;
mod methods;
mod percent;
mod python;
mod reply;
mod strftime;
mod template;
mod template_error;
mod template_files;
mod thought_reader;
mod thoughts;
mod tool_call;
mod tool_calls;
mod tools;
mod values;

pub use formats::{ReplyFormat, UnknownParser};
pub use generation::{GenerationDefaults, GenerationDefaultsError};
pub use reply::{ReplyDelta, ReplyError, ReplyParser};
pub use template::{ChatPrompt, ChatTemplate, MOST_STEPS, RenderBounds};
pub use template_error::TemplateError;
pub use template_files::TemplateFileError;
pub use tool_call::ToolCallDelta;
pub use tools::{ToolChoice, Tools};
pub use values::StillWanted;
