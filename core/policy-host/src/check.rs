//! What a guest says, held against the contract. Pure: an answer in, the first thing that breaks the contract out.

use eto_engine::contract::{
    Description, MAX_STATE, MAX_TARGET, PlacementDecision, PlacementInput, Reason, ScalingDecision, SignalWant,
};

const MAX_NAME: usize = 63;
const MAX_MESSAGE: usize = 256;
const MAX_REASONS: usize = 16;
const MAX_SIGNALS: usize = 32;
const MAX_QUERY: usize = 4096;
const MAX_SUMMARY: usize = 1024;
const MAX_SCHEMA: usize = 256 * 1024;

/// Whether a text is 1 to 63 characters of `[a-z0-9-]`.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(fits)
}

fn is_code(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// A guest's character as it may be shown: none that would break a line or drive a terminal.
pub(crate) fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

/// A text of the guest, short enough for a message.
fn quote(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

fn characters(text: &str, max: usize) -> bool {
    // Bytes bound characters from above: most texts need no count.
    text.len() <= max || text.chars().count() <= max
}

/// Checks what `describe` answered.
pub(crate) fn description(said: &Description) -> Result<(), String> {
    if !is_name(&said.name) {
        return Err(format!(
            "a name {}, but it must have 1 to {MAX_NAME} characters of a-z, 0-9 and -",
            quote(&said.name)
        ));
    }
    if !is_version(&said.version) {
        return Err(format!("a version {}, but it must be a semantic version like 1.2.0", quote(&said.version)));
    }
    if !characters(&said.summary, MAX_SUMMARY) || said.summary.contains(char::is_control) {
        return Err(format!("a summary that is not one line of at most {MAX_SUMMARY} characters"));
    }
    if said.config_schema.len() > MAX_SCHEMA {
        return Err(format!(
            "a config-schema of {} bytes, but at most {MAX_SCHEMA} are allowed",
            said.config_schema.len()
        ));
    }
    wants(&said.signals)
}

fn is_version(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = core.split('.').collect();
    text.len() <= 64
        && numbers.len() == 3
        && numbers.iter().all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        && text.bytes().all(|b| b.is_ascii_graphic())
}

/// Checks the signals that a policy wants.
pub(crate) fn wants(said: &[SignalWant]) -> Result<(), String> {
    if said.len() > MAX_SIGNALS {
        return Err(format!("{} signals, but at most {MAX_SIGNALS} are allowed", said.len()));
    }
    for (at, want) in said.iter().enumerate() {
        let name = quote(&want.name);
        if !is_name(&want.name) {
            return Err(format!("a signal {name}, but a name must have 1 to {MAX_NAME} characters of a-z, 0-9 and -"));
        }
        if said[..at].iter().any(|other| other.name == want.name) {
            return Err(format!("the signal {name} twice"));
        }
        if !(want.low.is_finite() && want.high.is_finite() && want.low <= want.high) {
            let (low, high) = (want.low, want.high);
            return Err(format!(
                "the range {low}..{high} for the signal {name}, but it must be finite and low <= high"
            ));
        }
        if want.window_seconds != 0 && !(15..=3600).contains(&want.window_seconds) {
            return Err(format!(
                "a window of {} s for the signal {name}, but it must be 0 or 15 to 3600",
                want.window_seconds
            ));
        }
        if want.history_seconds > 86_400 {
            return Err(format!(
                "a history of {} s for the signal {name}, but at most 86400 are kept",
                want.history_seconds
            ));
        }
        if want.query.as_ref().is_some_and(|query| query.len() > MAX_QUERY) {
            return Err(format!("a query of more than {MAX_QUERY} bytes for the signal {name}"));
        }
    }
    Ok(())
}

fn reasons(said: &[Reason]) -> Result<(), String> {
    if said.is_empty() || said.len() > MAX_REASONS {
        return Err(format!("{} reasons, but it must give 1 to {MAX_REASONS}", said.len()));
    }
    for reason in said {
        if !is_code(&reason.code) {
            return Err(format!(
                "a reason code {}, but it must be CamelCase, at most {MAX_NAME} characters",
                quote(&reason.code)
            ));
        }
        if !characters(&reason.message, MAX_MESSAGE) {
            let (code, length) = (&reason.code, reason.message.chars().count());
            return Err(format!(
                "a message of {length} characters for the reason {code}, but at most {MAX_MESSAGE} are allowed"
            ));
        }
        if reason.signal.as_ref().is_some_and(|signal| !characters(signal, MAX_NAME)) {
            return Err(format!("a signal name of more than {MAX_NAME} characters for the reason {}", reason.code));
        }
        for number in [reason.value, reason.target].into_iter().flatten() {
            if !number.is_finite() {
                return Err(format!("{number} as a value of the reason {}, but numbers must be finite", reason.code));
            }
        }
    }
    Ok(())
}

/// Checks the size of kept state, and that the policy says it keeps any.
pub(crate) fn state(said: Option<&[u8]>, version: u32) -> Result<(), String> {
    match said {
        Some(bytes) if bytes.len() > MAX_STATE => {
            Err(format!("{} bytes of state, but at most {MAX_STATE} are kept", bytes.len()))
        }
        Some(bytes) if version == 0 && !bytes.is_empty() => {
            Err("state, but its description says state-version 0: it keeps none".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks the answer of a scaling policy.
pub(crate) fn scaling(said: &ScalingDecision, state_version: u32) -> Result<(), String> {
    if let Some(target) = said.target.filter(|target| *target > MAX_TARGET) {
        return Err(format!("a target of {target}, but it must be 0 to {MAX_TARGET}"));
    }
    if said.next_look_seconds == Some(0) {
        return Err("next-look-seconds 0, but it must be at least 1".to_owned());
    }
    state(said.state.as_deref(), state_version)?;
    reasons(&said.reasons)
}

/// Checks the answer of a placement policy against what it was asked.
pub(crate) fn placement(said: &PlacementDecision, asked: &PlacementInput, state_version: u32) -> Result<(), String> {
    let nodes = asked.nodes.free_cpu.len();
    let mut placed = std::collections::HashSet::new();
    for place in &said.places {
        if !asked.add.contains(&place.worker) {
            return Err(format!("a place for worker {}, which it was not asked about", place.worker));
        }
        if !placed.insert(place.worker) {
            return Err(format!("two places for worker {}", place.worker));
        }
        if place.node as usize >= nodes {
            return Err(format!("node {} for worker {}, but there are {nodes} nodes", place.node, place.worker));
        }
    }
    let mut given_up = std::collections::HashSet::new();
    for victim in &said.victims {
        let Some(at) = asked.members.index.iter().position(|index| index == victim) else {
            return Err(format!("victim {victim}, which is no worker of the job"));
        };
        if asked.members.protected.get(at).copied().unwrap_or(false) {
            return Err(format!("victim {victim}, which is the protected master"));
        }
        if !given_up.insert(*victim) {
            return Err(format!("victim {victim} twice"));
        }
    }
    state(said.state.as_deref(), state_version)?;
    reasons(&said.reasons)
}
