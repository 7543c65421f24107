#!/usr/bin/env bash
# Installs the operator on a real node as its users do, with Helm and then by the plain manifests, and trains a job of real
# containers with each. The images are made from the binaries as built. Takes about three minutes; prints
# 'N passed, N failed'. Needs root, and what `tools/setup.sh cluster helm` gets; starts and stops its own cluster.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../tools/env.sh"
cd "$root" || exit 1
exec 9>/tmp/cluster.lock
flock 9

tmp=$(mktemp -d)
trap 'tests/cluster/down.sh >/dev/null 2>&1; rm -rf "$tmp"' EXIT
tests/cluster/down.sh >/dev/null 2>&1 # what a killed run may have left
pass=0 fail=0
finish() {
  if [ $fail -gt 0 ]; then
    kubectl get pods -A -o wide
    kubectl -n elastic-system describe pods | tail -n 30
    kubectl -n elastic-system logs -l app.kubernetes.io/name=elastic-training-operator --tail=30 --prefix
  fi
  echo "$pass passed, $fail failed"
  [ $fail = 0 ]
  exit
}
# check NAME COMMAND...: must succeed within two minutes (a kubelet takes over one to hand out a changed ConfigMap);
# what follows rests on it.
check() {
  local name=$1 end=$((SECONDS + 120)) out
  shift
  until out=$("$@" 2>&1); do
    if [ $SECONDS -ge $end ]; then
      fail=$((fail + 1))
      printf 'FAILED  %s: %s\n' "$name" "$out"
      finish
    fi
    sleep 0.5
  done
  pass=$((pass + 1))
  printf 'ok      %s\n' "$name"
}
sh_() { bash -c "$1"; }

bin=${ETO_E2E_OPERATOR:-}
if [ -z "$bin" ]; then
  # shellcheck disable=SC2046
  cargo build -q --locked $(selection eto-operator) || exit 1
  bin=${CARGO_TARGET_DIR:-target}/debug/elastic-training-operator
fi
agent=${ETO_E2E_AGENT:-}
if [ -z "$agent" ]; then
  tools/build-agent.sh >/dev/null || exit 1
  agent=${CARGO_TARGET_DIR:-target}/agent/eto-agent
