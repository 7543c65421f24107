//! The rights that `deploy/` gives, granted to accounts of the tests: operators have them and no more.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::{Outcome, ensure};

/// Where that account and the Leases are.
pub const NAMESPACE: &str = "e2e-system";
const NAME: &str = "e2e-training-operator";
const KINDS: [&str; 6] = ["Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// Grants those of `deploy/operator.yaml`; gives a kubeconfig of the account.
pub fn grant(cluster: &Cluster, directory: &Path) -> Outcome<PathBuf> {
    let deployed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/operator.yaml");
    // Names of their own, so that cases that install the real ones do not take them away.
    let text = std::fs::read_to_string(deployed)?
        .replace("elastic-training-operator", NAME)
        .replace("elastic-system", NAMESPACE);
    let mut granted = in_manifests(&text)?;
    granted.retain(|o| [NAME, NAMESPACE].contains(&text_at(o, "/metadata/name")));
    ensure!(granted.len() == KINDS.len(), "deploy/operator.yaml has {} of the objects {KINDS:?}", granted.len());
    grant_all(cluster, directory, &granted, NAMESPACE, NAME)
}

/// The objects of these manifests that are about rights.
pub fn in_manifests(text: &str) -> Outcome<Vec<Value>> {
    let mut found = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document)?;
        if KINDS.contains(&text_at(&object, "/kind")) {
            found.push(object);
        }
    }
    Ok(found)
}

/// Applies these objects; gives a kubeconfig of that account, in this directory.
pub fn grant_all(
    cluster: &Cluster,
    directory: &Path,
    objects: &[Value],
    namespace: &str,
    account: &str,
) -> Outcome<PathBuf> {
    let list = directory.join("rights.json");
    std::fs::write(&list, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    cluster.kubectl(&["apply", "-f", &list.display().to_string()])?;
    let token = cluster.kubectl(&["create", "token", account, "-n", namespace, "--duration=3h"])?;
    let kubeconfig = directory.join("kubeconfig");
    std::fs::write(&kubeconfig, with_token(&cluster.kubeconfig, token.trim())?)?;
    Ok(kubeconfig)
}

fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A kubeconfig with its users replaced by a bearer of the token.
pub fn with_token(kubeconfig: &Path, token: &str) -> Outcome<String> {
    let mut config: Value = serde_yaml::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    let users = config.get_mut("users").and_then(Value::as_array_mut).ok_or("the kubeconfig has no users")?;
    for user in users {
        user["user"] = json!({"token": token});
    }
    Ok(serde_yaml::to_string(&config)?)
}
