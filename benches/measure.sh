#!/usr/bin/env bash
# Long measurements on a real control plane: how sizes follow a step of the metric, with many jobs. benches/README.md says
# how to read what is printed.
#   benches/measure.sh [JOBS...]     (1000 5000)
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked -p eto-operator -p eto-e2e --bins
# The agents' connections are files, and a shell's soft limit may be 1024.
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
cargo bench --locked -p eto-gateway --bench fleet
built=${CARGO_TARGET_DIR:-target}/release
export ETO_E2E_OPERATOR=${ETO_E2E_OPERATOR:-$built/elastic-training-operator}
exec "$built/scale" "$@"
