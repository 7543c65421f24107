#!/usr/bin/env bash
# The demo: real training on this machine, grown, shrunk and given a new policy while it runs. --check does the same
# without a terminal and says what happened. `make demo` and `make demo-check` build the policies first.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"
command -v python3 >/dev/null || { echo "the demo trains with python3, which is not installed: apt install python3" >&2; exit 1; }
if [ -z "${ETO:-}" ]; then
  # shellcheck disable=SC2046
  ${CARGO:-cargo} build --quiet --locked $(selection eto-cli)
  ETO=${CARGO_TARGET_DIR:-target}/debug/eto
fi
exec python3 tools/demo.py --eto "$ETO" --policies "${ETO_POLICIES_OUT:-target/policies}" "$@"
