#!/usr/bin/env bash
# How long training stands still for a resize or a loss: medians on two real nodes, beside torchrun's own elasticity in
# the same run. benches/README.md says how to read what is printed; the table is also left in target/measure/training.md.
#   benches/training.sh [--times N] [--nodes N] [--slow N]
#   benches/training.sh --faults [--times N] [WORD...]      the table of faults (docs/faults.md) instead
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
if [ -z "${ETO_E2E_OPERATOR:-}" ]; then
  cargo build --release --locked -p eto-operator
  export ETO_E2E_OPERATOR=$target/release/elastic-training-operator
fi
if [ "${1:-}" = --faults ]; then exec tests/training.sh "$@"; fi
exec tests/training.sh --measure --write "$target/measure" "$@"
