#!/usr/bin/env bash
# The examples train with real frameworks, as processes of this machine (no cluster): frameworks.sh [TEST...]
# The frameworks' environments are made once (tests/training/setup.sh) and kept. TENSORFLOW=1 takes TensorFlow in, 1.5 GB.
set -euo pipefail
. "$(dirname "$0")/../tools/env.sh"
cd "$root"
frameworks=(torch jax)
skip=(--skip tensorflow)
[ -z "${TENSORFLOW:-}" ] || frameworks+=(tensorflow) skip=()
export ETO_TRAINING=${TRAINING:-$ETO_CACHE/training}
tests/training/setup.sh "${frameworks[@]}" >/dev/null
# shellcheck disable=SC2046
cargo build --locked -q $(selection eto-cli)
export ETO_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/eto
of=(-p eto-e2e)
[ -z "${ETO_WHOLE:-}" ] || of=(--workspace)
# Two at a time: they wait as much as they compute.
cargo test --locked -q "${of[@]}" --test frameworks -- --test-threads 2 "${skip[@]}" "$@"
of=(-p eto-agent)
[ -z "${ETO_WHOLE:-}" ] || of=(--workspace)
exec cargo test --locked -q "${of[@]}" --test torchrun -- --test-threads 1 "$@"
