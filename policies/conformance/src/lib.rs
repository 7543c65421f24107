//! What the policies are held to beyond their own unit tests: HPA's conformance tables, and the way to run any fixture
//! through the components that ship.

pub mod hpa;
