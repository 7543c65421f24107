#!/usr/bin/env bash
# Trainings with an agent on two real nodes: all cases, or those whose name contains one of the words.
#   tests/training.sh [--keep] [WORD...]
#   tests/training.sh --measure [--times N] ...   medians instead, beside torchrun's own elasticity (benches/README.md)
#   tests/training.sh --faults [--times N] [WORD...]        how long each fault takes to be acted on, and to be over
#   tests/training.sh --upgrade COMMIT            an upgrade from an earlier commit while a job trains
# Needs root, and what `tools/setup.sh cluster helm registry` gets; starts and stops its own cluster. ETO_E2E_OPERATOR and
# ETO_E2E_AGENT name binaries that are built already. Frameworks are installed once (tests/training/setup.sh); TENSORFLOW=1
# takes TensorFlow in, 1.5 GB.
set -euo pipefail
. "$(dirname "$0")/../tools/env.sh"
cd "$root"
[ "${1:-}" != --upgrade ] || : "${2:?"--upgrade COMMIT: an earlier commit of this repository"}"
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
more=()
if [ "${1:-}" = --upgrade ]; then
  from=$2
  old=$(mktemp -d)
  trap 'git worktree remove --force "$old" 2>/dev/null; rm -rf "$old"' EXIT
  git worktree add --quiet --detach "$old" "$from"
  earlier=$(realpath -m "$target")/earlier
  (cd "$old" && CARGO_TARGET_DIR=$earlier cargo build --locked -q -p eto-operator)
  more=(--old "$old" --old-operator "$earlier/debug/elastic-training-operator")
  shift 2
fi
export ETO_TRAINING=${TRAINING:-$ETO_CACHE/training}
frameworks=(torch jax)
[ -z "${TENSORFLOW:-}" ] || frameworks+=(tensorflow)
tests/training/setup.sh "${frameworks[@]}" >/dev/null
python3 tests/training/test_curve.py 2>/dev/null || { python3 tests/training/test_curve.py; exit 1; }
main=tests/training/main.py
case ${1:-} in
  --measure) main=tests/training/measure.py; shift ;;
  --faults) main=tests/training/faults.py; shift ;;
esac
[ ${#more[@]} = 0 ] || main=tests/training/upgrade.py
exec 9>/tmp/cluster.lock
flock 9
python3 $main --operator "$ETO_E2E_OPERATOR" --agent "$ETO_E2E_AGENT" "${more[@]}" "$@"
