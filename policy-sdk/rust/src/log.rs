//! The operator's log. The host keeps at most 64 lines and 16 KiB of one call; natively the lines go to stderr, which
//! `cargo test` shows for tests that fail.

#[cfg(target_family = "wasm")]
use crate::bindings::scaling::elastic::policy::log as host;

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident $level:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(message: impl AsRef<str>) {
            #[cfg(target_family = "wasm")]
            host::write(host::Level::$level, message.as_ref());
            #[cfg(not(target_family = "wasm"))]
            eprintln!("{}: {}", stringify!($name), message.as_ref());
        }
    )*};
}

levels! {
    /// Writes a line that only matters when looking for a fault.
    debug Debug;
    /// Writes a line for people who watch the operator.
    info Info;
    /// Writes a line about something odd.
    warn Warn;
    /// Writes a line about something wrong.
    error Error;
}
