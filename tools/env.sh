# Names shared by the scripts of tools/; sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# What outlives a checkout: tools built from source. Cluster binaries have a cache of their own (tests/cluster/env.sh).
ETO_CACHE=${ETO_CACHE:-$HOME/.cache/elastic-training-operator}
HELM_VERSION=v3.22.0
DENY_VERSION=0.20.2
GO_NEEDED=1.25
PATH=$ETO_CACHE/bin:$PATH
export PATH

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
die() { say "$@"; exit 1; }
