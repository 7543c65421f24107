#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

const NOW: Time = Time(1_700_000_100_000);

struct Rows(Vec<serde_json::Value>);

impl Rows {
    fn new() -> Rows {
        Rows(Vec::new())
    }
    fn add(mut self, labels: &str, value: &str) -> Rows {
        let labels: serde_json::Map<String, serde_json::Value> = labels
            .split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), serde_json::Value::String(v.to_owned())))
            .collect();
        self.0.push(serde_json::json!({"metric": labels, "value": [1_700_000_000, value]}));
        self
    }
    fn body(self) -> Vec<u8> {
        serde_json::json!({"status": "success", "data": {"resultType": "vector", "result": self.0}})
            .to_string()
            .into_bytes()
    }
}

fn folded(shape: Shape, values: Rows, times: Rows) -> SignalData {
    let mut data = SignalData::default();
    let bodies = Bodies { shape, values: values.body(), times: Some(times.body()) };
    fold(&mut data, &bodies, &BTreeSet::from(["team".to_owned()]), NOW).unwrap();
    data
}

fn utilisation(values: Rows) -> SignalData {
    folded(Shape::Gpu, values, Rows::new())
}

fn value(data: &SignalData, pod: &str) -> f64 {
    data.per_pod["team"][pod].value
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9, "{a} is not {b}");
}

#[test]
fn two_gpus_at_half_are_one() {
    let data = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=util", "50")
            .add("namespace=team,pod=w-0,UUID=B,eto_part=util", "50")
            .add("namespace=other,pod=x,UUID=C,eto_part=util", "90"),
    );
    close(value(&data, "w-0"), 1.0);
    assert!(!data.per_pod.contains_key("other"), "not asked for");
}

#[test]
fn activity_is_preferred_and_duplicates_are_one() {
    let data = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,instance=x,eto_part=util", "100")
            .add("namespace=team,pod=w-0,UUID=A,instance=x,eto_part=active", "0.25")
            .add("namespace=team,pod=w-0,UUID=A,instance=y,eto_part=active", "0.25"),
    );
    close(value(&data, "w-0"), 0.25);
}

#[test]
fn blanks_are_not_numbers() {
    for blank in ["9223372036854775794", "2147483632", "140737488355328", "101.5", "-1", "NaN", "+Inf"] {
        let data = utilisation(Rows::new().add("namespace=team,pod=w-0,UUID=A,eto_part=util", blank));
        assert!(value(&data, "w-0").is_nan(), "{blank}");
        // One bad GPU of two: no number, rather than half of one.
        let data = utilisation(
            Rows::new()
                .add("namespace=team,pod=w-0,UUID=A,eto_part=util", blank)
                .add("namespace=team,pod=w-0,UUID=B,eto_part=util", "80"),
        );
        assert!(value(&data, "w-0").is_nan(), "{blank}");
    }
    // A blank activity falls back to the coarse number.
    let data = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=active", "9223372036854775794")
            .add("namespace=team,pod=w-0,UUID=A,eto_part=util", "40"),
    );
    close(value(&data, "w-0"), 0.4);
}

#[test]
fn mig_instances_have_activity_only() {
    let data = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,GPU_I_ID=1,eto_part=active", "0.5")
            .add("namespace=team,pod=w-0,UUID=A,GPU_I_ID=1,eto_part=util", "0")
            .add("namespace=team,pod=w-1,UUID=A,GPU_I_ID=2,eto_part=active", "0.75")
            .add("namespace=team,pod=w-2,UUID=A,GPU_I_ID=3,eto_part=util", "0"),
    );
    close(value(&data, "w-0"), 0.5);
    close(value(&data, "w-1"), 0.75);
    assert!(value(&data, "w-2").is_nan(), "zero by design is not idle");
}

#[test]
fn the_exporters_own_pod_is_not_the_workload() {
    let data = utilisation(
        Rows::new()
            .add(
                "namespace=team,pod=exporter,exported_namespace=team,exported_pod=w-0,UUID=A,instance=n1,eto_part=util",
                "60",
            )
            .add("namespace=team,pod=exporter,UUID=B,instance=n1,eto_part=util", "0"),
    );
    assert_eq!(data.per_pod["team"].len(), 1);
    close(value(&data, "w-0"), 0.6);
}

