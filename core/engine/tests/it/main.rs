//! Tests of the engine through its public functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod budget;
mod checkpoints;
mod common;
mod controller;
mod gang;
mod guard;
mod history;
mod memory;
mod normalise;
mod noted;
mod placement;
mod plan;
mod promised;
mod properties;
mod reported;
mod shared;
mod stories;
mod types;
mod victims;
mod view;
mod volumes;
mod wants;
mod wide;
mod world;
