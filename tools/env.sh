# Names shared by the scripts of tools/; sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# What outlives a checkout: tools built from source. Cluster binaries have a cache of their own (tests/cluster/env.sh).
ETO_CACHE=${ETO_CACHE:-$HOME/.cache/elastic-training-operator}
HELM_VERSION=v3.22.0
DENY_VERSION=0.20.2
# Oldest Go that builds etcd and Kubernetes, and the one that is got where there is none.
GO_NEEDED=1.25
GO_VERSION=1.26.8
PATH=$ETO_CACHE/bin:$PATH
export PATH

# What to tell cargo to build: the packages named, or with ETO_WHOLE=1 (as CI sets it) the whole workspace with its tests.
# Cargo unites the features of what it builds together, so with one selection everywhere nothing is built twice.
selection() {
  if [ -n "${ETO_WHOLE:-}" ]; then echo --workspace --all-targets; else printf -- '-p %s ' "$@"; fi
}

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
die() { say "$@"; exit 1; }
