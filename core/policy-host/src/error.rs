//! Why a host can't start and why a module can't be served.

use eto_engine::policy::CallFailure;

/// The contract versions that this host serves, for messages.
pub(crate) const SERVED: &str = "0.1";

/// Why a host can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A setting is out of its range.
    #[error("policy host: {setting} is {value}, but must be {range}")]
    Setting {
        /// The field of [`HostSettings`](crate::HostSettings).
        setting: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// The WebAssembly engine refused its configuration on this machine.
    #[error("policy host: the WebAssembly engine can't start on this machine: {0}")]
    Engine(String),
    /// The thread that watches deadlines could not be started.
    #[error("policy host: can't start the deadline thread: {0}")]
    Thread(std::io::Error),
}

/// Why a module is not servable. A closed set: each is a fact about that module alone, and disturbs no other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// More bytes than the host takes.
    #[error(
        "the module has {size} bytes, over the cap of {max}: build it smaller (opt-level, lto, strip) or raise the host's max_module_bytes"
    )]
    TooLarge {
        /// Bytes of the file.
        size: u64,
        /// The host's cap.
        max: u64,
    },
    /// The bytes end too early.
    #[error("the module ends too early, at byte {offset} ({detail}): it was copied only in part, copy it again")]
    Truncated {
        /// Where the parser ran out of bytes.
        offset: u64,
        /// The parser's words.
        detail: String,
    },
    /// Not WebAssembly at all.
    #[error("this is not a WebAssembly binary ({detail})")]
    NotWasm {
        /// What it looks like instead.
        detail: String,
    },
    /// WebAssembly, but not valid, or using a feature that policies may not use.
    #[error("the module is not valid at byte {offset}: {detail}")]
    Invalid {
        /// Where.
        offset: u64,
        /// The validator's words.
        detail: String,
    },
    /// A core module that says nothing of its component type.
    #[error(
        "this is a core module, and not a component: {detail}. Build it with the policy SDK, or encode it with `wasm-tools component new`"
    )]
    NotAComponent {
        /// What is missing.
        detail: String,
    },
    /// A component that exports neither kind of policy.
    #[error(
        "the component exports no policy: it must export elastic:policy/scaling@{SERVED} or elastic:policy/placement@{SERVED}, and exports {exports}"
    )]
    NotAPolicy {
        /// What it exports instead.
        exports: String,
    },
    /// It wants something that a policy is not given.
    #[error("the module imports `{import}`, which policies are not given (only elastic:policy/log@{SERVED}): {mend}")]
    UnknownImport {
        /// The import's name.
        import: String,
        /// How to get rid of it.
        mend: &'static str,
    },
    /// Written for a contract version that this host does not serve.
    #[error(
        "the module needs the policy contract {needs}, this host serves {SERVED}: rebuild it with an SDK of version {SERVED}, or update the operator"
    )]
    WrongVersion {
        /// What it was built for.
        needs: String,
    },
    /// An exported function is missing or has other types than the contract says.
    #[error(
        "`{function}` does not have the types of the contract {SERVED}: {detail}. Rebuild the module against wit/v0.1"
    )]
    WrongShape {
        /// The exported function.
        function: String,
        /// What differs.
        detail: String,
    },
    /// Its memories can't fit under its limit.
    #[error(
        "the module starts with {needs} bytes of memory, over its limit of {limit}: raise memory_bytes in its settings file"
    )]
    NeedsMoreMemory {
        /// Bytes that it starts with.
        needs: u64,
        /// Its limit.
        limit: u64,
    },
    /// Its tables can't fit under its limit.
    #[error(
        "the module starts with a table of {needs} elements, over its limit of {limit}: raise table_elements in its settings file"
    )]
    NeedsMoreTables {
        /// Elements that it starts with.
        needs: u64,
        /// Its limit.
        limit: u64,
    },
    /// Machine code could not be made of it.
    #[error("the module can't be compiled: {detail}")]
    CompileFailed {
        /// The compiler's words.
        detail: String,
    },
    /// `describe` did not answer.
    #[error("`describe` failed: {failure}")]
    DescribeFailed {
        /// Why.
        failure: CallFailure,
    },
    /// `describe` gave an answer that breaks the contract.
    #[error("`describe` answers {detail}")]
    BadDescription {
        /// Which field, and what it must be.
        detail: String,
    },
    /// The defaults in the settings file do not fit the config schema of the policy.
    #[error("the [config] of the settings file does not fit the policy's schema: {detail}")]
    BadDefaults {
        /// Each key that does not fit.
        detail: String,
    },
    /// It answers a golden case otherwise than it must.
    #[error("the golden case {case:?} fails: {detail}")]
    GoldenFailed {
        /// Name of the case.
        case: String,
        /// What was wanted and what came.
        detail: String,
    },
    /// The file of golden cases can't be understood.
    #[error("the golden cases are not usable: {detail}")]
    BadGolden {
        /// Where, and what it must be.
        detail: String,
    },
    /// The settings file can't be understood.
    #[error("the settings file is not usable: {detail}")]
    BadSettings {
        /// Line, key, and what it must be.
        detail: String,
    },
    /// A limit that is zero or above the host's ceiling.
    #[error("{limit} = {asked} in the settings file is out of range: it must be 1 to {ceiling}, the host's ceiling")]
    LimitOutOfRange {
        /// The key.
        limit: &'static str,
        /// What it was set to.
        asked: u64,
        /// The host's ceiling.
        ceiling: u64,
    },
    /// The file's name can't be the name of a policy.
    #[error(
        "`{name}` can't name a policy: a name has 1 to 63 characters of a-z, 0-9 and -; rename the file, for example to `{suggestion}.wasm`"
    )]
    BadName {
        /// The file's stem.
        name: String,
        /// A legal name near it.
        suggestion: String,
    },
    /// The file can't be read.
    #[error("can't read {path}: {detail}")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        detail: String,
    },
}

impl LoadError {
    /// A stable CamelCase word for conditions and metric labels.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "TooLarge",
            Self::Truncated { .. } => "Truncated",
            Self::NotWasm { .. } => "NotWasm",
            Self::Invalid { .. } => "Invalid",
            Self::NotAComponent { .. } => "NotAComponent",
            Self::NotAPolicy { .. } => "NotAPolicy",
            Self::UnknownImport { .. } => "UnknownImport",
            Self::WrongVersion { .. } => "WrongVersion",
            Self::WrongShape { .. } => "WrongShape",
            Self::NeedsMoreMemory { .. } => "NeedsMoreMemory",
            Self::NeedsMoreTables { .. } => "NeedsMoreTables",
            Self::CompileFailed { .. } => "CompileFailed",
            Self::DescribeFailed { .. } => "DescribeFailed",
            Self::BadDescription { .. } => "BadDescription",
            Self::BadDefaults { .. } => "BadDefaults",
            Self::GoldenFailed { .. } => "GoldenFailed",
            Self::BadGolden { .. } => "BadGolden",
            Self::BadSettings { .. } => "BadSettings",
            Self::LimitOutOfRange { .. } => "LimitOutOfRange",
            Self::BadName { .. } => "BadName",
            Self::Unreadable { .. } => "Unreadable",
        }
    }

    /// Whether the bytes look like a file that is still being written, so that the next look may find it whole.
    pub(crate) fn may_be_half_written(&self) -> bool {
        matches!(
            self,
            Self::Truncated { .. }
                | Self::Invalid { .. }
                | Self::NotWasm { .. }
                | Self::BadSettings { .. }
                | Self::BadGolden { .. }
        )
    }
}

/// Why the config of a job can't be given to a policy. The text names each key and what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);
