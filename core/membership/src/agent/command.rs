//! What a command is: whether it starts the processes of its member by itself.

use std::io::Read;

/// What a command does about several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// `torchrun`: it starts them, and knows what [`crate::native_env`] asks for.
    Torchrun,
    /// Another launcher of its own: `mpirun`, `accelerate`.
    Launcher,
    /// A Python script or module: it is one process.
    Python,
    /// Nobody can say: a program, a script that can't be read.
    Other,
}

/// Programs that start processes, and Python packages whose modules do.
const LAUNCHERS: [&str; 5] = ["accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec"];
const PACKAGES: [&str; 3] = ["accelerate", "deepspeed", "horovod"];
const TORCHRUN: [&str; 2] = ["torch.distributed.run", "torch.distributed.launch"];
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// Files that are looked at.
const MOST_SCRIPTS: usize = 4;
/// Bytes of a file that are looked at.
const MOST_BYTES: u64 = 64 * 1024;

impl CommandKind {
    /// Of a command with its arguments: also of one inside a shell's command line, or in a shell script that it names.
    ///
    /// `read` gives the text of a file that may be such a script; `None` where there is none, or it can't be read here.
    /// What a script calls in its turn is not looked at.
    pub fn of(command: &[String], read: impl Fn(&str) -> Option<String>) -> CommandKind {
        let mut left = MOST_SCRIPTS;
        of_text(&command.join(" "), &mut |name, in_shell| {
            let text = Some(name).filter(|_| left > 0).and_then(&read).filter(|text| in_shell || is_shell(text))?;
            left -= 1;
            Some(of_text(&text, &mut |_, _| None))
        })
    }

    /// It starts the processes of its member.
    pub fn starts_processes(self) -> bool {
        matches!(self, CommandKind::Torchrun | CommandKind::Launcher)
    }
}

/// The number that a `torchrun` is given on its command line, as it is written there (`2`, `gpu`).
pub fn nproc_per_node(command: &[String]) -> Option<String> {
    let mut words = command.iter().flat_map(|argument| argument.split_whitespace());
    words.by_ref().find(|word| is_torchrun(word))?;
    loop {
        let word = words.next().filter(|word| !has_suffix(word, "py"))?;
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if matches!(name, "--nproc-per-node" | "--nproc_per_node") {
            return value.or_else(|| words.next()).map(str::to_owned);
        }
    }
}

