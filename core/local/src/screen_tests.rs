#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_engine::contract::{Quality, Reason};
use eto_engine::decision::{Limit, Limiter, SignalSeen};
use eto_engine::policy::PolicyId;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

fn decision() -> Decision {
    Decision {
        at: Time(0),
        uid: "u".to_owned(),
        answered: true,
        apply: true,
        mend: None,
        placement: None,
        sequence: 4,
        generation: 1,
        policy: Some(PolicyId { name: "p".to_owned(), version: "1.0.0".to_owned(), digest: "sha256:0".to_owned() }),
        from: 1,
        proposed: Some(4),
        target: 3,
        limits: vec![Limit {
            by: Limiter::TooManyReplicas,
            from: 4,
            to: 3,
            until: None,
            message: "the maximum is 3".to_owned(),
        }],
        reasons: vec![Reason {
            code: "AboveTarget".to_owned(),
            message: "workers are busy".to_owned(),
            signal: None,
            value: None,
            target: None,
        }],
        signals: vec![SignalSeen {
            name: "cpu-utilisation".to_owned(),
            metric: None,
            quality: Quality::Ok,
            coverage: 1.0,
            age_ms: 0,
            mean: Some(1.9),
            note: None,
        }],
        fuel: 1,
        failure: None,
        next_look: None,
    }
}

fn rendered(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    buffer.content.chunks(usize::from(width)).fold(String::new(), |mut text, row| {
        text.extend(row.iter().map(ratatui::buffer::Cell::symbol));
        text.push('\n');
        text
    })
}

fn full() -> Screen {
    let mut screen = Screen::default();
    let at = Time(3_723_000);
    screen.tell(
        at,
        &News::Job(JobNews {
            job: "default/demo".to_owned(),
            phase: "Running".to_owned(),
            target: 3,
            min: 1,
            max: 3,
            ready: 2,
            round: 2,
            failures: 0,
            message: None,
        }),
        true,
    );
    screen.tell(
        at,
        &News::Policy(PolicyNews {
            name: "p".to_owned(),
            version: "1.0.0".to_owned(),
            digest: format!("sha256:{}", "ab".repeat(32)),
            problem: None,
        }),
        true,
    );
    screen.tell(at, &News::Decision(Box::new(decision())), true);
    screen.tell(at, &News::Output { worker: 0, line: "step=7 loss=0.5".to_owned() }, true);
    screen.workers = vec![
        WorkerRow {
            index: 0,
            pid: Some(4242),
            state: "running".to_owned(),
            cpu: Some(0.5),
            memory: Some(64.0 * 1_048_576.0),
            cpu_request: 1.0,
            ..WorkerRow::default()
        },
        WorkerRow { index: 1, state: "waiting".to_owned(), ..WorkerRow::default() },
    ];
    screen
}

#[test]
fn everything_is_shown() {
    insta::assert_snapshot!(rendered(&full(), 110, 24));
}

#[test]
fn absent_is_a_dash_and_not_zero() {
    assert_eq!(usage(None, 1.0), "-");
    assert_eq!(usage(Some(f64::NAN), 1.0), "-");
    assert_eq!(usage(Some(0.0), 1.0), "·········· 0%");
    assert_eq!(usage(Some(1.7), 1.0), "██████████ 170%");
    assert_eq!(usage(Some(0.25), 0.0), "███······· 0.25");
}

#[test]
fn the_end_of_a_long_decision_can_be_read() {
    let text = rendered(&full(), 50, 30);
    assert!(text.contains("[TooManyReplicas:"), "{text}");
    assert!(text.contains("the maximum is 3]"), "{text}");
    assert_eq!(fold("00:00:00 aaaa bbbb", 15), ["00:00:00 aaaa", "         bbbb"]);
    assert_eq!(fold("", 15), [""]);
}

#[test]
fn any_size_of_terminal_is_drawn() {
    for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
        let _ = rendered(&full(), width, height);
        let _ = rendered(&Screen::default(), width, height);
    }
}

#[test]
fn the_newest_lines_are_kept() {
    let mut screen = Screen::default();
    for i in 0..1000 {
        screen.tell(Time(0), &News::Output { worker: 0, line: format!("line {i}") }, true);
    }
    assert_eq!(screen.output.len(), KEEP);
    let text = rendered(&screen, 60, 40);
    assert!(text.contains("line 999") && !text.contains("line 700"), "{text}");
}
