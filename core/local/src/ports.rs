//! A port for each round, free on this machine.

use std::net::{Ipv4Addr, TcpListener};

/// Ports below those that the kernel gives to outgoing connections, above those of common services.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// Finds ports for one round after the other.
#[derive(Debug)]
pub struct Ports {
    next: u16,
}

impl Ports {
    /// `seed` spreads the jobs of one machine, so that they seldom look at the same port.
    pub fn new(seed: u32) -> Ports {
        let offset = u16::try_from(seed.wrapping_mul(97) % u32::from(COUNT)).unwrap_or(0);
        Ports { next: FIRST + offset }
    }

    /// The first of `count` free ports in a row, other than those given before; `None` if there are none.
    pub fn take(&mut self, count: u16) -> Option<u16> {
        let count = count.clamp(1, COUNT);
        let mut run = 0;
        for _ in 0..COUNT.saturating_mul(2) {
            let port = self.next;
            self.next = if port + 1 < FIRST + COUNT { port + 1 } else { FIRST };
            run = if port == FIRST { 0 } else { run };
            run = if is_free(port) { run + 1 } else { 0 };
            if run == count {
                return Some(port - (count - 1));
            }
        }
        None
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_passed_over_and_none_is_given_twice() {
        let mut ports = Ports::new(std::process::id());
        let first = ports.take(1).unwrap();
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        let second = ports.take(1).unwrap();
        assert_ne!(first, second);
        let mut again = Ports { next: first };
        assert_ne!(again.take(1).unwrap(), first);
    }

    #[test]
    fn a_row_lies_within_the_range() {
        let mut ports = Ports { next: FIRST + COUNT - 2 };
        let first = ports.take(8).unwrap();
        assert!(first >= FIRST && first + 8 <= FIRST + COUNT, "{first}");
    }
}
