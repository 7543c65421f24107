//! Reading a module before anything is compiled: is it whole, is it a policy, what does it want?
//!
//! Pure: bytes in, facts or a typed refusal out. The whole binary is parsed and validated here, so that nothing
//! half-copied or crafted reaches the compiler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};

use crate::error::LoadError;
use crate::metadata;
use crate::policy::PolicyKind;

/// Custom section in which a guest may state the contract version it was built for, as text (`0.1.0`).
pub const VERSION_SECTION: &str = "elastic:policy-contract";

/// The package whose interfaces make up the contract.
pub(crate) const PACKAGE: &str = "elastic:policy/";

/// A component that may be compiled.
#[derive(Debug)]
pub(crate) struct Inspected {
    /// The component's bytes; encoded here if the file was a core module.
    pub(crate) component: Vec<u8>,
    /// Which kind of policy it is.
    pub(crate) kind: PolicyKind,
    /// Full name of the interface that it exports, with version.
    pub(crate) interface: String,
}

/// What a walk over all sections finds.
#[derive(Debug, Default)]
struct Scan {
    is_component: bool,
    component_type: bool,
    version_section: Option<String>,
    /// Imports of the component itself.
    imports: Vec<String>,
    /// Exports of the component itself.
    exports: Vec<String>,
    /// `module` and `name` of the imports of a core module.
    core_imports: Vec<(String, String)>,
}

/// Checks a module's bytes and, if it is a core module that carries its component type, encodes it.
pub(crate) fn inspect(bytes: Vec<u8>, max: u64) -> Result<Inspected, LoadError> {
    let size = bytes.len() as u64;
    if size > max {
        return Err(LoadError::TooLarge { size, max });
    }
    sniff(&bytes)?;
    let mut scan = scan(&bytes)?;
    validate(&bytes)?;
    let mut component = bytes;
    if !scan.is_component {
        check_core(&scan)?;
        component = encode(&component)?;
        let declared = scan.version_section.take();
        scan = self::scan(&component)?;
        scan.version_section = scan.version_section.or(declared);
    }
    check_imports(&scan)?;
    check_version(&scan)?;
    let (kind, interface) = find_policy(&scan)?;
    Ok(Inspected { component, kind, interface })
}

/// Tells apart what is not WebAssembly at all, with a guess at what it is.
fn sniff(bytes: &[u8]) -> Result<(), LoadError> {
    const MAGIC: &[u8] = b"\0asm";
    if bytes.starts_with(MAGIC) {
        return Ok(());
    }
    if bytes.is_empty() {
        return Err(LoadError::Truncated { offset: 0, detail: "the file is empty".to_owned() });
    }
    if MAGIC.starts_with(bytes) {
        return Err(LoadError::Truncated {
            offset: bytes.len() as u64,
            detail: "only a part of the header".to_owned(),
        });
    }
    let text = bytes.trim_ascii_start();
    let detail = if text.starts_with(b"(module") || text.starts_with(b"(component") {
        "it is in the text format: assemble it with `wasm-tools parse`".to_owned()
    } else if bytes.starts_with(b"\x7fELF") {
        "it is a native library: build for --target wasm32-unknown-unknown".to_owned()
    } else if bytes.starts_with(&[0x1f, 0x8b]) || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        "it is compressed: unpack it first".to_owned()
    } else {
        format!("it starts with the bytes {}, not with 0061736d", hex::encode(&bytes[..bytes.len().min(4)]))
    };
    Err(LoadError::NotWasm { detail })
}

#[allow(clippy::needless_pass_by_value, reason = "used as a function to map with")]
fn refusal(error: wasmparser::BinaryReaderError) -> LoadError {
    let (offset, detail) = (error.offset() as u64, error.message().to_owned());
    if detail.contains("unexpected end") {
        LoadError::Truncated { offset, detail }
    } else {
        LoadError::Invalid { offset, detail }
    }
}

/// Deepest nesting of components in components. Toolchains need two levels, compositions a few more; the validator's
/// memory grows with the square of the depth, so it must never see what goes deeper.
const MAX_DEPTH: u32 = 32;

