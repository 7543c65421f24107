//! Guests for tests, written in the text format by hand: what a toolchain would never make can be made here.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

use std::fmt::Write as _;
use std::sync::Arc;

use eto_engine::contract::{
    Bounds, Capacity, Framework, JobFacts, Metric, MetricKind, MetricTarget, NodeColumns, PlacementInput, Quality,
    Readiness, ResizeFacts, ScalingInput, Signal, SignalShape, Sizes, WorkerColumns, WorkerPhase, WorkerRequest,
};
use eto_policy_host::{HostSettings, PolicyHost};
use wit_component::StringEncoding;
use wit_parser::Resolve;

/// Where the image of constant data begins, and where the guest's allocator begins.
const IMAGE: u32 = 1024;
const HEAP: u32 = 0x2_0000;

/// Constant data of a guest, at fixed addresses.
#[derive(Clone, Default)]
pub struct Image(Vec<u8>);

impl Image {
    /// Puts bytes at the next multiple of 8 and says where.
    pub fn put(&mut self, bytes: &[u8]) -> u32 {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        let at = IMAGE + u32::try_from(self.0.len()).unwrap();
        self.0.extend_from_slice(bytes);
        assert!(IMAGE as usize + self.0.len() < HEAP as usize, "the image is full");
        at
    }

    /// Puts a text and gives pointer and length.
    pub fn text(&mut self, text: &[u8]) -> [u32; 2] {
        [self.put(text), u32::try_from(text.len()).unwrap()]
    }

    /// Puts 32-bit words.
    pub fn words(&mut self, words: &[u32]) -> u32 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes)
    }
}

/// A reason as the guest gives it.
#[derive(Clone)]
pub struct Said {
    pub code: Vec<u8>,
    pub message: Vec<u8>,
    pub value: Option<f64>,
}

impl Default for Said {
    fn default() -> Self {
        Self { code: b"Because".to_vec(), message: b"it is a test".to_vec(), value: Some(0.5) }
    }
}

/// A guest under construction. `Default` is a good scaling policy that answers 3.
#[derive(Clone)]
pub struct Guest {
    pub world: &'static str,
    pub image: Image,
    pub name: &'static str,
    pub version: String,
    pub schema: String,
    pub state_version: u32,
    /// Low and high of the one signal wanted; `None`: none is wanted.
    pub range: Option<(f64, f64)>,
    /// Words of the answer: what `evaluate` returns a pointer to. Made from these fields unless `evaluate` is set.
    pub target: Option<u32>,
    pub reasons: Vec<Said>,
    pub state: Option<u32>,
    pub next_look: Option<u32>,
    /// Bodies of the functions, where they differ from the good ones.
    pub describe: Option<String>,
    /// What `evaluate` does before it answers.
    pub before: String,
    pub validate: Option<String>,
    pub evaluate: Option<String>,
    pub migrate: Option<String>,
    pub realloc: Option<String>,
    /// More items of the module: functions, globals, a start function.
    pub items: String,
    /// Imports beside the log.
    pub imports: String,
    pub pages: u32,
    pub table: u32,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            world: "scaling-policy",
            image: Image::default(),
            name: "test-guest",
            version: "1.0.0".to_owned(),
            schema: r#"{"type":"object"}"#.to_owned(),
            state_version: 1,
            range: Some((0.0, 1.0)),
            target: Some(3),
            reasons: vec![Said::default()],
            state: None,
            next_look: None,
            describe: None,
            before: String::new(),
            validate: None,
            evaluate: None,
            migrate: None,
            realloc: None,
            items: String::new(),
            imports: String::new(),
            pages: 4,
            table: 1,
        }
    }
}

impl Guest {
    pub fn good() -> Self {
        Self::default()
    }

    /// A good placement policy: no places, no victims.
    pub fn placement() -> Self {
        Self { world: "placement-policy", ..Self::default() }
    }

    pub fn answering(target: u32) -> Self {
        Self { target: Some(target), version: format!("{target}.0.0"), ..Self::default() }
    }

    pub fn evaluate(body: &str) -> Self {
        Self { evaluate: Some(body.to_owned()), ..Self::default() }
    }

