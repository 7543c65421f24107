//! How a source is told who asks, and that no secret is shown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::{Arc, Mutex};

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use common::server::{EMPTY, ONE, always, gather, gather_once, server, trouble};
use eto_signals::{Auth, BasicAuth, Method, Prometheus, PrometheusSettings};

/// Servers and proxies that quote what they were sent, in each way that is quoted in turn.
#[tokio::test]
async fn what_was_sent_as_a_secret_is_not_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "S3CRET-bearer\n").unwrap();
    let bearer = Auth { bearer_token_file: Some(file.clone()), basic: None };
    let basic = BasicAuth { username: "u".into(), password_file: file };
    let basic = Auth { bearer_token_file: None, basic: Some(basic) };
    for auth in [bearer, basic] {
        for status in [200, 302, 400, 401, 500] {
            let quoting = server(move |headers, _| async move {
                let sent = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
                let tenant = headers["x-tenant"].to_str().unwrap().to_owned();
                let said = format!("not with {sent}, S3CRET-bearer or {tenant}");
                let body = match status {
                    400 => format!(r#"{{"status":"error","errorType":"bad_data","error":"{said}"}}"#),
                    _ => said.clone(),
                };
                let to = format!("/{}", sent.replace(' ', "/"));
                (StatusCode::from_u16(status).unwrap(), [(header::LOCATION, to)], body).into_response()
            });
            let headers = [("X-Tenant".to_owned(), "S3CRET-tenant".to_owned())].into();
            let settings = PrometheusSettings { auth: auth.clone(), headers, ..quoting.await };
            let text = trouble(settings).await;
            let base64 = "dTpTM0NSRVQtYmVhcmVy";
            assert!(!text.contains("S3CRET") && !text.contains(base64), "{status}: {text}");
            assert!(text.contains("[hidden]"), "{status}: {text}");
        }
    }
}

/// A pipe has nobody who writes, a device has no end.
#[tokio::test]
async fn credentials_are_read_from_small_regular_files_alone() {
    let settings = always(|| ONE.into_response()).await;
    let auth = Auth { bearer_token_file: Some("/dev/zero".into()), basic: None };
    let text = trouble(PrometheusSettings { auth, ..settings }).await;
    assert!(text.contains("/dev/zero: it is not a regular file"), "{text}");
}

/// A server that keeps the last `Authorization` and asks for nothing.
async fn recorder() -> (PrometheusSettings, Arc<Mutex<String>>) {
    let last = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&last);
    let settings = server(move |headers, request| {
        let text = |name| headers.get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        *kept.lock().unwrap() = format!("{} {} {request}", text("authorization"), text("x-scope-orgid"));
        async { EMPTY.into_response() }
    })
    .await;
    (settings, last)
}

#[tokio::test]
async fn a_rotated_token_is_taken_at_once_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let (settings, last) = recorder().await;
    let settings = PrometheusSettings {
        auth: Auth { bearer_token_file: Some(path.clone()), basic: None },
        headers: [("X-Scope-OrgID".to_owned(), "team".to_owned())].into(),
        ..settings
    };
    let prometheus = Prometheus::new(settings).unwrap();
    let missing = gather_once(&prometheus).await.trouble.unwrap();
    assert!(missing.contains("token") && missing.contains("No such file"), "{missing}");
    for (content, ok) in [("first-hunter2\n", true), ("second-hunter2", true), ("\n", false), ("a\nhunter2\n", false)] {
        std::fs::write(&path, content).unwrap();
        let data = gather_once(&prometheus).await;
        assert_eq!(data.trouble.is_none(), ok, "{content:?}: {data:?}");
        if ok {
            let seen = last.lock().unwrap().clone();
            assert!(
                seen.starts_with(&format!("Bearer {} team POST", content.trim()))
                    || seen.starts_with(&format!("Bearer {} team /api/v1/query", content.trim())),
                "{seen}"
            );
        }
        assert!(!format!("{prometheus:?} {data:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn basic_authentication_and_get() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "open sesame\n").unwrap();
    let (settings, last) = recorder().await;
    let settings = PrometheusSettings {
        method: Method::Get,
        auth: Auth {
            bearer_token_file: None,
            basic: Some(BasicAuth { username: "eto".to_owned(), password_file: path }),
        },
        ..settings
    };
    assert!(gather(settings).await.trouble.is_none());
    let seen = last.lock().unwrap().clone();
    // base64 of "eto:open sesame"
    assert!(seen.starts_with("Basic ZXRvOm9wZW4gc2VzYW1l"), "{seen}");
    assert!(seen.contains("/api/v1/query?query="), "{seen}");
}
