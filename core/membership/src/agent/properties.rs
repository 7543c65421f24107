//! What holds after any sequence of events.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;

use super::stories::{ME, agent, assignment};
use super::*;

/// An event, or what the world does with what runs.
#[derive(Clone, Debug)]
enum Happening {
    Told {
        generation: u64,
        order: Order,
        in_it: bool,
        /// As a part of the run that is named so.
        run: Option<u64>,
    },
    /// What the agent started ends, and with `whole` all that it left behind too.
    Ends {
        exit: Exit,
        whole: bool,
    },
    /// A message of an earlier group that comes late.
    LateGone {
        generation: u64,
    },
    Signalled,
    Checkpoint {
        generation: Option<u64>,
        step: u64,
    },
    Progress {
        generation: u64,
        step: u64,
    },
    Waits {
        ms: u64,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let order = prop_oneof![5 => Just(Order::Stop), 8 => Just(Order::Run), 1 => Just(Order::End)];
    let exit = prop_oneof![
        2 => Just(Exit::Code(0)), 4 => Just(Exit::Code(143)), 3 => Just(Exit::Code(1)), 3 => Just(Exit::Signal(15)),
    ];
    prop_oneof![
        10 => (0u64..12, order, any::<bool>(), proptest::option::of(0u64..3))
            .prop_map(|(generation, order, in_it, run)| Happening::Told { generation, order, in_it, run }),
        6 => (exit, any::<bool>()).prop_map(|(exit, whole)| Happening::Ends { exit, whole }),
        1 => (0u64..12).prop_map(|generation| Happening::LateGone { generation }),
        1 => Just(Happening::Signalled),
        2 => (proptest::option::of(0u64..12), 0u64..100)
            .prop_map(|(generation, step)| Happening::Checkpoint { generation, step }),
        2 => (0u64..12, 0u64..100).prop_map(|(generation, step)| Happening::Progress { generation, step }),
        4 => (0u64..40_000).prop_map(|ms| Happening::Waits { ms }),
    ]
}

/// The world that the commands act on, with the rules checked at each of them.
#[derive(Default)]
struct World {
    now: u64,
    running: Option<u64>,
    asked_at: Option<u64>,
    /// The greatest (generation, order) ever told.
    newest: Option<(u64, Order)>,
    /// The run of what runs.
    run: Option<u64>,
    starts: Vec<u64>,
    /// What the agent started has ended; what that left behind has not.
    over: bool,
    /// What ended last ended with 143 by itself.
    said_143: bool,
    ended: bool,
}

impl World {
    fn obey(&mut self, agent: &Agent, commands: &[Command]) {
        for command in commands {
            let refuses = matches!(command, Command::Refuse(_));
            assert!(!self.ended || refuses, "a command after the end: {command:?}");
            match command {
                Command::Start(launch) => {
                    let generation = launch.generation();
                    assert_eq!(self.running, None, "two groups at once");
                    assert!(self.starts.iter().all(|g| *g < generation), "{generation} after {:?}", self.starts);
                    assert_eq!(self.newest, Some((generation, Order::Run)), "a stale round was started");
                    let member = &launch.assignment.round.members[launch.rank];
                    assert_eq!(member.uid.as_deref(), Some(ME));
                    self.starts.push(generation);
                    (self.running, self.asked_at) = (Some(generation), None);
                    self.run = launch.native().map(|n| n.run);
                    self.over = false;
                }
                Command::GoOn { generation } => {
                    assert!(self.running.is_some() && self.asked_at.is_none() && !self.over);
                    assert!(self.starts.iter().all(|g| g < generation), "{generation} after {:?}", self.starts);
                    assert_eq!(self.newest, Some((*generation, Order::Run)), "it goes on in a stale round");
                    let native = agent.assignment().and_then(|a| a.native).map(|n| n.run);
                    assert!(self.run.is_some() && self.run == native && agent.rank().is_some());
                    self.starts.push(*generation);
                }
                Command::Terminate => {
                    assert!(self.running.is_some() && self.asked_at.is_none());
                    self.asked_at = Some(self.now);
                }
                Command::Kill => assert!(self.asked_at.is_some() || self.over, "killed without a word"),
                Command::End { code } => {
                    assert_eq!(self.running, None, "it leaves something behind");
                    assert!((0..=255).contains(code));
                    self.ended = true;
                }
                Command::Report | Command::Refuse(_) => {}
            }
        }
        assert_eq!(self.running.is_some(), matches!(agent.state(), MemberState::Running { .. }));
        let ending = self.running.is_some() && (self.asked_at.is_some() || self.over);
        assert_eq!(ending, agent.next_deadline().is_some());
        if let (Some(at), Some(asked)) = (agent.next_deadline(), self.asked_at) {
            assert!(at > self.now && at <= self.now.max(asked) + 30_000, "{at} at {}", self.now);
        }
    }
}

/// Applies one happening and checks that whatever changes what is reported is reported.
fn play(agent: &mut Agent, world: &mut World, happening: &Happening) {
    let mut events = Vec::new();
    match happening.clone() {
        Happening::Told { generation, order, in_it, run } => {
            let uids: &[&str] = if in_it { &["x", ME] } else { &["x"] };
            // Members are fixed within a generation, as the one leader makes them.
            let uids = if generation % 5 == 4 { &["x"] } else { uids };
            let native = run.map(|run| crate::Native { run, min: 1, max: 9, alone: false });
            events.push(Event::Assigned(Box::new(Assignment { native, ..assignment(generation, order, uids) })));
        }
        Happening::Ends { exit, whole } => {
            if let Some(generation) = world.running {
                if !world.over {
                    events.push(Event::ProcessEnded { generation, exit, main: true, left: 0 });
                }
                if world.over || whole {
                    events.push(Event::GroupGone { generation });
                }
            }
        }
        Happening::LateGone { generation } => {
            if world.running != Some(generation) {
                events.push(Event::GroupGone { generation });
            }
        }
        Happening::Signalled => events.push(Event::Signalled),
        Happening::Checkpoint { generation, step } => events.push(Event::CheckpointTold { generation, step }),
        Happening::Progress { generation, step } => {
            events.push(Event::ProgressTold(Progress { generation, step, ..Progress::default() }));
        }
        Happening::Waits { ms } => {
            world.now += ms;
            events.push(Event::Tick);
        }
    }
    for event in events {
        let before = agent.report();
        if matches!(event, Event::GroupGone { generation } if world.running == Some(generation)) {
            world.running = None;
        }
        if let Event::ProcessEnded { exit, .. } = event {
            world.over = true;
            world.said_143 = exit == Exit::Code(143);
        }
        let told = match &event {
            Event::Assigned(a) => Some((a.round.generation, a.order)),
            _ => None,
        };
        let commands = agent.step(event, world.now);
        let refused = commands.iter().any(|c| matches!(c, Command::Refuse(_)));
        if let (Some(told), false) = (told, refused) {
            world.newest = world.newest.max(Some(told));
        }
        world.obey(agent, &commands);
        let after = agent.report();
        if refused {
            assert_eq!(after, before, "what was refused has changed something");
        }
        let steps = |r: &Report| (r.generation, r.state, r.checkpoint, r.leaving);
        assert!(steps(&before) == steps(&after) || commands.contains(&Command::Report), "{before:?} {after:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_rules_hold_after_any_sequence(all in proptest::collection::vec(happening(), 1..60)) {
        let (mut agent, mut world) = (agent(), World::default());
        for happening in all {
            play(&mut agent, &mut world, &happening);
        }
        // Whatever came before: a kubelet that stops the pod gets its end, without help of the processes.
        play(&mut agent, &mut world, &Happening::Signalled);
        let mut ticks = 0;
        while let Some(at) = agent.next_deadline() {
            world.now = at;
            let commands = agent.step(Event::Tick, at);
            prop_assert!(commands.contains(&Command::Kill));
            world.obey(&agent, &commands);
            ticks += 1;
            prop_assert!(ticks < 3);
            if let Some(generation) = world.running.take() {
                let commands = agent.step(Event::GroupGone { generation }, world.now);
                world.obey(&agent, &commands);
            }
        }
        prop_assert!(world.ended);
    }

    #[test]
    fn a_checkpoint_is_never_made_up(all in proptest::collection::vec(happening(), 1..40)) {
        let (mut agent, mut world) = (agent(), World::default());
        for happening in all {
            let before = agent.report().checkpoint;
            let asked = world.asked_at.is_some();
            play(&mut agent, &mut world, &happening);
            if agent.report().checkpoint != before {
                let by_exit = asked && world.said_143 && matches!(happening, Happening::Ends { .. });
                prop_assert!(by_exit || matches!(happening, Happening::Checkpoint { .. }), "{happening:?}");
            }
        }
    }
}
