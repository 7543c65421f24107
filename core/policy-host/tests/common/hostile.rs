//! Guests that mean harm, or are broken in a way a good toolchain never makes.
// Long because it is a catalogue: one entry for each kind of harm.
#![allow(unreachable_pub, dead_code, clippy::unwrap_used, clippy::assigning_clones)]

use eto_policy_host::Limits;

use crate::common::{Guest, Said, embed, encode};

/// An endless loop, as the body of a function that returns an address.
pub const LOOP: &str = "(loop $l (br $l)) (unreachable)";

/// Limits under which fuel runs out first, however busy the machine is.
pub const FUEL_FIRST: Limits = Limits {
    fuel: 5_000_000,
    deadline_ms: 10_000,
    memory_bytes: 16 * 1024 * 1024,
    table_elements: 10_000,
    output_bytes: 1024 * 1024,
};

/// Limits under which the deadline comes first.
const DEADLINE_FIRST: Limits = Limits { fuel: 20_000_000_000, deadline_ms: 50, ..FUEL_FIRST };

/// A module that must not be served, with the reason that the host must give.
pub struct Refused {
    pub what: &'static str,
    pub bytes: Vec<u8>,
    pub reason: &'static str,
    /// What the message must say.
    pub says: &'static str,
}

fn refused(what: &'static str, bytes: Vec<u8>, reason: &'static str, says: &'static str) -> Refused {
    Refused { what, bytes, reason, says }
}

fn with(change: impl FnOnce(&mut Guest)) -> Vec<u8> {
    let mut guest = Guest::good();
    change(&mut guest);
    guest.component()
}

/// The contract with some of its text replaced, for guests of another version or shape.
fn other_contract(from: &str, to: &str) -> Vec<u8> {
    let wit = include_str!("../../../../wit/v0.1/policy.wit").replace(from, to);
    let text = Guest::good().wat();
    let text = if from.contains("@0.1.0") { text.replace("@0.1.0", "@0.2.0") } else { text };
    let mut module = wat::parse_str(text).unwrap();
    embed(&mut module, "scaling-policy", &wit);
    encode(&module)
}

/// A section with a component in it that has a component in it, and so on, `depth` deep.
pub fn nested(depth: usize) -> Vec<u8> {
    const HEADER: &[u8] = b"\0asm\x0d\0\x01\0";
    let mut sizes = vec![HEADER.len()];
    for level in 1..depth {
        let inside = sizes[level - 1];
        sizes.push(HEADER.len() + 1 + leb(inside).len() + inside);
    }
    sizes.iter().rev().flat_map(|size| [&[4], &leb(*size)[..], HEADER].concat()).collect()
}

fn leb(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        bytes.push(if value == 0 { byte } else { byte | 0x80 });
        if value == 0 {
            return bytes;
        }
    }
}

/// A component with a type that has a type in it that has a type in it, and so on, `depth` deep.
pub fn nested_types(depth: usize) -> Vec<u8> {
    // One component type with one declaration, a type: and again.
    let mut types = [0x41, 1, 1].repeat(depth);
    types.extend([0x41, 0]);
    let section = [&[1_u8][..], &types].concat();
    [b"\0asm\x0d\0\x01\0", &[7][..], &leb(section.len()), &section].concat()
}

/// Metadata in which one interface of the contract got another package's name: the two packages then need each other.
fn cyclic() -> Vec<u8> {
    let mut module = Guest::good().core();
    let (from, to) = (b"elastic:policy/types@0.1.0", b"other:policy/a-types@0.1.0");
    let at = module.windows(from.len()).rposition(|window| window == from).expect("the metadata names it");
    module[at..at + to.len()].copy_from_slice(to);
    module
}

fn custom_section(mut module: Vec<u8>, name: &str, data: &[u8]) -> Vec<u8> {
    module.push(0);
    module.extend(leb(name.len() + 1 + data.len()));
    module.push(u8::try_from(name.len()).unwrap());
    module.extend_from_slice(name.as_bytes());
    module.extend_from_slice(data);
    module
}

