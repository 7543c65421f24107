//! Rounds with an agent: the real plan and the real agents, in a world that loses, delays and kills.

mod away;
mod budgets;
mod checkpoints;
mod containers;
mod hangs;
mod history;
mod images;
mod losses;
mod memory;
mod moves;
mod native;
mod neighbours;
mod returns;
mod rules;
mod scope;
mod stories;
mod stragglers;
mod types;
pub(crate) mod world;
