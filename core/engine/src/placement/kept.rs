use super::Ask;
use crate::contract::{KeptState, PlacementDecision, PlacementInput};
use crate::guard::carried;
use crate::policy::PlacementPolicy;
use crate::state::{Kept, Memory};

/// The argument of this very placement policy: with the state that it has kept, carried over if its layout is an older one.
pub fn input_for(ask: &Ask<'_>, policy: &dyn PlacementPolicy) -> PlacementInput {
    PlacementInput { state: kept(ask.memory, policy), ..super::input(ask) }
}

fn kept(memory: &Memory, policy: &dyn PlacementPolicy) -> Option<KeptState> {
    let kept = &memory.placement.kept;
    let own = kept.of.as_deref() == Some(policy.id().name.as_str());
    let state = kept.state.as_ref().filter(|_| own);
    carried(state, policy.state_version(), |kept| policy.migrate(kept.version, &kept.bytes))
}

/// What is to be kept of a checked answer, in place of what there was; `None` = keep what there is.
pub fn keep(policy: &dyn PlacementPolicy, answer: &PlacementDecision) -> Option<Kept> {
    let version = policy.state_version();
    let bytes = answer.state.clone().filter(|_| version > 0)?;
    Some(Kept { state: Some(KeptState { version, bytes }), of: Some(policy.id().name.clone()) })
}
