//! The live view: its model, and how it is drawn. Drawing is a pure function of the model and the area.

use std::collections::VecDeque;
use std::fmt::Write as _;

use eto_engine::decision::Decision;
use eto_engine::time::Time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

use crate::news::{JobNews, News, PolicyNews, rfc3339, short_digest};

/// Lines kept of each kind.
const KEEP: usize = 200;
/// Width of a utilisation bar.
const BAR: usize = 10;
/// Width of the time before a line, where the rest of a long one goes on.
const INDENT: usize = 9;

/// A worker as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerRow {
    pub index: u32,
    pub pid: Option<i32>,
    pub state: String,
    /// Cores, bytes and GPUs used; `None` = not known.
    pub cpu: Option<f64>,
    pub memory: Option<f64>,
    pub gpu: Option<f64>,
    /// What was asked for, in the same units; 0 = nothing.
    pub cpu_request: f64,
    pub gpu_request: f64,
    pub restarts: u32,
}

/// All that is shown.
#[derive(Debug, Default)]
pub struct Screen {
    pub job: Option<JobNews>,
    pub policy: Option<PolicyNews>,
    pub workers: Vec<WorkerRow>,
    last: Option<Decision>,
    decisions: VecDeque<(Time, String)>,
    events: VecDeque<(Time, String)>,
    output: VecDeque<String>,
}

fn keep<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == KEEP {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl Screen {
    /// Takes in a piece of news. `changed`: whether a decision differs from the one before in more than its numbers.
    pub fn tell(&mut self, at: Time, news: &News, changed: bool) {
        match news {
            News::Job(job) => self.job = Some(job.clone()),
            News::Policy(policy) => {
                let text = match &policy.problem {
                    None => format!("policy {} {} is served", policy.name, short_digest(&policy.digest)),
                    Some(problem) if policy.digest.is_empty() => format!("policy {}: {problem}", policy.name),
                    Some(problem) => {
                        let serving = short_digest(&policy.digest);
                        format!("policy {}: the newest file is refused, {serving} decides on: {problem}", policy.name)
                    }
                };
                keep(&mut self.events, (at, text));
                self.policy = Some(policy.clone());
            }
            News::Decision(decision) => {
                if changed {
                    keep(&mut self.decisions, (at, decision_text(decision)));
                }
                self.last = Some((**decision).clone());
            }
            News::Event { reason, message, .. } => keep(&mut self.events, (at, format!("{reason}: {message}"))),
            News::Worker(worker) => {
                if let Some(note) = &worker.note {
                    keep(&mut self.events, (at, format!("worker {} {}: {note}", worker.index, worker.state)));
                }
            }
            News::Output { worker, line } => keep(&mut self.output, format!("[worker-{worker}] {line}")),
        }
    }
}

/// A decision for people: the sizes, the reason, what limited it.
fn decision_text(decision: &Decision) -> String {
    let mut text = if decision.from == decision.target {
        format!("hold {}", decision.target)
    } else {
        format!("{} -> {}", decision.from, decision.target)
    };
    if let Some(proposed) = decision.proposed.filter(|proposed| *proposed != decision.target) {
        let _ = write!(text, " (asked for {proposed})");
    }
    if let Some(reason) = decision.reasons.first() {
        let _ = write!(text, ": {}", reason.message);
    }
    for limit in &decision.limits {
        let _ = write!(text, " [{:?}: {}]", limit.by, limit.message);
    }
    if let Some(failure) = &decision.failure {
        let _ = write!(text, " [{:?}: {}]", failure.kind, failure.message);
    }
    text
}

/// Draws everything.
pub fn draw(frame: &mut Frame, screen: &Screen) {
    let workers = u16::try_from(screen.workers.len()).unwrap_or(u16::MAX).clamp(1, 16) + 3;
    let [head, table, decisions, events, output, foot] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(workers),
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, screen);
    draw_workers(frame, table, screen);
    draw_lines(frame, decisions, "Decisions", &folded(&stamped(&screen.decisions), decisions));
    draw_lines(frame, events, "Events", &folded(&stamped(&screen.events), events));
    draw_lines(frame, output, "Output", &screen.output.iter().cloned().collect::<Vec<_>>());
    frame.render_widget(Paragraph::new("q or Ctrl-C: stop the job and leave").style(dim()), foot);
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn draw_head(frame: &mut Frame, area: Rect, screen: &Screen) {
    let Some(job) = &screen.job else {
        frame.render_widget(Block::new().borders(Borders::ALL).title(" eto run "), area);
        return;
    };
    let policy = screen.policy.as_ref().map_or_else(
        || "none: the size is set by hand".to_owned(),
        |policy| format!("{} {} {}", policy.name, policy.version, short_digest(&policy.digest)),
    );
    let signals = screen.last.iter().flat_map(|decision| &decision.signals).map(|signal| {
        let mean = signal.mean.map_or_else(|| "absent".to_owned(), |mean| format!("{mean:.2}"));
        format!("   {} {mean} ({:?})", signal.name, signal.quality)
    });
    let first = Line::from(vec![
        Span::styled(job.phase.clone(), Style::new().fg(phase_colour(&job.phase)).add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            "   target {} of {}..{}   ready {}   round {}   failures {}",
            job.target, job.min, job.max, job.ready, job.round, job.failures
        )),
    ]);
    let second = Line::from(format!("policy {policy}{}", signals.collect::<String>()));
    let block = Block::new().borders(Borders::ALL).title(format!(" {} ", job.job));
    frame.render_widget(Paragraph::new(vec![first, second]).block(block), area);
}

