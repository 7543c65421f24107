//! The store that the members of a run meet at, served by the agent of the run's coordinator.
//!
//! It begins empty with its run and is kept while its run may last, also when nothing of the run lives in this pod any
//! more: the others may yet write a checkpoint, and `torchrun` ends its processes as soon as its store is gone.

use std::net::{IpAddr, SocketAddr, TcpListener};

use eto_membership::agent::Launch;
use eto_rendezvous::{Limits, Server};
use tokio::task::JoinHandle;

/// What a store may hold, in bytes: `torchrun` keeps a few kilobytes in it. The agent stays small whatever its clients do.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// The store of the run that this pod has a part in, if it is the one to serve it.
#[derive(Debug)]
pub(crate) struct Stores {
    address: IpAddr,
    served: Option<Served>,
}

#[derive(Debug)]
struct Served {
    run: u64,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stores {
    /// None yet; they listen at this address.
    pub(crate) fn at(address: IpAddr) -> Stores {
        Stores { address, served: None }
    }

    /// Serves what a round that is about to start needs here, and nothing else.
    ///
    /// # Errors
    /// The round's port is taken.
    pub(crate) fn prepare(&mut self, launch: &Launch) -> std::io::Result<()> {
        let run = launch.native().filter(|_| launch.serves_store()).map(|n| n.run);
        self.served = self.served.take().filter(|s| Some(s.run) == run);
        if let (Some(run), None) = (run, &self.served) {
            let listener = TcpListener::bind(SocketAddr::new(self.address, launch.assignment.round.port))?;
            let limits = Limits { bytes: MOST_BYTES, received: MOST_BYTES, ..Limits::default() };
            listener.set_nonblocking(true)?;
            let server = Server::on(tokio::net::TcpListener::from_std(listener)?, limits);
            self.served = Some(Served { run, task: tokio::spawn(server.serve()) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_membership::{Assignment, Candidate, FrameworkKind, Member, Native, Order, Ports, Round};
    use tokio::net::TcpStream;

    use super::*;

    const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn launch(generation: u64, run: Option<u64>, rank: usize, port: u16) -> Launch {
        let member = |index| Candidate {
            member: Member { index, address: HOST.to_string(), uid: None, processes: 1 },
            healthy_since_ms: None,
        };
        let round = Round::plan("ns/j", "u", generation, (0..2).map(member).collect(), Ports::default()).unwrap();
        let round = Round { port, ..round };
        let native = run.map(|run| Native { run, min: 1, max: 2, alone: false });
        let assignment = Assignment { native, ..Assignment::new(round, Order::Run, FrameworkKind::PyTorch, 1) };
        Launch { assignment, rank }
    }

    /// Waits until nothing listens there any more.
    async fn closed(port: u16) {
        let refused = async { while TcpStream::connect((HOST, port)).await.is_ok() {} };
        tokio::time::timeout(std::time::Duration::from_secs(30), refused).await.unwrap();
    }

    fn free_port() -> u16 {
        TcpListener::bind((HOST, 0)).unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn the_coordinator_serves_one_store_for_each_run() {
        let mut stores = Stores::at(HOST);
        let (first, second) = (free_port(), free_port());
        stores.prepare(&launch(1, Some(1), 1, first)).unwrap();
        assert!(TcpStream::connect((HOST, first)).await.is_err(), "it is another's to serve");
        stores.prepare(&launch(1, Some(1), 0, first)).unwrap();
        TcpStream::connect((HOST, first)).await.unwrap();
        // A later round of the run finds the same one.
        stores.prepare(&launch(2, Some(1), 0, first)).unwrap();
        TcpStream::connect((HOST, first)).await.unwrap();
        stores.prepare(&launch(3, Some(3), 0, second)).unwrap();
        TcpStream::connect((HOST, second)).await.unwrap();
        closed(first).await;
        stores.prepare(&launch(4, None, 0, first)).unwrap();
        closed(second).await;
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_told() {
        let taken = TcpListener::bind((HOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(Stores::at(HOST).prepare(&launch(1, Some(1), 0, port)).is_err());
    }
}
