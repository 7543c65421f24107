//! A job of the examples, changed as little as this machine needs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use serde_yaml::Value;
use tempfile::TempDir;

use crate::curve::Curve;

/// Which example, and how it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framework {
    /// `python train.py`.
    Torch,
    /// `torchrun train.py`.
    Torchrun { processes: u32 },
    /// `python train.py`.
    Jax,
    /// `python train.py`.
    TensorFlow,
    /// `python parameter_server.py`.
    ParameterServer,
}

impl Framework {
    fn example(self) -> &'static str {
        match self {
            Framework::Torch | Framework::Torchrun { .. } => "pytorch",
            Framework::Jax => "jax",
            Framework::TensorFlow | Framework::ParameterServer => "tensorflow",
        }
    }

    /// The names of its job's file and of its script.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Framework::ParameterServer => ("parameter_server.yaml", "parameter_server.py"),
            _ => ("job.yaml", "train.py"),
        }
    }

    pub(crate) fn python(self) -> PathBuf {
        let venv = match self {
            Framework::Torch | Framework::Torchrun { .. } => "torch",
            Framework::Jax => "jax",
            Framework::TensorFlow | Framework::ParameterServer => "tensorflow",
        };
        let all = std::env::var("ETO_TRAINING").expect("ETO_TRAINING: run tests/frameworks.sh");
        Path::new(&all).join(venv).join("bin/python")
    }

    fn command(self) -> Vec<String> {
        let mut command = vec![self.python().display().to_string()];
        if let Framework::Torchrun { .. } = self {
            command.extend(["-m".to_owned(), "torch.distributed.run".to_owned()]);
        }
        command.push(root().join("examples").join(self.example()).join(self.files().1).display().to_string());
        command
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// An example's job in a folder of its own.
pub(crate) struct Job {
    pub(crate) folder: TempDir,
    /// Samples of the data set.
    pub(crate) samples: u64,
    framework: Framework,
    epochs: u32,
    yaml: Value,
}

impl Job {
    pub(crate) fn new(framework: Framework, epochs: u32) -> Job {
        let folder = TempDir::new().unwrap();
        let file = root().join("examples").join(framework.example()).join(framework.files().0);
        let text = std::fs::read_to_string(file).unwrap();
        let mut yaml: Value = serde_yaml::from_str(&text).unwrap();
        let job = Job { samples: 4000, framework, epochs, yaml: Value::Null, folder };
        let spec = &mut yaml["spec"];
        let strings = |all: Vec<String>| Value::Sequence(all.into_iter().map(Value::String).collect());
        // A pause, so that there is time for changes before the data is through.
        let arguments = [job.arguments("work"), vec!["--pause".to_owned(), "0.05".to_owned()]].concat();
        let mut adapt = |template: &mut Value| {
            let container = &mut template["spec"]["containers"][0];
            container["command"] = strings(framework.command());
            container["args"] = strings(arguments.clone());
        };
        adapt(&mut spec["template"]);
        for replica_type in spec["replicaTypes"].as_sequence_mut().into_iter().flatten() {
            replica_type.get_mut("template").into_iter().for_each(&mut adapt);
        }
        spec["env"] =
            serde_yaml::from_str("[{name: OMP_NUM_THREADS, value: '1'}, {name: JAX_PLATFORMS, value: cpu}]").unwrap();
        if let Framework::Torchrun { processes } = framework {
            spec["nprocPerNode"] = processes.into();
            spec["elasticity"]["maxMicroBatchSize"] = 16.into();
        }
        Job { yaml, ..job }
    }

    fn arguments(&self, run: &str) -> Vec<String> {
        let folder = |name: &str| self.folder.path().join(run).join(name).display().to_string();
        let (samples, epochs) = (self.samples.to_string(), self.epochs.to_string());
        let mut pairs = vec![
            ("--checkpoints", folder("checkpoints")),
            ("--samples", samples),
            ("--epochs", epochs),
            ("--every", crate::EVERY.to_string()),
        ];
        if !matches!(self.framework, Framework::ParameterServer) {
            pairs.push(("--audit", folder("audit")));
        }
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// The same training by one process from beginning to end, with nothing of ours around it.
    pub(crate) fn undisturbed(&self) -> Curve {
        let alone = if let Framework::Torchrun { .. } = self.framework { Framework::Torch } else { self.framework };
        let [python, script] = alone.command().try_into().unwrap();
        let env = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")];
        let out = Command::new(python)
            .arg(script)
            .args(self.arguments("undisturbed"))
            .envs(env)
            .envs([("OMP_NUM_THREADS", "1"), ("JAX_PLATFORMS", "cpu")])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let mut curve = Curve::default();
        String::from_utf8(out.stdout).unwrap().lines().for_each(|line| curve.read(line));
        curve
    }

    /// The script by itself, which says that it loads its checkpoint (by the file `loads`) and is never done with it.
    pub(crate) fn that_never_loads(&self) -> Child {
        const PATCHED: &str = "import os, sys, time; sys.path.insert(0, os.environ['EXAMPLE']); import train\n\
             def load(self):\n    open(os.environ['LOADS'], 'w').close()\n    time.sleep(100000)\n\
             train.Checkpoints.load = load\nsys.exit(train.main())";
        let env = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")];
        Command::new(self.framework.python())
            .args(["-B", "-c", PATCHED])
            .args(self.arguments("never"))
            .envs(env)
            .env("EXAMPLE", root().join("examples").join(self.framework.example()))
            .env("LOADS", self.folder.path().join("loads"))
            .envs([("OMP_NUM_THREADS", "1"), ("JAX_PLATFORMS", "cpu")])
            .spawn()
            .unwrap()
    }

    /// Writes the job's file with so many replicas, whole or not at all.
    pub(crate) fn write(&mut self, replicas: u32) -> PathBuf {
        self.yaml["spec"]["replicas"] = replicas.into();
        let (path, aside) = (self.folder.path().join("job.yaml"), self.folder.path().join(".job.yaml"));
        std::fs::write(&aside, serde_yaml::to_string(&self.yaml).unwrap()).unwrap();
        std::fs::rename(&aside, &path).unwrap();
        path
    }

    /// Where the scripts noted which samples they took.
    pub(crate) fn audit(&self) -> PathBuf {
        self.folder.path().join("work/audit")
    }
}