#[test]
fn a_shared_gpu_is_divided_or_measured_per_process() {
    let copies = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,vgpu=0,eto_part=util", "80")
            .add("namespace=team,pod=w-1,UUID=A,vgpu=1,eto_part=util", "80")
            .add("namespace=other,pod=x,UUID=A,vgpu=2,eto_part=util", "80")
            .add("namespace=other,pod=y,UUID=A,vgpu=3,eto_part=util", "80"),
    );
    close(value(&copies, "w-0"), 0.2);
    close(value(&copies, "w-1"), 0.2);
    let per_process = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=util", "30")
            .add("namespace=team,pod=w-1,UUID=A,eto_part=util", "50")
            .add("namespace=team,pod=w-0,UUID=A,eto_part=active", "0.8")
            .add("namespace=team,pod=w-1,UUID=A,eto_part=active", "0.8"),
    );
    close(value(&per_process, "w-0"), 0.3);
    close(value(&per_process, "w-1"), 0.5);
}

#[test]
fn memory_is_a_share_of_each_gpu() {
    let data = folded(
        Shape::GpuMemory,
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=used", "30000")
            .add("namespace=team,pod=w-0,UUID=A,eto_part=free", "10000")
            .add("namespace=team,pod=w-0,UUID=B,eto_part=used", "20000")
            .add("namespace=team,pod=w-0,UUID=B,eto_part=free", "20000")
            .add("namespace=team,pod=w-1,UUID=C,eto_part=used", "20000")
            .add("namespace=team,pod=w-2,UUID=D,eto_part=used", "0")
            .add("namespace=team,pod=w-2,UUID=D,eto_part=free", "0"),
        Rows::new(),
    );
    close(value(&data, "w-0"), 1.25);
    assert!(value(&data, "w-1").is_nan(), "no total");
    assert!(value(&data, "w-2").is_nan(), "nothing of nothing");
    let shared = folded(
        Shape::GpuMemory,
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=used", "10000")
            .add("namespace=team,pod=w-0,UUID=A,eto_part=free", "10000")
            .add("namespace=team,pod=w-1,UUID=A,eto_part=used", "20000")
            .add("namespace=team,pod=w-1,UUID=A,eto_part=free", "10000"),
        Rows::new(),
    );
    close(value(&shared, "w-0"), 0.25);
    close(value(&shared, "w-1"), 0.5);
}

#[test]
fn a_quiet_gpu_makes_the_pod_unknown_and_age_is_that_of_the_oldest() {
    let data = folded(
        Shape::Gpu,
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A,eto_part=util", "50")
            .add("namespace=team,pod=w-1,UUID=C,eto_part=util", "50")
            .add("namespace=team,pod=w-1,UUID=D,eto_part=util", "50"),
        Rows::new()
            .add("namespace=team,pod=w-0,UUID=A", "1699999995")
            .add("namespace=team,pod=w-0,UUID=B", "1699999800")
            .add("namespace=team,pod=w-1,UUID=C", "1699999990.5")
            .add("namespace=team,pod=w-1,UUID=C", "1699999980")
            .add("namespace=team,pod=w-1,UUID=D", "1699999999"),
    );
    assert!(value(&data, "w-0").is_nan(), "GPU B is there but says nothing");
    close(value(&data, "w-1"), 1.0);
    assert_eq!(data.per_pod["team"]["w-1"].at, Time(NOW.0 - 9_500));
}

#[test]
fn without_uuid_host_and_number_tell_gpus_apart() {
    let data = utilisation(
        Rows::new()
            .add("namespace=team,pod=w-0,gpu=0,Hostname=n1,eto_part=util", "50")
            .add("namespace=team,pod=w-0,gpu=1,Hostname=n1,eto_part=util", "50")
            .add("namespace=team,pod=w-0,gpu=1,Hostname=n1,eto_part=util", "50"),
    );
    close(value(&data, "w-0"), 1.0);
}