fn scan(bytes: &[u8]) -> Result<Scan, LoadError> {
    let mut found = Scan::default();
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(refusal)? {
            Payload::Version { encoding, .. } if depth == 0 => found.is_component = encoding == Encoding::Component,
            Payload::ModuleSection { unchecked_range: at, .. }
            | Payload::ComponentSection { unchecked_range: at, .. } => {
                depth += 1;
                if depth > MAX_DEPTH {
                    let detail = format!("components are nested more than {MAX_DEPTH} deep");
                    return Err(LoadError::Invalid { offset: at.start as u64, detail });
                }
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentTypeSection(section) => check_types(bytes, section.range())?,
            Payload::CustomSection(section) => {
                if section.name() == VERSION_SECTION {
                    found.version_section = Some(String::from_utf8_lossy(section.data()).trim().to_owned());
                } else if depth == 0 && section.name().starts_with("component-type") {
                    check_metadata(section.data())?;
                    found.component_type = true;
                }
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    found.imports.push(import.map_err(refusal)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    found.exports.push(export.map_err(refusal)?.name.name.to_owned());
                }
            }
            Payload::ImportSection(section) if depth == 0 => {
                for import in section.into_imports() {
                    let import = import.map_err(refusal)?;
                    found.core_imports.push((import.module.to_owned(), import.name.to_owned()));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Refuses types nested so deep in types that reading them would overflow the stack: the parser recurses, and a stack
/// overflow can't be caught. Each level of nesting is a declaration of a type (1) of the kind component (0x41) or
/// instance (0x42), so the pairs of such bytes bound the depth. Whole worlds need some dozens.
fn check_types(bytes: &[u8], at: std::ops::Range<usize>) -> Result<(), LoadError> {
    const MAX_NESTED: usize = 200;
    let offset = at.start as u64;
    let section = bytes.get(at).unwrap_or_default();
    let nested = section.windows(2).filter(|pair| matches!(pair, [0x01, 0x41 | 0x42])).count();
    if nested > MAX_NESTED {
        let detail = format!(
            "a section may have {MAX_NESTED} types with types in them, and has {nested}: they could be nested too deep"
        );
        return Err(LoadError::Invalid { offset, detail });
    }
    Ok(())
}

/// The section that says what a core module is as a component is a component itself: the encoder gets only what passed
/// the checks that a module must pass.
fn check_metadata(data: &[u8]) -> Result<(), LoadError> {
    let refuse = |error: LoadError| LoadError::NotAComponent { detail: format!("its metadata is broken: {error}") };
    sniff(data).map_err(refuse)?;
    if !scan(data).map_err(refuse)?.is_component {
        return Err(LoadError::NotAComponent { detail: "its metadata is not in a format that is known".to_owned() });
    }
    validate(data).map_err(refuse)?;
    metadata::check_names(data)
        .map_err(|detail| LoadError::NotAComponent { detail: format!("its metadata is not usable: {detail}") })
}

/// What guests may use of WebAssembly: version 2.0 with the component model; nothing whose result depends on the
/// machine (threads, relaxed SIMD), no 64-bit memories, one memory in a module (the pool has room for one), and no
/// garbage collector.
fn features() -> WasmFeatures {
    WasmFeatures::WASM2 | WasmFeatures::COMPONENT_MODEL | WasmFeatures::EXTENDED_CONST | WasmFeatures::TAIL_CALL
}

fn validate(bytes: &[u8]) -> Result<(), LoadError> {
    match Validator::new_with_features(features()).validate_all(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(refusal(error)),
    }
}

fn check_core(scan: &Scan) -> Result<(), LoadError> {
    if let Some((module, name)) = scan.core_imports.iter().find(|(module, _)| !module.starts_with(PACKAGE)) {
        return Err(LoadError::UnknownImport { import: format!("{module}.{name}"), mend: mend(module) });
    }
    if !scan.component_type {
        return Err(LoadError::NotAComponent {
            detail: "it has no `component-type` section to encode it by".to_owned(),
        });
    }
    Ok(())
}

/// Turns a core module with a `component-type` section into a component.
fn encode(module: &[u8]) -> Result<Vec<u8>, LoadError> {
    let work = || -> Result<Vec<u8>, String> {
        let encoder = wit_component::ComponentEncoder::default().module(module);
        let bytes = encoder.and_then(|encoder| encoder.validate(true).encode());
        bytes.map_err(|error| format!("{error:#}"))
    };
    // The section is the guest's: whatever it makes of the encoder concerns this module alone.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            Err(LoadError::NotAComponent { detail: format!("its `component-type` section does not fit: {error}") })
        }
        Err(_) => Err(LoadError::NotAComponent { detail: "its `component-type` section can't be read".to_owned() }),
    }
}

fn mend(import: &str) -> &'static str {
    if import.starts_with("wasi") {
        "build it for wasm32-unknown-unknown, or stub WASI out (componentize-py --stub-wasi, jco --disable all)"
    } else {
        "remove what needs it; time, seed and data are arguments of the call"
    }
}

/// The version behind `@`, if the name has one.
fn version_of(name: &str) -> &str {
    name.rsplit_once('@').map_or("", |(_, version)| version)
}

fn is_served(version: &str) -> bool {
    version.strip_prefix("0.1.").is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|b| b.is_ascii_digit()))
}

fn check_imports(scan: &Scan) -> Result<(), LoadError> {
    for import in &scan.imports {
        let Some(rest) = import.strip_prefix(PACKAGE) else {
            return Err(LoadError::UnknownImport { import: import.clone(), mend: mend(import) });
        };
        let interface = rest.split('@').next().unwrap_or_default();
        if !is_served(version_of(import)) {
            return Err(LoadError::WrongVersion { needs: import.clone() });
        }
        if interface != "log" && interface != "types" {
            return Err(LoadError::UnknownImport { import: import.clone(), mend: mend(import) });
        }
    }
    Ok(())
}

fn check_version(scan: &Scan) -> Result<(), LoadError> {
    match &scan.version_section {
        Some(version) if !is_served(version) => {
            Err(LoadError::WrongVersion { needs: version.chars().take(64).collect() })
        }
        _ => Ok(()),
    }
}

fn find_policy(scan: &Scan) -> Result<(PolicyKind, String), LoadError> {
    let mut found = Vec::new();
    for export in &scan.exports {
        let kind = match export.strip_prefix(PACKAGE).and_then(|rest| rest.split('@').next()) {
            Some("scaling") => PolicyKind::Scaling,
            Some("placement") => PolicyKind::Placement,
            _ => continue,
        };
        if !is_served(version_of(export)) {
            return Err(LoadError::WrongVersion { needs: export.clone() });
        }
        found.push((kind, export.clone()));
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 if scan.exports.is_empty() => Err(LoadError::NotAPolicy { exports: "nothing".to_owned() }),
        0 => Err(LoadError::NotAPolicy { exports: scan.exports.join(", ") }),
        _ => Err(LoadError::NotAPolicy { exports: "more than one: split it into a module each".to_owned() }),
    }
}