fi
mkdir -p "$tmp/root/usr/bin" "$tmp/root/usr/share/elastic-training/policies" "$tmp/root/etc/ssl/certs"
cp "$bin" "$tmp/root/usr/bin/"
ldd "$bin" | grep -oE '/[^ )]+' | while read -r lib; do install -D -m 755 "$lib" "$tmp/root$lib"; done
cp target/policies/*.wasm "$tmp/root/usr/share/elastic-training/policies/"
cp /etc/ssl/certs/ca-certificates.crt "$tmp/root/etc/ssl/certs/" 2>/dev/null

NODE_GPUS=0 tests/cluster/up.sh --kubelets 1 >"$tmp/up" 2>&1 || { cat "$tmp/up"; echo "0 passed, 1 failed"; exit 1; }
export KUBECONFIG=${CLUSTER_STATE:-/tmp/k8s-lab}/kubeconfig
tests/cluster/image.sh eto-operator:dev "$tmp/root" /usr/bin/elastic-training-operator >/dev/null || exit 1

check "the CRD is accepted" kubectl apply -f deploy/crds.yaml
check "the chart is accepted" helm upgrade --install elastic-training deploy/chart/elastic-training-operator --namespace elastic-system --create-namespace \
  --set image.repository=localhost/eto-operator --set image.tag=dev --set image.pullPolicy=Never \
  --set settings.evaluation.period=1s --set gateway.enabled=false
kubectl label namespace elastic-system pod-security.kubernetes.io/enforce=restricted >/dev/null
op="kubectl -n elastic-system"

check "two replicas, Running and Ready, under the restricted pod security standard" \
  sh_ "[ \$($op get pods | grep -c '1/1 *Running') = 2 ]"
check "one of them leads" sh_ "$op get lease elastic-training-operator -o jsonpath={.spec.holderIdentity} | grep -q ."
pod_ip() { $op get pods -o jsonpath='{.items[0].status.podIP}'; }
check "metrics on the one port" sh_ "curl -sf -m 5 http://$(pod_ip):8080/metrics | grep -q '^eto_leader'"
check "no restarts" sh_ "[ \"\$($op get pods -o jsonpath='{.items[*].status.containerStatuses[0].restartCount}')\" = '0 0' ]"

cat >"$tmp/job.yaml" <<'Y'
apiVersion: elastic.ai/v1alpha1
kind: ElasticJob
metadata: {name: real}
spec:
  replicas: 2
  maxReplicas: 3
  template:
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: worker
        image: localhost/busybox:1
        imagePullPolicy: Never
        command: [/bin/sh, -c, 'echo "rank $RANK of $WORLD_SIZE at $MASTER_ADDR"; df /dev/shm | tail -1; trap "exit 143" TERM; while :; do sleep 1; done']
Y
check "a job is taken" kubectl apply -f "$tmp/job.yaml"
check "its workers run as containers" sh_ "[ \$(kubectl get pods -l elastic-job=real | grep -c '1/1 *Running') = 2 ]"
check "each knows its rank and the world" \
  sh_ "kubectl logs -l job-name=real --tail=-1 | grep -E '^rank [01] of 2 at .+' | sort -u | wc -l | grep -qx 2"
check "resized by hand" kubectl patch elasticjob real --type=merge -p '{"spec":{"replicas":3}}'
check "three workers in a new round" sh_ "kubectl logs -l job-name=real --tail=-1 | grep -c '^rank [012] of 3' | grep -qx 3"
check "shown by kubectl get" sh_ "kubectl get elasticjobs real | grep -E 'Running +3 +3'"

# A policy of one's own, by ConfigMap; the kubelet hands it over.
if [ -e target/policies/target-tracking.wasm ]; then
  cp target/policies/target-tracking.wasm "$tmp/mine.wasm"
  check "a ConfigMap of policies is made" \
    sh_ "$op create configmap elastic-training-policies --from-file=mine.wasm=$tmp/mine.wasm"
  check "and is served without a restart" \
    sh_ "$op logs -l app.kubernetes.io/name=elastic-training-operator --tail=-1 | grep 'policy served' | grep -q '\"mine\"'"
fi

check "deleted with all that is its own" \
  sh_ "kubectl delete elasticjob real --wait --timeout=50s; [ -z \"\$(kubectl get pods,services -l elastic-job=real -o name)\" ]"
check "uninstalled" helm uninstall elastic-training --namespace elastic-system --wait
check "with its namespace" kubectl delete namespace elastic-system --ignore-not-found --wait --timeout=60s

# The plain manifests, as the guide has them: nothing is changed in them, the images that they name are here.
image=tests/cluster/image.sh
mkdir "$tmp/agent" && install -m 755 "$agent" "$tmp/agent/eto-agent"
etcd=$(. tests/cluster/env.sh && echo "$BIN/etcd")
IMAGE_USER=65532:65532 $image eto-agent:dev "$tmp/agent" /eto-agent >/dev/null || exit 1
$image etcd:dev "$etcd" >/dev/null || exit 1
named() { grep -oE "[^ \"]*/$1:[^ \"]+" deploy/operator.yaml | sort -u; } # the one image of this name there
$image --tag eto-operator:dev "$(named elastic-training-operator)" || exit 1
$image --tag eto-agent:dev "$(named elastic-training-agent)" || exit 1
$image --tag etcd:dev "$(named etcd)" || exit 1

check "kubectl apply -f crds.yaml" kubectl apply -f deploy/crds.yaml
check "kubectl apply -f operator.yaml" kubectl apply -f deploy/operator.yaml
check "applied once more, nothing changes" sh_ "! kubectl apply -f deploy/operator.yaml | grep -v unchanged"
check "the operator and its etcd are Running and Ready" sh_ "[ \$($op get pods | grep -c '1/1 *Running') = 2 ]"
check "a job is taken" kubectl apply -f "$tmp/job.yaml"
check "an agent drives its rounds" kubectl wait --for=condition=AgentRounds elasticjob/real --timeout=10s
check "two workers train" kubectl wait --for=condition=Running elasticjob/real --timeout=10s
check "each knows its rank and the world" \
  sh_ "kubectl logs -l job-name=real --tail=-1 | grep -E '^rank [01] of 2 at .+' | sort -u | wc -l | grep -qx 2"
pods() { kubectl get pods -l elastic-job=real -o name | sort; }
before=$(pods)
check "scaled by hand" kubectl scale elasticjob real --replicas=3
check "three workers in a new round" sh_ "kubectl logs -l job-name=real --tail=-1 | grep -c '^rank [012] of 3' | grep -qx 3"
check "in the pods that were there, and one more" [ "$(comm -12 <(echo "$before") <(pods) | wc -l)/$(pods | wc -l)" = 2/3 ]
address=$($op get pods -l app.kubernetes.io/name=elastic-training-operator -o jsonpath='{.items[0].status.podIP}')
check "the operator was refused nothing" \
  sh_ "page=\$(curl -sf -m 5 http://$address:8080/metrics) && ! grep 'code=\"403\"' <<<\"\$page\""
check "deleted with its pods" \
  sh_ "kubectl delete elasticjob real --wait --timeout=50s; [ -z \"\$(kubectl get pods,services -l elastic-job=real -o name)\" ]"
check "kubectl delete -f operator.yaml" kubectl delete -f deploy/operator.yaml --wait --timeout=90s

finish