    fn reasons(&self, image: &mut Image) -> [u32; 2] {
        let mut bytes = Vec::new();
        for reason in &self.reasons {
            let code = image.text(&reason.code);
            let message = image.text(&reason.message);
            for word in [code[0], code[1], message[0], message[1], 0, 0, 0, 0] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&u64::from(reason.value.is_some()).to_le_bytes());
            bytes.extend_from_slice(&reason.value.unwrap_or(0.0).to_le_bytes());
            bytes.extend_from_slice(&[0; 16]);
        }
        [image.put(&bytes), u32::try_from(self.reasons.len()).unwrap()]
    }

    fn wants(&self, image: &mut Image) -> [u32; 2] {
        let Some((low, high)) = self.range else { return [IMAGE, 0] };
        let name = image.text(b"cpu-utilisation");
        let mut bytes = Vec::new();
        for word in [name[0], name[1], 0, 0, 0, 60, 0, 1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&low.to_le_bytes());
        bytes.extend_from_slice(&high.to_le_bytes());
        [image.put(&bytes), 1]
    }

    /// The module's text.
    pub fn wat(&self) -> String {
        let mut image = self.image.clone();
        let (name, version) = (image.text(self.name.as_bytes()), image.text(self.version.as_bytes()));
        let (summary, schema) = (image.text(b"A guest of the tests"), image.text(self.schema.as_bytes()));
        let wants = self.wants(&mut image);
        let description = [name, version, summary, wants, schema].concat();
        let description = image.words(&[&description[..], &[self.state_version]].concat());
        let reasons = self.reasons(&mut image);
        let some = |value: Option<u32>| [u32::from(value.is_some()), value.unwrap_or(0)];
        let decision = if self.world == "scaling-policy" {
            let (target, next) = (some(self.target), some(self.next_look));
            let state = some(self.state.map(|_| IMAGE));
            image.words(&[&[0][..], &target, &reasons, &next, &state, &[self.state.unwrap_or(0)]].concat())
        } else {
            image.words(&[&[0, IMAGE, 0, IMAGE, 0][..], &reasons, &[0, 0, 0]].concat())
        };
        let valid = image.words(&[&[0][..], &wants].concat());
        let migrated = image.words(&[0, IMAGE, 4]);
        let body = |given: &Option<String>, at: u32| given.clone().unwrap_or_else(|| format!("(i32.const {at})"));
        let interface = self.world.trim_end_matches("-policy");
        let data = image.0.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:02x}").unwrap();
            text
        });
        let realloc = self.realloc.clone().unwrap_or_else(|| REALLOC.to_owned());
        format!(
            r#"(module
              (import "elastic:policy/log@0.1.0" "write" (func $log (param i32 i32 i32)))
              {imports}
              (memory (export "memory") {pages})
              (table $table {table} funcref)
              (global $heap (mut i32) (i32.const {HEAP}))
              (func (export "elastic:policy/{interface}@0.1.0#describe") (result i32) {describe})
              (func (export "elastic:policy/{interface}@0.1.0#validate-config") (param i32 i32) (result i32) {validate})
              (func (export "elastic:policy/{interface}@0.1.0#evaluate") (param $in i32) (result i32) {evaluate})
              (func (export "elastic:policy/{interface}@0.1.0#migrate") (param i32 i32 i32) (result i32) {migrate})
              (func (export "cabi_realloc") (param $old i32) (param $had i32) (param $align i32) (param $size i32)
                (result i32) {realloc})
              {items}
              (data (i32.const {IMAGE}) "{data}"))"#,
            imports = self.imports,
            pages = self.pages,
            table = self.table,
            describe = body(&self.describe, description),
            validate = body(&self.validate, valid),
            evaluate = [self.before.as_str(), body(&self.evaluate, decision).as_str()].concat(),
            migrate = body(&self.migrate, migrated),
            items = self.items,
        )
    }

    /// A core module with a `component-type` section, as `cargo build` with the SDK makes it.
    pub fn core(&self) -> Vec<u8> {
        let mut bytes = wat::parse_str(self.wat()).expect("the text is a module");
        embed(&mut bytes, self.world, include_str!("../../../../wit/v0.1/policy.wit"));
        bytes
    }

    /// The same as a component.
    pub fn component(&self) -> Vec<u8> {
        encode(&self.core())
    }
}

