//! What can be wrong with the roles of a graph.

/// Why a graph can't be served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoleError {
    /// An input without a role.
    #[error("input %{input} has no role, so nothing would fill it; give it one of: {known}")]
    NoRole {
        /// The input's name.
        input: String,
        /// The roles that are known.
        known: String,
    },
    /// An input of a role that nothing fills.
    #[error("input %{input} has the role \"{role}\", which nothing fills; known roles: {known}")]
    Unknown {
        /// The input's name.
        input: String,
        /// Its role.
        role: String,
        /// The roles that are known.
        known: String,
    },
    /// An input whose type is not its role's.
    #[error("input %{input} of role \"{role}\" is {found}, but the role is {expected}")]
    Type {
        /// The input's name.
        input: String,
        /// Its role.
        role: &'static str,
        /// The type that it has.
        found: String,
        /// The type that the role has.
        expected: &'static str,
    },
    /// A role that no input has although another part of the graph needs it.
    #[error("no input has the role \"{role}\", needed because {because}")]
    Missing {
        /// The role.
        role: &'static str,
        /// What needs it.
        because: String,
    },
    /// An output that is missing.
    #[error("the graph returns no {what}; return {expected}")]
    NoOutput {
        /// What is missing.
        what: &'static str,
        /// The type that it would have.
        expected: &'static str,
    },
}
