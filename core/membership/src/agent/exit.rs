//! How processes end, and what that says of all of a group together.

/// The exit code by which a script says: I was asked to stop, and have written a checkpoint. It is what a shell makes of
/// death by SIGTERM, which says nothing of a checkpoint: see [`Exit`].
pub const DRAINED: i32 = 143;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code, 0 to 255.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// As a shell tells it: the code, or 128 and the signal.
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// The ends of a group's processes so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exits {
    first_failure: Option<Exit>,
    /// One ended with [`DRAINED`] by itself.
    drained: bool,
    /// One that the agent started ended in another way than being asked to: it failed.
    failed: bool,
}

impl Exits {
    /// `stop` is the signal that asks it to stop in the place of SIGTERM.
    pub(super) fn add(&mut self, exit: Exit, main: bool, stop: i32) {
        self.drained |= exit == Exit::Code(DRAINED);
        if main && exit != Exit::Code(0) {
            self.first_failure.get_or_insert(exit);
            self.failed |= ![Exit::Code(DRAINED), Exit::Signal(SIGTERM), Exit::Signal(stop)].contains(&exit);
        }
    }

    /// The code of the first that failed, else 0.
    pub(super) fn code(&self) -> i32 {
        self.first_failure.map_or(0, Exit::code)
    }

    /// The script has written a checkpoint: it ended with 143, and nothing beside it failed. What the agent started may
    /// be a shell that the signal ended, with the script below it.
    pub(super) fn is_drained(&self) -> bool {
        self.drained && !self.failed
    }
}

const SIGTERM: i32 = 15;
