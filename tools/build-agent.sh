#!/usr/bin/env bash
# Builds the in-pod agent for this machine's architecture: one static file, since it runs in images of any making.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"

# A target of its own name keeps the flags away from build scripts and macros, which can't be static.
target=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS='-C target-feature=+crt-static' cargo build --locked --profile agent --target "$target" -p eto-agent
out=${CARGO_TARGET_DIR:-target}
mkdir -p "$out/agent"
install -m 0755 "$out/$target/agent/eto-agent" "$out/agent/eto-agent"
say "$out/agent/eto-agent: $(stat -c %s "$out/agent/eto-agent") bytes"
