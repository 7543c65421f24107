//! Where news goes: the live view, plain lines, JSON lines, or YAML documents.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eto_engine::time::Time;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use crate::news::{DecisionKey, News, Stamped, plain, rfc3339};
use crate::screen::{Screen, WorkerRow, draw};

/// Which form to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Live,
    Plain,
    /// An object in each line.
    Json,
    /// A document for each object.
    Yaml,
}

/// Shows news on standard output.
#[derive(Debug)]
pub struct Display {
    sink: Sink,
    last_decision: Option<DecisionKey>,
}

#[derive(Debug)]
enum Sink {
    Live(Box<Live>),
    Lines(Form),
}

impl Display {
    /// `quit` is told when the user asks for the end at the keyboard.
    pub fn open(form: Form, quit: mpsc::Sender<()>) -> io::Result<Display> {
        let sink = match form {
            Form::Live => Sink::Live(Box::new(Live::open(quit)?)),
            Form::Plain | Form::Json | Form::Yaml => Sink::Lines(form),
        };
        Ok(Display { sink, last_decision: None })
    }

    /// Shows a piece of news. The plain form passes over decisions that say the same as the one before.
    pub fn tell(&mut self, at: Time, news: &News) {
        let changed = match news {
            News::Decision(decision) => {
                let key = DecisionKey::of(decision);
                let changed = self.last_decision.as_ref() != Some(&key);
                self.last_decision = Some(key);
                changed
            }
            _ => true,
        };
        match &mut self.sink {
            Sink::Live(live) => live.screen.tell(at, news, changed),
            Sink::Lines(Form::Json) => {
                if let Ok(line) = serde_json::to_string(&Stamped { time: rfc3339(at), news }) {
                    write_line(&line);
                }
            }
            Sink::Lines(Form::Yaml) => {
                if let Ok(text) = serde_yaml::to_string(&Stamped { time: rfc3339(at), news }) {
                    write_line(&format!("---\n{}", text.trim_end()));
                }
            }
            Sink::Lines(_) if changed => write_line(&plain(at, news)),
            Sink::Lines(_) => {}
        }
    }

    /// Draws the live view anew; nothing in the other forms.
    pub fn refresh(&mut self, workers: impl FnOnce() -> Vec<WorkerRow>) {
        if let Sink::Live(live) = &mut self.sink {
            live.screen.workers = workers();
            let Live { terminal, screen, .. } = &mut **live;
            if let Err(error) = terminal.draw(|frame| draw(frame, screen)) {
                tracing::debug!(%error, "the terminal can't be drawn on");
            }
        }
    }
}

/// A reader that has gone (`| head`) is no reason to stop the job.
fn write_line(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// The terminal while it is ours. Given back on drop, and by a hook if we panic.
#[derive(Debug)]
struct Live {
    terminal: DefaultTerminal,
    screen: Screen,
    done: Arc<AtomicBool>,
}

impl Live {
    fn open(quit: mpsc::Sender<()>) -> io::Result<Live> {
        let terminal = ratatui::try_init()?;
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || watch_keys(&quit, &seen))?;
        Ok(Live { terminal, screen: Screen::default(), done })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // `restore` would print what went wrong, and panic where that can't be written.
        let _ = ratatui::try_restore();
    }
}

/// Waits for `q` and Ctrl-C (in raw mode it is a key, not a signal) until the view is closed.
fn watch_keys(quit: &mpsc::Sender<()>, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        match event::poll(Duration::from_millis(100)) {
            Ok(true) => match event::read() {
                Ok(event) if asks_to_quit(&event) => {
                    let _ = quit.try_send(());
                }
                Ok(_) => {}
                Err(_) => return,
            },
            Ok(false) => {}
            Err(_) => return,
        }
    }
}

fn asks_to_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release && (control_c || key.code == KeyCode::Char('q'))
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn keys_that_quit() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(asks_to_quit(&key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(asks_to_quit(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!asks_to_quit(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!asks_to_quit(&Event::Resize(1, 1)));
    }
}
