#!/usr/bin/env bash
# Tests on a real control plane: all cases, or those whose name contains one of the words.
#   tests/e2e.sh [WORD...]     --list shows the names
# ETO_E2E_CLUSTER=keep leaves the cluster running and uses it again; ETO_E2E_AT_ONCE=N runs N cases side by side
# (default 6); ETO_E2E_AWAY=SECONDS sets how long the API server is away where it is (default 60).
set -euo pipefail
. "$(dirname "$0")/../tools/env.sh"
cd "$root"
# shellcheck disable=SC2046
cargo build --locked -q $(selection eto-operator)
of=(-p eto-e2e)
[ -z "${ETO_WHOLE:-}" ] || of=(--workspace)
exec cargo test --locked -q "${of[@]}" --test e2e -- "$@"