/// A bump allocator.
const REALLOC: &str = "(local $at i32)
    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.set $heap (i32.add (local.get $at) (local.get $size)))
    (local.get $at)";

/// Adds the `component-type` section of a world.
pub fn embed(module: &mut Vec<u8>, world: &str, wit: &str) {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", wit).expect("the contract parses");
    let world = resolve.select_world(&[package], Some(world)).expect("the world is there");
    wit_component::embed_component_metadata(module, &resolve, world, StringEncoding::UTF8).expect("it can be embedded");
}

pub fn encode(module: &[u8]) -> Vec<u8> {
    wit_component::ComponentEncoder::default().module(module).unwrap().validate(true).encode().unwrap()
}

/// A host with a small pool and no cache.
pub fn host() -> Arc<PolicyHost> {
    PolicyHost::new(HostSettings { pool_slots: 4, ..HostSettings::default() }).expect("the engine starts")
}

fn job() -> JobFacts {
    JobFacts {
        namespace: "team-a".to_owned(),
        name: "resnet".to_owned(),
        uid: "4a9c1d0e".to_owned(),
        framework: Framework::PyTorch,
        generation: 2,
        round: 1,
        created_ms: 1_700_000_000_000,
        running_since_ms: 1_700_000_060_000,
        failures: 0,
    }
}

/// An input with `workers` running workers, one signal and one metric.
pub fn input(workers: usize) -> ScalingInput {
    let count = u32::try_from(workers).unwrap();
    ScalingInput {
        now_ms: 1_700_000_600_000,
        seed: 7,
        job: job(),
        bounds: Bounds { min: 1, max: 100, legal: vec![], tolerance_up: 0.1, tolerance_down: 0.1 },
        sizes: Sizes { replicas: count, target: count, current: count, ready: count },
        workers: WorkerColumns {
            index: (0..count).collect(),
            phase: vec![WorkerPhase::Running; workers],
            ready: vec![Readiness::Ready; workers],
            started_ms: vec![1_700_000_050_000; workers],
            ready_changed_ms: vec![1_700_000_060_000; workers],
            deleting: vec![false; workers],
            node: (0..count).collect(),
        },
        signals: vec![Signal {
            name: "cpu-utilisation".to_owned(),
            shape: SignalShape::PerWorker,
            quality: Quality::Ok,
            coverage: 1.0,
            age_ms: 10_000,
            window_ms: 60_000,
            values: vec![0.8; workers],
            requests: vec![1.0; workers],
            sampled_ms: vec![1_700_000_590_000; workers],
            history_ms: vec![],
            history: vec![],
        }],
        metrics: vec![Metric {
            kind: MetricKind::Resource,
            name: "cpu".to_owned(),
            signal: 0,
            target: MetricTarget::Utilization(50),
        }],
        capacity: Capacity { fits: 10, pending: 0 },
        resize: ResizeFacts { last_ms: 0, last_cost_ms: 0, last_steps_lost: None, last_from: 0, last_refused: false },
        config: "{}".to_owned(),
        state: None,
    }
}

/// A question to a placement policy: two workers to place on three nodes.
pub fn placement_input() -> PlacementInput {
    PlacementInput {
        now_ms: 1_700_000_600_000,
        seed: 7,
        job: job(),
        nodes: NodeColumns {
            free_cpu: vec![8.0; 3],
            free_memory: vec![1e9; 3],
            free_gpus: vec![0.0; 3],
            total_cpu: vec![16.0; 3],
            total_memory: vec![2e9; 3],
            total_gpus: vec![0.0; 3],
            zone: vec![0, 0, 1],
            rack: vec![0, 1, 2],
            members: vec![1, 0, 0],
            faults: vec![0; 3],
        },
        members: eto_engine::contract::MemberColumns {
            index: vec![0],
            node: vec![0],
            ready: vec![true],
            started_ms: vec![1],
            protected: vec![true],
        },
        request: WorkerRequest { cpu: 1.0, memory: 1e8, gpus: 0.0 },
        add: vec![1, 2],
        drop: 0,
        config: "{}".to_owned(),
        state: None,
    }
}
