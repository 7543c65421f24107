#!/usr/bin/env bash
# Tests on a real control plane: all cases, or those whose name contains one of the words.
#   tests/e2e.sh [WORD...]     --list shows the names
# ETO_E2E_CLUSTER=keep leaves the cluster running and uses it again.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --locked -q -p eto-operator
exec cargo test --locked -q -p eto-e2e --test e2e -- "$@"