/// Files that are no policies.
pub fn not_policies() -> Vec<Refused> {
    let good = Guest::good().component();
    let half = good[..good.len() / 2].to_vec();
    let bare = wat::parse_str(Guest::good().wat()).unwrap();
    let wat = |text: &str| wat::parse_str(text).unwrap();
    let noise: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let deep = [b"\0asm\x0d\0\x01\0".to_vec(), nested(100_000)].concat();
    let mut rotten = good.clone();
    let middle = rotten.len() / 2;
    rotten[middle - 64..middle + 64].fill(0xff);
    vec![
        refused("an empty file", vec![], "Truncated", "empty"),
        refused("three bytes", b"\0as".to_vec(), "Truncated", "header"),
        refused("half a component", half, "Truncated", "copy it again"),
        refused("random bytes", noise, "NotWasm", "not with 0061736d"),
        refused("the text format", b"(component)".to_vec(), "NotWasm", "wasm-tools parse"),
        refused("a native library", b"\x7fELF\x02\x01\x01".to_vec(), "NotWasm", "native"),
        refused("bytes overwritten in the middle", rotten, "Invalid", "at byte"),
        refused("a core module without metadata", wat("(module)"), "NotAComponent", "component-type"),
        refused("a policy's core module without metadata", bare.clone(), "NotAComponent", "wasm-tools component new"),
        refused(
            "forged metadata",
            custom_section(bare.clone(), "component-type", &[0xff; 40]),
            "NotAComponent",
            "metadata is broken",
        ),
        refused("an empty component", wat("(component)"), "NotAPolicy", "exports nothing"),
        refused(
            "metadata 100,000 deep",
            custom_section(bare.clone(), "component-type", &deep),
            "NotAComponent",
            "32 deep",
        ),
        refused("types 100,000 deep", nested_types(100_000), "Invalid", "nested too deep"),
        refused("components 100,000 deep", deep, "Invalid", "32 deep"),
        refused("shared memory", wat("(module (memory 1 1 shared))"), "Invalid", "threads"),
        refused("two memories", wat("(module (memory 1) (memory 1))"), "Invalid", "multi"),
        refused("64-bit memory", wat("(module (memory i64 1))"), "Invalid", "memory64"),
        refused(
            "another contract version",
            other_contract("package elastic:policy@0.1.0", "package elastic:policy@0.2.0"),
            "WrongVersion",
            "elastic:policy/",
        ),
        refused(
            "a version section from the future",
            encode(&custom_section(Guest::good().core(), eto_policy_host::VERSION_SECTION, b"9.9.9")),
            "WrongVersion",
            "9.9.9",
        ),
        refused("another shape of the contract", other_contract("seed: u64", "seed: s64"), "WrongShape", "evaluate"),
    ]
}

