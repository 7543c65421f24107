#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn parse(text: &str) -> Result<PrometheusSettings, toml::de::Error> {
    toml::from_str(text)
}

#[test]
fn defaults_are_usable() {
    let url = PrometheusSettings::default().check().unwrap();
    assert_eq!(url.as_str(), "http://prometheus-operated.monitoring.svc:9090/api/v1/query");
}

#[test]
fn everything_can_be_set() {
    let settings = parse(
        r#"
        url = "https://mimir.example/prometheus/"
        method = "GET"
        timeout = "500ms"
        deadline = 3
        retries = 0
        max_concurrency = 2
        max_response_bytes = 4096
        scrape_interval = "30s"
        namespace_label = "exported_namespace"
        matchers = { cluster = "a" }
        headers = { X-Scope-OrgID = "team" }
        gpu = { utilisation = "dcgm_gpu_utilization" }
        auth = { basic = { username = "eto", password_file = "/run/secrets/password" } }
        tls = { ca_file = "/ca.pem", cert_file = "/c.pem", key_file = "/k.pem", server_name = "mimir" }
        "#,
    )
    .unwrap();
    assert_eq!(settings.check().unwrap().as_str(), "https://mimir.example/prometheus/api/v1/query");
    assert_eq!(settings.timeout, Duration::from_millis(500));
    assert_eq!(settings.deadline, Duration::from_secs(3));
    assert_eq!(settings.gpu.engine_active, "DCGM_FI_PROF_GR_ENGINE_ACTIVE");
}

#[test]
fn wrong_keys_and_values_are_refused_with_words() {
    assert!(parse("urll = 'x'").unwrap_err().to_string().contains("urll"));
    assert!(parse("timeout = '5 parsecs'").unwrap_err().to_string().contains("5 parsecs"));
    for (text, needle) in [
        ("url = 'prometheus:9090'", "http://"),
        ("url = 'http://'", "can't be used"),
        ("url = 'http://p:9090/?x=1'", "query"),
        ("timeout = 0", "timeout"),
        ("timeout = '20s'", "deadline"),
        ("max_concurrency = 0", "max_concurrency"),
        ("max_response_bytes = 1", "max_response_bytes"),
        ("namespace_label = 'a-b'", "a-b"),
        ("matchers = { 'x\"y' = 'z' }", "matchers"),
        ("gpu = { memory_used = 'x or y' }", "gpu.memory_used"),
        ("headers = { 'a b' = 'c' }", "header"),
        ("headers = { Authorization = 'x' }\nauth = { bearer_token_file = '/t' }", "sets it already"),
        ("url = 'https://p'\ntls = { cert_file = '/c' }", "go together"),
        ("tls = { insecure_skip_verify = true }", "https"),
        ("url = 'https://p'\ntls = { insecure_skip_verify = true, ca_file = '/c' }", "meaningless"),
        ("auth = { bearer_token_file = '/t', basic = { username = 'u', password_file = '/p' } }", "exclude"),
        ("auth = { basic = { username = 'u:v', password_file = '/p' } }", "colon"),
    ] {
        let error = parse(text).unwrap().check().unwrap_err().to_string();
        assert!(error.contains(needle), "{text}: {error}");
    }
}

#[test]
fn secrets_are_never_shown() {
    let settings = parse("url = 'http://me:hunter2@p:9090'\nheaders = { X-Key = 'hunter3' }").unwrap();
    let shown = format!("{settings:?} {}", settings.check().unwrap_err());
    assert!(!shown.contains("hunter"), "{shown}");
    assert!(shown.contains("X-Key") && shown.contains("p:9090"), "{shown}");
    let broken = parse("url = 'hunter2@p'").unwrap();
    assert!(!format!("{broken:?} {}", broken.check().unwrap_err()).contains("hunter"));
}
