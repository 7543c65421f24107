//! Names of labels, annotations and ports that users, dashboards and other tools may rely on.

/// The job's name on its pods and service; what the guide's selectors use.
pub const ELASTIC_JOB: &str = "elastic-job";
/// The same under the name that batch/v1 uses (`kubectl logs -l job-name=...`).
pub const JOB_NAME: &str = "job-name";
/// Role of a pod: [`ROLE_MASTER`] or [`ROLE_WORKER`].
pub const ROLE: &str = "elastic.ai/role";
/// Generation of the round that a pod was made for.
pub const ROUND: &str = "elastic.ai/round";
/// Workers in that round.
pub const ROUND_SIZE: &str = "elastic.ai/round-size";
/// Which pod of its index it is: each replacement has another number. Only on pods with an agent.
pub const INCARNATION: &str = "elastic.ai/incarnation";
/// How rounds are carried out in a pod: [`ROUNDS_AGENT`]; absent where pods are recreated for each round.
pub const ROUNDS: &str = "elastic.ai/rounds";
/// Value of [`ROUNDS`]: an agent in the pod drives them.
pub const ROUNDS_AGENT: &str = "agent";
/// Index of the worker in its job.
pub const INDEX: &str = "elastic.ai/index";
/// Hash of the template that a pod was made from.
pub const TEMPLATE_HASH: &str = "elastic.ai/template-hash";
/// On the ConfigMap that holds a policy's state for a job, where `status` is too small for it.
pub const POLICY_STATE: &str = "elastic.ai/policy-state";
/// Annotation: the node that the placement policy chose.
pub const PLACED_ON: &str = "elastic.ai/placed-on";
/// Who made it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] and field manager of server-side apply.
pub const MANAGER: &str = "elastic-training-operator";

/// Kubeflow's names for the same things, so that its dashboards and queries find the pods.
pub const KUBEFLOW_JOB_NAME: &str = "training.kubeflow.org/job-name";
/// Kubeflow: role of the pod.
pub const KUBEFLOW_JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// Kubeflow: type of the replica (`master`, `worker`).
pub const KUBEFLOW_REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// Kubeflow: index of the replica.
pub const KUBEFLOW_REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// Kubeflow: the operator that made the pod.
pub const KUBEFLOW_OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";

/// Volcano: queue of a pod (annotation).
pub const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";

/// Role of the worker with index 0.
pub const ROLE_MASTER: &str = "master";
/// Role of all others.
pub const ROLE_WORKER: &str = "worker";
