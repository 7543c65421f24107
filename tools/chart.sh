#!/usr/bin/env bash
# Lints the Helm chart, renders it in its main variants, and sees that its schema refuses what it must.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"

chart=deploy/chart/elastic-training-operator
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
grep -qx "version: $version" $chart/Chart.yaml && grep -qx "appVersion: $version" $chart/Chart.yaml ||
  die "Chart.yaml: version and appVersion must be the workspace's, $version"

helm lint --strict --quiet $chart
n=0
render() { helm template t $chart --kube-version 1.35.0 --namespace elastic-system "$@"; }
# has TEXT VALUES...: the rendering with these values has a line that matches TEXT.
has() {
  local text=$1 out
  shift
  out=$(render "$@") || die "does not render with: $*"
  grep -qE -- "$text" <<<"$out" || die "no line matches '$text' with: $*"
  n=$((n + 1))
}
refused() {
  ! render "$@" >/dev/null 2>&1 || die "must be refused: $*"
  n=$((n + 1))
}

has '^  replicas: 2$'
has 'kind: PodDisruptionBudget'
has 'url = "http://p:9090"' --set settings.prometheus.url=http://p:9090
# Two releases in one namespace must not wait for each other's Lease.
has '^ *name = "mine"' --set fullnameOverride=mine
has '^ *files = 7$' --set settings.decision-log.files=7
has 'kind: ServiceMonitor' --set metrics.serviceMonitor.enabled=true
has 'claimName: mine' --set policies.volume.persistentVolumeClaim.claimName=mine
has 'image: .*@sha256:' --set image.digest=sha256:"$(printf 'a%.0s' {1..64})"
has 'serviceAccountName: mine' --set serviceAccount.create=false --set serviceAccount.name=mine
has 'kind: Namespace' --set createNamespace=true
# An operator for one namespace has rights over jobs and pods there alone.
one=(--set settings.kubernetes.namespace=team-a)
has '^  namespace: team-a$' "${one[@]}"
has '^ *namespace = "team-a"' "${one[@]}"
has '^ *watch-all-pods = false' "${one[@]}"
# rules KIND NAME VALUES...: the verbs and resources of the rules of one role, a line each.
rules() {
  local kind=$1 name=$2
  shift 2
  render "$@" | awk -v kind="$kind" -v name="$name" '
    /^---/ { k = ""; n = ""; r = ""; rules = 0 }
    /^kind: / { k = $2 }
    /^  name: / { n = $2 }
    /^rules:/ { rules = 1 }
    rules && k == kind && n == name && $1 == "resources:" { sub(/ *#.*/, ""); sub(/^ *resources: /, ""); r = $0 }
    rules && k == kind && n == name && $1 == "verbs:" { sub(/ *#.*/, ""); sub(/^ *verbs: /, ""); print r, $0 }' | sort
}
# same WHAT WANTED ACTUAL
same() {
  [ "$2" = "$3" ] || die "$1 are not as they must be: $(diff <(echo "$2") <(echo "$3") || true)"
  n=$((n + 1))
}
name=elastic-training-operator
cluster="[nodes, persistentvolumes] [list, watch]
[storageclasses] [list, watch]
[tokenreviews] [create]"
same "the cluster's rights of an operator for one namespace" "$cluster" "$(rules ClusterRole $name "${one[@]}")"
same "its rights with watch-all-pods" "$(printf '%s\n[pods] [list, watch]' "$cluster" | sort)" \
  "$(rules ClusterRole $name "${one[@]}" --set settings.kubernetes.watch-all-pods=true)"
same "its rights in the namespace, with the cluster's," "$(rules ClusterRole $name)" \
  "$({ rules Role $name-jobs "${one[@]}"; echo "$cluster"; } | sort)"
same "the rights of an operator for all namespaces" "" "$(rules Role $name-jobs)"
# Leases of nodes are read where they are watched.
same "the rights over leases of nodes" "[leases] [list, watch]" "$(rules Role $name-nodes)"
same "those where they are not watched" "" "$(rules Role $name-nodes --set settings.nodes.lease-grace=0s)"
if render --set settings.nodes.lease-grace=0s | grep -q kube-node-lease; then die "a role in kube-node-lease is for nothing"; fi
# Secrets of others are read only where that is asked for, by name.
secrets="[secrets, serviceaccounts] [get]"
pull=(--set images.pullSecrets=true)
has '^ *pull-secrets = true$' "${pull[@]}"
same "the cluster's rights of an operator that reads pull secrets" \
  "$({ rules ClusterRole $name; echo "$secrets"; } | sort)" "$(rules ClusterRole $name "${pull[@]}")"
same "those of one for one namespace" "$cluster" "$(rules ClusterRole $name "${one[@]}" "${pull[@]}")"
same "its rights in the namespace" "$({ rules Role $name-jobs "${one[@]}"; echo "$secrets"; } | sort)" \
  "$(rules Role $name-jobs "${one[@]}" "${pull[@]}")"
same "the rights of one without agents" "$(rules ClusterRole $name --set gateway.enabled=false)" \
  "$(rules ClusterRole $name --set gateway.enabled=false "${pull[@]}")"
has 'etcd-endpoints = "https://elastic-training-operator-etcd-0\..*:2379"$'
has '--initial-cluster=.*-etcd-2=https://' --set gateway.etcd.replicas=3 --set gateway.etcd.persistence.enabled=true
has 'secretName: mine' --set 'gateway.etcd.external.endpoints={https://e:2379}' --set gateway.etcd.external.secretName=mine
refused --set 'gateway.etcd.external.endpoints={https://e:2379}'
refused --set gateway.etcd.replicas=3
refused --set gateway.etcd.replicas=2 --set gateway.etcd.persistence.enabled=true
refused --set replica=3
refused --set metrics.port=80
refused --set image.digest=sha256:1
refused --set serviceAccount.create=false
refused --kube-version 1.20.0
if render --set replicas=1 | grep -q 'kind: PodDisruptionBudget'; then die "a single replica must have no PodDisruptionBudget"; fi
if render --set gateway.enabled=false | grep -qE 'StatefulSet|tokenreviews|gateway|resources: .secrets'; then die "without the gateway there must be nothing of it"; fi
echo "chart: lint and $((n + 3)) renderings as they must be"
