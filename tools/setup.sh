#!/usr/bin/env bash
# Gets what a step needs of the machine: setup.sh WHAT...
#   wasm        a Rust toolchain that can build wasm32-unknown-unknown (policies)
#   python      Python 3 (the demo's training program)
#   protoc      the protocol buffers compiler, which the build of the etcd client needs (everything but guests)
#   etcd        etcd, built from its Go module (gateway tests)
#   registry    an image registry, from the distribution's packages (tests that read images)
#   prometheus  Prometheus, from the distribution's packages (signal tests)
#   faketime    a clock that is wrong for one program (measure-faults)
#   cluster     Kubernetes built from its Go modules (end-to-end tests); CLUSTER=--control-plane leaves out real nodes
#   helm        helm, built from its Go module (chart)
#   deny        cargo-deny, built from crates.io (dependency checks)
# What is there already is kept. Packages need root and apt; elsewhere, install what the message names.
set -euo pipefail
. "$(dirname "$0")/env.sh"

apt_get() {
  local need=() p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || need+=("$p")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "install ${need[*]} (this machine has no apt)"
  [ "$(id -u)" = 0 ] || die "install ${need[*]}: sudo apt-get install ${need[*]}"
  local t=$SECONDS
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "${need[@]}" >/dev/null
  say "installed ${need[*]} in $((SECONDS - t)) s"
}

need_go() {
  local v
  v=$(go env GOVERSION 2>/dev/null) || v=go0
  [ "$(printf '%s\n' "go$GO_NEEDED" "$v" | sort -V | head -n 1)" = "go$GO_NEEDED" ] || fetch_go "${v/go0/none}"
}

# Go publishes its toolchains as modules too: wherever the modules of etcd and Kubernetes come from, one can be had.
fetch_go() {
  local arch sum zip t=$SECONDS proxy=${GOPROXY:-https://proxy.golang.org}
  case $(uname -m) in
    x86_64) arch=amd64 sum=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
    aarch64) arch=arm64 sum=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
    *) die "Go $GO_NEEDED or newer is needed (this machine has: $1): https://go.dev/dl" ;;
  esac
  command -v curl >/dev/null || apt_get curl ca-certificates
  command -v python3 >/dev/null || apt_get python3
  say "getting Go $GO_VERSION (this machine has: $1) ..."
  mkdir -p "$ETO_CACHE/bin"
  zip=$(mktemp -d "$ETO_CACHE/go.XXXXXX")
  curl -fsSL --retry 3 -o "$zip/go.zip" "${proxy%%[,|]*}/golang.org/toolchain/@v/v0.0.1-go$GO_VERSION.linux-$arch.zip" &&
    echo "$sum  $zip/go.zip" | sha256sum --check --quiet && python3 -m zipfile -e "$zip/go.zip" "$zip" ||
    { rm -rf "$zip"; die "Go $GO_VERSION can't be had from ${proxy%%[,|]*}: install Go $GO_NEEDED or newer, https://go.dev/dl"; }
  rm -rf "$ETO_CACHE/go"
  mv "$zip/golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$arch" "$ETO_CACHE/go"
  rm -rf "$zip"
  chmod +x "$ETO_CACHE"/go/bin/* "$ETO_CACHE"/go/pkg/tool/*/* # a module's files are not executable
  ln -sf ../go/bin/go "$ETO_CACHE/bin/go"
  say "got $(go version) in $((SECONDS - t)) s"
}

setup_wasm() {
  local log name
  log=$(mktemp)
  name=$("$root/tools/wasm-toolchain.sh" 2>"$log") || { cat "$log" >&2; rm -f "$log"; die "no toolchain for wasm32-unknown-unknown"; }
  rm -f "$log"
  say "wasm toolchain: $name"
}

setup_protoc() {
  # Where protoc came some other way, its own includes are beside it.
  [ -z "${PROTOC:-}" ] || return 0
  local at
  at=$(command -v protoc) && [ -e "$(dirname "$at")/../include/google/protobuf/descriptor.proto" ] ||
    apt_get protobuf-compiler libprotobuf-dev
}

setup_etcd() {
  [ -z "${ETO_ETCD:-}" ] || return 0
  need_go
  "$root/tests/cluster/build.sh" --etcd >&2
}

setup_prometheus() {
  command -v prometheus >/dev/null || apt_get prometheus
}

setup_registry() {
  command -v docker-registry >/dev/null || apt_get docker-registry
}

setup_faketime() {
  apt_get libfaketime
}

setup_python() {
  command -v python3 >/dev/null || apt_get python3
}

setup_cluster() {
  need_go
  command -v kubectl >/dev/null || build_kubectl
  command -v openssl >/dev/null && command -v ip >/dev/null && command -v curl >/dev/null || apt_get openssl iproute2 curl
  # shellcheck disable=SC2086
  "$root/tests/cluster/build.sh" ${CLUSTER:-} >&2
}

build_kubectl() {
  local t=$SECONDS
  mkdir -p "$ETO_CACHE/bin"
  (cd "$root/tests/cluster/src" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$ETO_CACHE/bin/kubectl" k8s.io/kubernetes/cmd/kubectl)
  say "built kubectl in $((SECONDS - t)) s"
}

setup_helm() {
  [ "$(helm version --template '{{.Version}}' 2>/dev/null)" != "$HELM_VERSION" ] || return 0
  [ ! -x "$ETO_CACHE/bin/helm" ] || [ "$(cat "$ETO_CACHE/bin/helm.version" 2>/dev/null)" != "$HELM_VERSION" ] || return 0
  need_go
  local t=$SECONDS
  say "building helm $HELM_VERSION ..."
  CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOBIN=$ETO_CACHE/bin go install -trimpath -ldflags '-s -w' "helm.sh/helm/v3/cmd/helm@$HELM_VERSION"
  echo "$HELM_VERSION" >"$ETO_CACHE/bin/helm.version"
  say "built helm in $((SECONDS - t)) s"
}

setup_deny() {
  [ "$(cargo deny --version 2>/dev/null)" != "cargo-deny $DENY_VERSION" ] || return 0
  local t=$SECONDS
  say "building cargo-deny $DENY_VERSION ..."
  # Its run takes a second either way; an unoptimised build takes a fraction of the time.
  CARGO_TARGET_DIR=$ETO_CACHE/cargo-deny-build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=0 \
    cargo install -q --locked --profile dev --root "$ETO_CACHE" "cargo-deny@$DENY_VERSION"
  rm -rf "$ETO_CACHE/cargo-deny-build"
  say "built cargo-deny in $((SECONDS - t)) s"
}

[ $# -gt 0 ] || { sed -n "2,14p" "$0"; exit 2; }
for what in "$@"; do
  case $what in
    wasm | python | protoc | etcd | registry | prometheus | faketime | cluster | helm | deny) "setup_$what" ;;
    *) die "unknown: $what" ;;
  esac
done
