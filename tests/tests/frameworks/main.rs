//! The examples train with real frameworks, as processes of this machine under `eto run`. `tests/frameworks.sh` makes what
//! they need and runs them.
//!
//! What each must show: however the workers come and go, the loss of every step is that of an undisturbed run, and each
//! sample is seen once per epoch. Times are never judged, since the machine may be busy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start processes and use files")]

mod curve;
mod job;
mod session;
mod store;

use curve::{Curve, samples_seen};
use job::{Framework, Job};
use session::Session;

/// Losses are printed with six digits; sums of another order differ by less than this, relative to a loss of 1.
const TOLERANCE: f64 = 2e-4;
/// Steps between checkpoints.
const EVERY: u64 = 20;

/// Two workers, three, two again, one of them killed: nothing of it is seen in the losses.
fn survives_everything(framework: Framework) {
    let mut job = Job::new(framework, 4);
    let reference = job.undisturbed();
    let mut session = Session::start(&mut job, 2);
    session.until_step(12, 2);

    job.write(3);
    let at = session.until_world(3);
    session.until_step(at + 10, 3);
    assert_eq!(session.last_restart_lost(), 0, "a drained round ends with a checkpoint of its last step");

    job.write(2);
    let at = session.until_world(2);
    session.until_step(at + 10, 2);
    assert_eq!(session.last_restart_lost(), 0, "a drained round ends with a checkpoint of its last step");

    session.kill_worker(1);
    session.until_restart();
    let lost = session.last_restart_lost();
    assert!(lost <= EVERY, "{lost} steps were lost, and every {EVERY}th is in a checkpoint");

    let curve = session.end();
    assert_eq!(curve.worlds(), [2, 3, 2, 2]);
    curve.agrees_with(&reference, TOLERANCE);
    samples_seen(&job.audit(), job.samples, reference.steps());
}

#[test]
fn torch_survives_everything() {
    survives_everything(Framework::Torch);
}

#[test]
fn jax_survives_everything() {
    survives_everything(Framework::Jax);
}

/// Left out unless `TENSORFLOW=1` is set for `tests/frameworks.sh`.
#[test]
fn tensorflow_survives_everything() {
    survives_everything(Framework::TensorFlow);
}

/// Two workers, three, two again, a parameter server killed: each start goes on from the checkpoint, and all steps of the
/// data are done. Workers do not wait for each other within a wave, so that losses are not the same from run to run.
/// Left out unless `TENSORFLOW=1` is set.
#[test]
fn tensorflow_with_a_parameter_server_goes_on_from_its_checkpoints() {
    const OTHERS: u32 = 2; // the chief (index 0) and the server (index 1)
    const BATCH: u64 = 32;
    let mut job = Job::new(Framework::ParameterServer, 4);
    let mut session = Session::start(&mut job, OTHERS + 2);
    session.until_step(12, 2);
    for workers in [3, 2] {
        job.write(OTHERS + workers);
        let at = session.until_world(workers);
        session.until_step(at + 12, workers);
        assert_eq!(session.last_restart_lost(), 0, "a drained round ends with a checkpoint of its last step");
    }
    session.kill_worker(1);
    session.until_restart();
    let lost = session.last_restart_lost();
    // A checkpoint is due when a wave has gone over the mark.
    assert!(lost < EVERY + 2, "{lost} steps were lost, and every {EVERY}th is in a checkpoint");

    let curve = session.end();
    assert_eq!(curve.worlds(), [2, 3, 2, 2]);
    assert_eq!(curve.steps(), 4 * job.samples.div_ceil(BATCH), "each sample once in each of four epochs");
    let (first, last) = curve.ends(20);
    assert!(last < first / 2.0, "the mean loss went from {first} to {last}");
}

/// A job that is deleted and applied again begins at round 1, beside the checkpoints of the first one's later rounds. It
/// goes on from the last of them, and the one after it from the last of its own.
fn goes_on_when_applied_again(framework: Framework) {
    let mut job = Job::new(framework, 5);
    let mut first = Session::start(&mut job, 2);
    first.until_step(3, 2);
    job.write(1);
    let at = first.until_world(1);
    first.until_step(at + 3, 1);
    let mut left = first.stop();
    for _ in 0..2 {
        let mut again = Session::start(&mut job, 1);
        assert_eq!(again.until_resumed(), left, "{framework:?}");
        again.until_step(left + 3 * EVERY, 1); // more checkpoints than are kept
        left = again.stop();
    }
}

#[test]
fn a_job_applied_again_goes_on() {
    [Framework::Torch, Framework::Jax].into_iter().for_each(goes_on_when_applied_again);
}

#[test]
fn tensorflow_applied_again_goes_on() {
    goes_on_when_applied_again(Framework::TensorFlow);
}

/// Two workers of two processes each, started by `torchrun` with the operator's static rendezvous, then one worker. Each
/// process goes through its share in pieces of the size that the batch rule gives.
#[test]
fn torchrun_with_two_processes_per_worker() {
    let mut job = Job::new(Framework::Torchrun { processes: 2 }, 2);
    let reference = job.undisturbed();
    let mut session = Session::start(&mut job, 2);
    session.until_step(8, 4);
    job.write(1);
    session.until_world(2);
    let curve = session.end();
    assert_eq!(curve.worlds(), [4, 2]);
    curve.agrees_with(&reference, TOLERANCE);
    samples_seen(&job.audit(), job.samples, reference.steps());
}

/// A stop that comes while the script still loads its checkpoint and sets up its model ends it at once: it has nothing to
/// save yet, and a flag that nobody looks at would cost it the whole grace.
#[test]
fn a_stop_before_the_first_step_ends_at_once() {
    use std::os::unix::process::ExitStatusExt;
    for framework in [Framework::Torch, Framework::Jax] {
        let job = Job::new(framework, 1);
        let mut script = job.that_never_loads();
        let deadline = std::time::Instant::now() + session::LIMIT;
        while !job.folder.path().join("loads").exists() {
            assert!(std::time::Instant::now() < deadline && script.try_wait().unwrap().is_none(), "{framework:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let stopped = std::process::Command::new("kill").arg(script.id().to_string()).status().unwrap();
        assert!(stopped.success());
        let status = loop {
            if let Some(status) = script.try_wait().unwrap() {
                break status;
            }
            if std::time::Instant::now() > deadline {
                script.kill().unwrap();
                panic!("{framework:?} goes on");
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        };
        assert_eq!(status.signal(), Some(15), "{framework:?}");
    }
}

/// The curve is what makes the comparisons above worth something: it must go down, and no two steps are alike.
#[test]
fn the_reference_learns() {
    for framework in [Framework::Torch, Framework::Jax] {
        let curve: Curve = Job::new(framework, 4).undisturbed();
        let (first, last) = curve.ends(20);
        assert!(last < first / 2.0, "{framework:?}: the mean loss went from {first} to {last}");
    }
}