/// The beginning of a file that may be a script.
pub fn beginning(file: impl Read) -> Option<String> {
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The first launcher among the commands of a shell's text, else what the last of them is.
fn of_text(text: &str, script: &mut dyn FnMut(&str, bool) -> Option<CommandKind>) -> CommandKind {
    let mut last = CommandKind::Other;
    for line in text.replace("\\\n", " ").lines() {
        let code = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        let words: Vec<&str> = code.map(|word| word.trim_matches(['"', '\'', '(', ')'])).collect();
        let ends = |word: &&str| matches!(*word, "&&" | "||" | "|" | "&") || word.ends_with(';');
        for one in words.split_inclusive(ends) {
            match of_one(one, script) {
                kind if kind.starts_processes() => return kind,
                kind if one.iter().any(|word| !ends(word)) => last = kind,
                _ => {}
            }
        }
    }
    last
}

fn of_one(words: &[&str], script: &mut dyn FnMut(&str, bool) -> Option<CommandKind>) -> CommandKind {
    if words.first().is_some_and(|word| matches!(*word, "echo" | "printf")) {
        return CommandKind::Other;
    }
    let mut in_shell = false;
    for (at, word) in words.iter().map(|word| word.trim_end_matches(';')).enumerate() {
        let name = base(word);
        if is_torchrun(word) {
            return CommandKind::Torchrun;
        }
        if LAUNCHERS.contains(&name) {
            return CommandKind::Launcher;
        }
        let version = |v: &str| v.chars().all(|c| c.is_ascii_digit() || c == '.');
        if name.strip_prefix("python").is_some_and(version) {
            return of_python(&words[at + 1..]);
        }
        if has_suffix(word, "py") {
            return CommandKind::Python;
        }
        let may_be_script = has_suffix(word, "sh") || word.contains('/') || in_shell;
        if may_be_script && !word.starts_with('-') && !SHELLS.contains(&name) {
            if let Some(kind) = script(word, in_shell).filter(|kind| *kind != CommandKind::Other) {
                return kind;
            }
            in_shell = false;
        }
        in_shell |= SHELLS.contains(&name);
    }
    CommandKind::Other
}

fn of_python(arguments: &[&str]) -> CommandKind {
    let module = match arguments.iter().find(|a| **a == "-m" || !a.starts_with('-')) {
        Some(&"-m") => arguments.iter().skip_while(|a| **a != "-m").nth(1),
        _ => None,
    };
    match module {
        Some(module) if TORCHRUN.contains(module) => CommandKind::Torchrun,
        Some(module) if PACKAGES.contains(&module.split('.').next().unwrap_or(module)) => CommandKind::Launcher,
        _ => CommandKind::Python,
    }
}

/// The program, or the module as which Python runs it.
fn is_torchrun(word: &str) -> bool {
    base(word) == "torchrun" || TORCHRUN.contains(&word)
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn has_suffix(word: &str, suffix: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(_, own)| own == suffix)
}

/// By its first line: `#!/bin/sh`, `#!/usr/bin/env bash`.
fn is_shell(text: &str) -> bool {
    let first = text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default();
    first.split_whitespace().any(|word| SHELLS.contains(&base(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommandKind::{Launcher, Other, Python, Torchrun};

    fn words(line: &[&str]) -> Vec<String> {
        line.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn commands_are_known_by_their_programs() {
        for (line, kind) in [
            (&["torchrun", "train.py"][..], Torchrun),
            (&["/opt/venv/bin/torchrun", "--nproc-per-node=2", "train.py"], Torchrun),
            (&["python3", "-u", "-m", "torch.distributed.run", "train.py"], Torchrun),
            (&["sh", "-c", "cd /w && exec torchrun --nnodes=2 train.py"], Torchrun),
            (&["sh", "-c", "python3 prepare.py && exec torchrun train.py"], Torchrun),
            (&["accelerate", "launch", "train.py"], Launcher),
            (&["python", "-m", "accelerate.commands.launch", "train.py"], Launcher),
            (&["mpirun", "-np", "4", "python", "train.py"], Launcher),
            (&["deepspeed", "train.py"], Launcher),
            (&["python", "train.py", "--launcher", "torchrun"], Python),
            (&["python", "-m", "trainer", "--setup", "mpirun"], Python),
            (&["python", "-c", "import torch.distributed.run"], Python),
            (&["/usr/bin/env", "A=b", "python3.12", "-u", "train.py"], Python),
            (&["./train.py"], Python),
            (&["sh", "-c", "pip install x; python train.py"], Python),
            (&["sh", "-c", "python prepare.py; ./train"], Other),
            (&["./train"], Other),
            (&[], Other),
        ] {
            assert_eq!(CommandKind::of(&words(line), |_| None), kind, "{line:?}");
        }
    }

    #[test]
    fn shell_scripts_that_a_command_names_are_read() {
        let of = |line: &str, text: &str| {
            let read = |path: &str| path.ends_with("run.sh").then(|| text.to_owned());
            CommandKind::of(&words(&line.split(' ').collect::<Vec<_>>()), read)
        };
        let script = "#!/bin/bash\nset -e\n  exec torchrun --nnodes=2 train.py \"$@\"\n";
        for line in ["/opt/run.sh --epochs 3", "bash -e run.sh", "/bin/sh -c /opt/run.sh", "tini -- ./run.sh"] {
            assert_eq!(of(line, script), Torchrun, "{line}");
        }
        for (text, kind) in [
            ("#!/usr/bin/env sh\npython3 -m torch.distributed.run train.py\n", Torchrun),
            ("#!/bin/sh\n[ $# -eq 9 ] || exec torchrun train.py\n", Torchrun),
            ("#!/bin/sh\npython3 \\\n  -m torch.distributed.run train.py\n", Torchrun),
            ("#!/bin/sh\n# torchrun is not needed\nexec python train.py # no torchrun\n", Python),
            ("#!/bin/sh\nexec \"$@\"\n", Other),
            ("#!/bin/sh\n\"/opt/torchrun\" train.py\n", Torchrun),
            ("#!/bin/sh\nexec $(which torchrun) train.py\n", Torchrun),
            ("#!/bin/sh\necho we use no torchrun here\npython prepare.py\npython train.py\n", Python),
            ("#!/usr/bin/env python3\nimport torchrun\n torchrun\n", Other),
            ("\u{7f}ELF torchrun", Other),
        ] {
            assert_eq!(of("/opt/run.sh", text), kind, "{text}");
        }
        assert_eq!(of("bash run.sh", "exec torchrun train.py\n"), Torchrun, "a shell needs no first line");
        assert_eq!(of("/opt/run.sh torchrun train.py", "#!/bin/sh\nexec \"$@\"\n"), Torchrun, "what it is given");
        assert_eq!(of("python train.py --setup /opt/run.sh", script), Python, "an argument of the script");
        assert_eq!(of("/opt/other.sh", script), Other, "can't be read");
        let many = "bash -c cd /a && A=/b && B=/c && C=/d && D=/e && ./run.sh";
        assert_eq!(of(many, script), Torchrun, "what is no script is not counted");
    }

    #[test]
    fn torchrun_may_be_given_a_number() {
        let of = |line: &str| nproc_per_node(&words(&line.split(' ').collect::<Vec<_>>()));
        assert_eq!(of("torchrun --nproc-per-node=2 train.py").as_deref(), Some("2"));
        assert_eq!(of("python -m torch.distributed.run --nproc_per_node gpu train.py").as_deref(), Some("gpu"));
        assert_eq!(of("torchrun train.py --nproc-per-node=2"), None);
        assert_eq!(of("python train.py --nproc-per-node=2"), None);
    }
}