fn phase_colour(phase: &str) -> Color {
    match phase {
        "Running" | "Succeeded" => Color::Green,
        "Failed" => Color::Red,
        _ => Color::Yellow,
    }
}

fn draw_workers(frame: &mut Frame, area: Rect, screen: &Screen) {
    let rows = screen.workers.iter().map(|worker| {
        Row::new(vec![
            Cell::from(worker.index.to_string()),
            Cell::from(worker.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
            Cell::from(worker.state.clone()),
            Cell::from(usage(worker.cpu, worker.cpu_request)),
            Cell::from(worker.memory.map_or_else(|| "-".to_owned(), |bytes| format!("{:.0} MiB", bytes / 1_048_576.0))),
            Cell::from(usage(worker.gpu, worker.gpu_request)),
            Cell::from(worker.restarts.to_string()),
        ])
    });
    let widths = [
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(17),
        Constraint::Length(10),
        Constraint::Length(17),
        Constraint::Length(8),
    ];
    let header = Row::new(["worker", "pid", "state", "cpu", "memory", "gpu", "restarts"]).style(dim());
    let block = Block::new().borders(Borders::ALL).title(" Workers ");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

/// A bar and a number: per cent of the request where there is one, else the amount itself.
fn usage(used: Option<f64>, request: f64) -> String {
    let Some(used) = used.filter(|used| used.is_finite()) else { return "-".to_owned() };
    let share = if request > 0.0 { used / request } else { used };
    let filled = filled_cells(share);
    let bar: String = (0..BAR).map(|cell| if cell < filled { '█' } else { '·' }).collect();
    if request > 0.0 { format!("{bar} {:.0}%", share * 100.0) } else { format!("{bar} {used:.2}") }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "between 0 and the width of a bar"
)]
fn filled_cells(share: f64) -> usize {
    (share.clamp(0.0, 1.0) * BAR as f64).round() as usize
}

fn stamped(lines: &VecDeque<(Time, String)>) -> Vec<String> {
    // Hours to seconds are enough to follow along.
    lines.iter().map(|(at, text)| format!("{} {text}", rfc3339(*at).get(11..19).unwrap_or_default())).collect()
}

/// The newest lines that fit, the newest last.
fn draw_lines(frame: &mut Frame, area: Rect, title: &str, lines: &[String]) {
    let room = usize::from(area.height.saturating_sub(2));
    let shown: Vec<Line> =
        lines.iter().skip(lines.len().saturating_sub(room)).map(|l| Line::from(l.as_str())).collect();
    let block = Block::new().borders(Borders::ALL).title(format!(" {title} "));
    frame.render_widget(Paragraph::new(shown).block(block), area);
}

/// Long lines go on in the next row, below their text: what limited a decision stands at the end of it.
fn folded(lines: &[String], area: Rect) -> Vec<String> {
    let width = usize::from(area.width.saturating_sub(2)).max(INDENT + 10);
    lines.iter().flat_map(|line| fold(line, width)).collect()
}

fn fold(line: &str, width: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut row = String::new();
    let mut length = 0;
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let more = word.chars().count();
        if length > 0 && length + 1 + more > width {
            rows.push(std::mem::replace(&mut row, " ".repeat(INDENT)));
            length = INDENT;
        } else if length > 0 {
            row.push(' ');
            length += 1;
        }
        row.push_str(word);
        length += more;
    }
    rows.push(row);
    rows
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