/// Policies that ask for what they are not given, or are broken from the start.
pub fn bad_policies() -> Vec<Refused> {
    let component_import = wat::parse_str(r#"(component (import "wasi:clocks/wall-clock@0.2.0" (instance)))"#).unwrap();
    let env = Guest { imports: r#"(import "env" "now" (func (result i64)))"#.to_owned(), ..Guest::good() };
    let wasi = r#"(import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))"#.to_owned();
    let wasi = Guest { imports: wasi, ..Guest::good() };
    let embedded = |guest: &Guest| {
        let mut module = wat::parse_str(guest.wat()).unwrap();
        embed(&mut module, guest.world, include_str!("../../../../wit/v0.1/policy.wit"));
        module
    };
    let describe = |body: &str| with(|guest| guest.describe = Some(body.to_owned()));
    let start = |body: &str| with(|guest| guest.items = format!("(func $start {body}) (start $start)"));
    vec![
        refused("an unknown import", embedded(&env), "UnknownImport", "env.now"),
        refused("an import of WASI preview 1", embedded(&wasi), "UnknownImport", "wasm32-unknown-unknown"),
        refused("an import of WASI preview 2", component_import, "UnknownImport", "wasi:clocks"),
        refused("more memory than its limit", with(|guest| guest.pages = 300), "NeedsMoreMemory", "memory_bytes"),
        refused("a table over its limit", with(|guest| guest.table = 10_001), "NeedsMoreTables", "table_elements"),
        refused("an endless loop in describe", describe(LOOP), "DescribeFailed", "OutOfFuel"),
        refused("a trap in describe", describe("(unreachable)"), "DescribeFailed", "Trap"),
        refused("a description out of bounds", describe("(i32.const -4)"), "DescribeFailed", "BadAnswer"),
        refused("an endless start function", start("(loop $l (br $l))"), "DescribeFailed", "OutOfFuel"),
        refused("a trap in the start function", start("(unreachable)"), "DescribeFailed", "Trap"),
        refused(
            "a memory bomb in the start function",
            start("(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))"),
            "DescribeFailed",
            "Memory",
        ),
        refused("a name that is none", with(|guest| guest.name = "Not A Name"), "BadDescription", "name"),
        refused("a version that is none", with(|guest| guest.version = "new".to_owned()), "BadDescription", "version"),
        refused("a range of NaN", with(|guest| guest.range = Some((f64::NAN, 1.0))), "BadDescription", "finite"),
        refused(
            "a range without end",
            with(|guest| guest.range = Some((0.0, f64::INFINITY))),
            "BadDescription",
            "finite",
        ),
        refused("a range upside down", with(|guest| guest.range = Some((1.0, 0.0))), "BadDescription", "low <= high"),
        refused("a schema that is not JSON", with(|guest| guest.schema = "{".to_owned()), "BadDescription", "JSON"),
        refused(
            "a schema that wants the network",
            with(|guest| guest.schema = r#"{"$ref":"http://127.0.0.1:1/schema"}"#.to_owned()),
            "BadDescription",
            "config-schema",
        ),
    ]
}

/// What is asked of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Evaluate,
    Wants,
    Migrate,
    Place,
}

/// A guest that loads and then does harm when it is asked, with the kind of failure that must come of it.
pub struct Contained {
    pub what: &'static str,
    pub guest: Guest,
    pub ask: Ask,
    pub limits: Limits,
    pub kind: &'static str,
    pub says: &'static str,
}

fn contained(what: &'static str, guest: Guest, kind: &'static str, says: &'static str) -> Contained {
    Contained { what, guest, ask: Ask::Evaluate, limits: FUEL_FIRST, kind, says }
}

/// Guests that use too much.
pub fn greedy() -> Vec<Contained> {
    let body = |text: &str| Guest::evaluate(text);
    let mut validate = contained("an endless loop in validate-config", Guest::good(), "OutOfFuel", "validate-config");
    validate.guest.validate = Some(LOOP.to_owned());
    validate.ask = Ask::Wants;
    let mut migrate = contained("an endless loop in migrate", Guest::good(), "OutOfFuel", "migrate");
    migrate.guest.migrate = Some(LOOP.to_owned());
    migrate.ask = Ask::Migrate;
    let mut place = contained("an endless loop in a placement", Guest::placement(), "OutOfFuel", "evaluate");
    place.guest.evaluate = Some(LOOP.to_owned());
    place.ask = Ask::Place;
    let mut slow = contained("a loop with fuel to spare", body(LOOP), "Deadline", "50 ms");
    slow.limits = DEADLINE_FIRST;
    let mut flood = contained(
        "a log without end",
        body("(loop $l (call $log (i32.const 1) (i32.const 0x30000) (i32.const 65536)) (br $l)) (unreachable)"),
        "Deadline",
        "50 ms",
    );
    flood.limits = DEADLINE_FIRST;
    let mut allocator = contained("an endless loop in the allocator", Guest::good(), "OutOfFuel", "fuel");
    allocator.guest.realloc = Some(LOOP.to_owned());
    let recursion = "(func $down (param i64) (result i32) (i32.add (call $down (i64.add (local.get 0) (i64.const 1))) (i32.const 1)))";
    let mut deep =
        contained("a recursion without end", body("(call $down (i64.const 0))"), "StackOverflow", "recursion");
    deep.guest.items = recursion.to_owned();
    let body_of_fill = "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 262144)) (br $l)) (unreachable)";
    let mut fill = contained("a fill of all memory, over and over", body(body_of_fill), "Deadline", "50 ms");
    fill.limits = DEADLINE_FIRST;
    vec![
        contained("an endless loop in evaluate", body(LOOP), "OutOfFuel", "limits.fuel"),
        validate,
        migrate,
        place,
        slow,
        flood,
        allocator,
        deep,
        contained(
            "a memory bomb",
            body("(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (unreachable)"),
            "Memory",
            "memory in bytes",
        ),
        contained(
            "a table bomb",
            body("(loop $l (drop (table.grow $table (ref.null func) (i32.const 1000))) (br $l)) (unreachable)"),
            "Memory",
            "table in elements",
        ),
        fill,
    ]
}

/// Guests that trap.
pub fn trapping() -> Vec<Contained> {
    let line = b"panicked at src/lib.rs:12:5: index out of bounds";
    let mut panicking = Guest::good();
    let at = panicking.image.put(line);
    panicking.evaluate =
        Some(format!("(call $log (i32.const 3) (i32.const {at}) (i32.const {})) (unreachable)", line.len()));
    let mut named = Guest::evaluate("(call $helper)");
    named.items = "(func $helper (result i32) (i32.div_s (i32.const 1) (i32.const 0)))".to_owned();
    let mut leaving = Guest::good();
    leaving.realloc = Some("(call $log (i32.const 1) (i32.const 0) (i32.const 1)) (i32.const 131072)".to_owned());
    vec![
        contained("a panic", panicking, "Trap", "src/lib.rs:12:5"),
        contained("a division by zero", named, "Trap", "helper"),
        contained("a read out of bounds", Guest::evaluate("(i32.load (i32.const -8))"), "Trap", "out of bounds"),
        contained(
            "a call of nothing",
            Guest::evaluate("(call_indirect $table (result i32) (i32.const 0))"),
            "Trap",
            "uninitialized",
        ),
        contained("an import called from the allocator", leaving, "Trap", "cannot leave"),
    ]
}

/// Guests whose answers break the contract.
pub fn lying() -> Vec<Contained> {
    let answer = |change: &dyn Fn(&mut Guest)| {
        let mut guest = Guest::good();
        change(&mut guest);
        guest
    };
    let reason = |said: Said| answer(&move |guest| guest.reasons = vec![said.clone()]);
    // 2,000 reasons with two texts of 50,000 bytes, all the same memory: small for the guest, 200 MB for the host.
    let mut aliased = Guest::good();
    aliased.pages = 16;
    let text = aliased.image.put("a".repeat(50_000).as_bytes());
    aliased.evaluate = Some(format!(
        r"(local $at i32) (local.set $at (i32.const 0x80000))
        (i32.store (i32.const 512) (i32.const 0)) (i32.store (i32.const 516) (i32.const 0))
        (i32.store (i32.const 524) (i32.const 0x80000)) (i32.store (i32.const 528) (i32.const 2000))
        (loop $l
          (i32.store (local.get $at) (i32.const {text})) (i32.store offset=4 (local.get $at) (i32.const 50000))
          (i32.store offset=8 (local.get $at) (i32.const {text})) (i32.store offset=12 (local.get $at) (i32.const 50000))
          (local.set $at (i32.add (local.get $at) (i32.const 64)))
          (br_if $l (i32.lt_u (local.get $at) (i32.const 0x9f400))))
        (i32.const 512)"
    ));
    let long_list = "(i32.store (i32.const 512) (i32.const 0)) (i32.store (i32.const 524) (i32.const 1024))
        (i32.store (i32.const 528) (i32.const -1)) (i32.const 512)";
    let mut placed = contained("a place for a worker nobody asked about", Guest::placement(), "BadAnswer", "worker 77");
    let place = placed.guest.image.words(&[77, 0, 0]);
    let (code, text) = (placed.guest.image.text(b"Why"), placed.guest.image.text(b""));
    let reasons = placed.guest.image.words(&[&code[..], &text, &[0; 12]].concat());
    let words = placed.guest.image.words(&[0, place, 1, place, 0, reasons, 1, 0, 0, 0]);
    placed.guest.evaluate = Some(format!("(i32.const {words})"));
    placed.ask = Ask::Place;
    vec![
        placed,
        contained("a target of -1", Guest::answering(u32::MAX), "BadAnswer", "4294967295"),
        contained("a target of 100,001", Guest::answering(100_001), "BadAnswer", "100001"),
        contained("NaN in a reason", reason(Said { value: Some(f64::NAN), ..Said::default() }), "BadAnswer", "finite"),
        contained(
            "infinity in a reason",
            reason(Said { value: Some(f64::NEG_INFINITY), ..Said::default() }),
            "BadAnswer",
            "finite",
        ),
        contained(
            "text that is not UTF-8",
            reason(Said { message: vec![0xff, 0xfe, b'a'], ..Said::default() }),
            "BadAnswer",
            "utf-8",
        ),
        contained(
            "a message of 300 characters",
            reason(Said { message: vec![b'a'; 300], ..Said::default() }),
            "BadAnswer",
            "300 characters",
        ),
        contained(
            "a code with a new line",
            reason(Said { code: b"Scale\nUp".to_vec(), ..Said::default() }),
            "BadAnswer",
            "CamelCase",
        ),
        contained("no reasons", answer(&|guest| guest.reasons.clear()), "BadAnswer", "0 reasons"),
        contained("17 reasons", answer(&|guest| guest.reasons = vec![Said::default(); 17]), "BadAnswer", "17 reasons"),
        contained("a next look at once", answer(&|guest| guest.next_look = Some(0)), "BadAnswer", "at least 1"),
        contained("state of 65,537 bytes", answer(&|guest| guest.state = Some(65_537)), "BadAnswer", "65537 bytes"),
        contained(
            "state of a policy that keeps none",
            answer(&|guest| (guest.state, guest.state_version) = (Some(1), 0)),
            "BadAnswer",
            "keeps none",
        ),
        contained(
            "an answer of 100 MB",
            answer(&|guest| guest.state = Some(100_000_000)),
            "BadAnswer",
            "can't be read",
        ),
        contained("a list of four billion reasons", Guest::evaluate(long_list), "BadAnswer", "can't be read"),
        contained("the same memory a thousand times", aliased, "BadAnswer", "too much data"),
        contained("an answer out of bounds", Guest::evaluate("(i32.const -16)"), "BadAnswer", "can't be read"),
        contained("an answer at an odd address", Guest::evaluate("(i32.const 1025)"), "BadAnswer", "aligned"),
        contained(
            "a variant that does not exist",
            Guest::evaluate("(i32.store8 (i32.const 512) (i32.const 9)) (i32.const 512)"),
            "BadAnswer",
            "discriminant",
        ),
        contained(
            "an allocator that gives memory it has not",
            Guest { realloc: Some("(i32.const -8)".to_owned()), ..Guest::good() },
            "BadAnswer",
            "realloc",
        ),
        contained(
            "an allocator that does not align",
            Guest { realloc: Some("(i32.const 131073)".to_owned()), ..Guest::good() },
            "BadAnswer",
            "realloc",
        ),
    ]
}
