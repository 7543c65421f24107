#!/usr/bin/env bash
# The generated files of the repository: generate.sh write | check
#   deploy/crds.yaml            from the types of core/api, by `eto crd`
#   deploy/chart/.../crds/      a copy, for Helm
#   deploy/operator.yaml        from the chart
#   docs/settings.md            from the operator's own help
# `check` writes nothing and fails with the difference.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"

mode=${1:-}
[ "$mode" = write ] || [ "$mode" = check ] || { sed -n '2,7p' "$0"; exit 2; }
chart=deploy/chart/elastic-training-operator
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# put FILE: takes standard input as what FILE must be.
put() {
  cat >"$tmp/new"
  [ -s "$tmp/new" ] || die "$1: nothing was generated"
  if [ "$mode" = check ]; then
    diff -u --label "$1" --label "$1 (generated)" "$1" "$tmp/new" >"$tmp/diff" 2>&1 || { head -n 40 "$tmp/diff"; touch "$tmp/bad"; }
  elif ! cmp -s "$tmp/new" "$1"; then
    mkdir -p "$(dirname "$1")"
    cp "$tmp/new" "$1"
    say "wrote $1"
  fi
}

made="made by \`make generate\`; do not edit"
# shellcheck disable=SC2046
cargo build -q --locked $(selection eto-cli eto-operator)
bin=${CARGO_TARGET_DIR:-target}/debug

"$bin/eto" crd >"$tmp/crds"
{ echo "# The custom resources; $made."; cat "$tmp/crds"; } | put deploy/crds.yaml
put "$chart/crds/elasticjobs.yaml" <"$tmp/crds"
size=$(wc -c <"$tmp/crds")
# kubectl apply keeps the object in an annotation, which may have 256 KiB.
[ "$size" -lt 262144 ] || die "the CRDs are $size bytes; over 262144 plain \`kubectl apply\` fails"

{
  echo "# The operator with one replica, in its own namespace; $made (from $chart)."
  helm template elastic-training "$chart" --kube-version 1.35.0 --namespace elastic-system \
    --set createNamespace=true --set replicas=1 |
    sed -E '/^# Source: /d; /^ +helm.sh\/chart: /d; s/^( +app.kubernetes.io\/managed-by: )Helm$/\1kubectl/'
} | put deploy/operator.yaml

tools/settings-doc.sh "$bin/elastic-training-operator" "$made" | put docs/settings.md

[ ! -e "$tmp/bad" ] || die "run \`make generate\` and commit what it writes"
[ "$mode" = write ] || echo "generate: all files are what \`make generate\` writes"
