//! One sentence for each setting: the text of `--help`.

const TEXT: &[(&str, &str)] = &[
    ("kubernetes.namespace", "Namespace to serve; empty = all"),
    (
        "kubernetes.watch-all-pods",
        "Watch the pods of all owners, so that placement knows what is free on each node; false = only pods of ElasticJobs",
    ),
    ("kubernetes.request-timeout", "A request to the API server that takes longer is given up and tried again"),
    ("evaluation.period", "How often each job is sized; 1s at least"),
    ("evaluation.threads", "Threads that run policies; 0 = one per core"),
    ("evaluation.checkpoint-period", "How often a policy's changed state is saved when nothing else is written"),
    (
        "evaluation.large-state-period",
        "How often a changed state that is too large for status (3 KiB) is saved, for each job; 1s at least",
    ),
    ("reconcile.status-writers", "Jobs whose status is written at the same time"),
    ("reconcile.pod-writers", "Pods created or deleted at the same time"),
    ("reconcile.status-delay", "How long counters in status may lag behind, so that several changes cost one write"),
    ("reconcile.events-per-second", "Events written a second at most; the rest wait, and repeats are merged"),
    ("prometheus.url", "Prometheus (or what speaks its API); empty = no signals, jobs hold their size"),
    ("prometheus.timeout", "Deadline of one query"),
    ("prometheus.concurrency", "Queries at the same time"),
    ("prometheus.deadline", "Deadline of one gathering, all queries and retries together"),
    ("prometheus.scrape-interval", "How often Prometheus scrapes; windows shorter than four of these are widened"),
    ("prometheus.namespace-label", "Label that confines custom queries to the job's namespace"),
    (
        "prometheus.matchers",
        "Further labels that every query is confined by, as in cluster=a,env=prod (a Prometheus of several clusters)",
    ),
    ("prometheus.method", "POST or GET; GET for proxies that allow reading alone"),
    ("prometheus.retries", "How often a query that failed for a passing reason is sent again within the deadline"),
    ("prometheus.max-response-mebibytes", "Cap on one answer; 80,000 pods are about 10 MiB"),
    (
        "prometheus.headers-file",
        "File of further request headers, a line `Name: value` each (X-Scope-OrgID of Mimir, say), read at the start",
    ),
    ("prometheus.gpu-utilisation", "Metric of the share of time in which a GPU ran any kernel, 0 to 100"),
    (
        "prometheus.gpu-engine-active",
        "Metric of the share of time a GPU's engine was active, 0 to 1; preferred, and all that MIG has",
    ),
    ("prometheus.gpu-memory-used", "Metric of the GPU memory in use, in MiB"),
    ("prometheus.gpu-memory-free", "Metric of the GPU memory that is free, in MiB"),
    ("prometheus.server-name", "Name that the server's certificate is to be for, where it is not the URL's host"),
    ("prometheus.insecure-skip-verify", "Take any server certificate; for trials only"),
    ("prometheus.bearer-token-file", "File with a bearer token, read again when it changes"),
    ("prometheus.username", "User of basic authentication"),
    ("prometheus.password-file", "File with the password of basic authentication"),
    ("prometheus.ca-file", "Certificate authorities (PEM) to trust instead of the system's"),
    ("prometheus.cert-file", "Client certificate (PEM)"),
    ("prometheus.key-file", "Key of the client certificate (PEM)"),
    ("policies.builtin-dir", "Directory of the policies that come with the product"),
    ("policies.dir", "Directory of your own policies, watched; a policy of the same name wins over a built-in one"),
    ("policies.cache-dir", "Private directory for compiled policies; empty = compile at each start"),
    ("placement.zone-label", "Node label that names the zone"),
    ("placement.rack-label", "Node label that names the rack"),
    (
        "nodes.leaving-taints",
        "Taints by which a node says that it will go: key or key=value, and @2m behind it where it has so long from then on",
    ),
    ("nodes.leaving-conditions", "Conditions of a node that say the same while they are True, or Type=Status"),
    ("nodes.leaving-annotations", "Annotations of a node, or of one pod, that say the same: key or key=value"),
    (
        "nodes.faulty-conditions",
        "Conditions of a node, while True or Type=Status, by which its workers are given up first and new ones avoid it",
    ),
    (
        "nodes.quarantine-failures",
        "Failures of workers within one half-life after which new workers avoid a node where they can; 0 = none",
    ),
    (
        "nodes.lease-grace",
        "A node whose lease is not renewed for so long, while those of others are, is taken for not ready; 5/8 of leaseDurationSeconds where that is more; 0s = it is not looked at, 25s at least",
    ),
    ("nodes.quarantine-half-life", "Time in which half of what is held against a node is forgotten; 1s at least"),
    ("leader.enabled", "Elect a leader by Lease; false only where a single replica runs"),
    ("leader.name", "Name of the Lease"),
    ("leader.namespace", "Namespace of the Lease; empty = the operator's own"),
    ("leader.identity", "Name of this replica; empty = host name and a random part"),
    ("leader.duration", "A leader silent for this long is replaced"),
    ("leader.renew-deadline", "A leader that could not renew for this long stops acting; below duration"),
    ("leader.retry-period", "How often the Lease is renewed or tried for"),
    ("server.address", "Address of /healthz, /readyz and /metrics"),
    ("server.per-job-metrics", "Export series per job (their number grows with the jobs)"),
    (
        "gateway.etcd-endpoints",
        "Members of etcd, as in https://etcd-0:2379,https://etcd-1:2379; empty = no agents in the pods, which are recreated for each round",
    ),
    ("gateway.etcd-prefix", "What all keys begin with"),
    (
        "gateway.etcd-secret",
        "Secret (operator's namespace) with etcd's certificate; made for the hosts of the endpoints if it is not there",
    ),
    ("gateway.etcd-ca-file", "Certificate authority (PEM) of an etcd of your own"),
    ("gateway.etcd-cert-file", "Client certificate (PEM) for an etcd of your own"),
    ("gateway.etcd-key-file", "Key of that client certificate (PEM)"),
    ("gateway.address", "Address that agents are served on"),
    ("gateway.url", "https:// URL that pods reach the gateway by; its certificate is made for this host"),
    (
        "gateway.secret",
        "Secret (operator's namespace) with the authority that the gateway's certificate is made by; made if it is not there",
    ),
    ("gateway.agent-image", "Image of the agent that pods get"),
    (
        "gateway.agent-pull-policy",
        "Pull policy of that image: Always, IfNotPresent or Never; empty = Kubernetes' default",
    ),
    (
        "images.read",
        "Read the command of images from their registries where templates name none; false = such jobs have no agent",
    ),
    (
        "images.pull-secrets",
        "Read the pull secrets of such pods for it, each by its name; needs the right to get secrets and serviceaccounts",
    ),
    (
        "images.registries",
        "The only registries that are asked, with commas, as in docker.io,registry.example:5000; empty = all",
    ),
    ("images.plain-http", "Registries and mirrors that are asked by plain HTTP, with commas"),
    ("images.mirrors", "Mirrors that are asked first, as in docker.io=mirror.example,docker.io=other.example"),
    ("images.ca-file", "Certificate authorities (PEM) of registries, trusted beside the system's; read at the start"),
    ("images.architecture", "Architecture of the nodes, for images of several and pods that name none"),
    ("images.timeout", "Deadline of one reading, all requests together; at most 15s"),
    ("decision-log.dir", "Directory of the decision log (JSON lines, decisions.jsonl); empty = none"),
    (
        "decision-log.inputs",
        "Which inputs of policies it keeps whole, to ask again: all, changes (of decisions that moved the size, were \
         limited or failed), none",
    ),
    ("decision-log.max-mebibytes", "Size at which the decision log is rotated"),
    ("decision-log.files", "Rotated decision logs to keep"),
    (
        "traces.endpoint",
        "Base URL of a collector that takes OTLP over HTTP, as in http://collector.monitoring:4318; empty = no spans",
    ),
    ("traces.every-decision", "A span for every decision, not just for those that move a target or failed"),
    ("traces.headers-file", "File of request headers for it, a line `Name: value` each, read at the start"),
    ("traces.ca-file", "Certificate authorities (PEM) to trust instead of the system's"),
    ("traces.timeout", "Deadline of one batch of spans"),
    ("log.format", "json or text"),
    ("log.level", "error, warn, info, debug, trace, or a filter such as info,eto_operator=debug"),
];

pub(super) fn of(path: &str) -> Option<&'static str> {
    TEXT.iter().find(|(p, _)| *p == path).map(|(_, t)| *t)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn each_setting_has_its_sentence_and_each_sentence_its_setting() {
        let keys: BTreeSet<String> = super::super::keys::KEYS.iter().map(|k| k.path.clone()).collect();
        let texts: BTreeSet<String> = super::TEXT.iter().map(|(p, _)| (*p).to_owned()).collect();
        assert_eq!(keys, texts);
    }
}
