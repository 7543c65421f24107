#!/usr/bin/env bash
# Trainings with an agent on two real nodes: all cases, or those whose name contains one of the words.
#   tests/training.sh [--keep] [WORD...]
# Needs root, and what `tools/setup.sh cluster helm` gets; starts and stops its own cluster. ETO_E2E_OPERATOR and
# ETO_E2E_AGENT name binaries that are built already.
set -euo pipefail
. "$(dirname "$0")/../tools/env.sh"
cd "$root"
target=${CARGO_TARGET_DIR:-target}
if [ -z "${ETO_E2E_OPERATOR:-}" ]; then
  # shellcheck disable=SC2046
  cargo build --locked -q $(selection eto-operator)
  ETO_E2E_OPERATOR=$target/debug/elastic-training-operator
fi
if [ -z "${ETO_E2E_AGENT:-}" ]; then
  tools/build-agent.sh
  ETO_E2E_AGENT=$target/agent/eto-agent
fi
exec 9>/tmp/cluster.lock
flock 9
python3 tests/training/main.py --operator "$ETO_E2E_OPERATOR" --agent "$ETO_E2E_AGENT" "$@"
