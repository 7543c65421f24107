#!/usr/bin/env bash
# Long measurements on a real control plane: how sizes follow a step of the metric, with many jobs. benches/README.md says
# how to read what is printed.
#   benches/measure.sh [JOBS...]     (1000 5000)
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked -p eto-operator -p eto-e2e --bins
built=${CARGO_TARGET_DIR:-target}/release
export ETO_E2E_OPERATOR=${ETO_E2E_OPERATOR:-$built/elastic-training-operator}
exec "$built/scale" "$@"
