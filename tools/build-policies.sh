#!/usr/bin/env bash
# Builds the policies that come with the product, for wasm, into ${ETO_POLICIES_OUT:-target/policies}/NAME.wasm.
# They are core modules with a component-type section; the operator makes components of them when it loads them.
# Quick when nothing changed. Honours CARGO_TARGET_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
unset RUSTUP_TOOLCHAIN CARGO RUSTC # set by an outer cargo when a test runs this
OUT=${ETO_POLICIES_OUT:-target/policies}
TOOLCHAIN=$(tools/wasm-toolchain.sh)
TARGET_DIR=${CARGO_TARGET_DIR:-target}
names=() packages=()
for manifest in policies/*/Cargo.toml; do
  grep -q cdylib "$manifest" || continue
  name=$(basename "$(dirname "$manifest")")
  names+=("$name") packages+=(-p "policy-$name")
done

if [ ! -e "$TARGET_DIR/wasm32-unknown-unknown/policy" ]; then
  echo "policies: the first build takes a few minutes" >&2
fi

# One set of features per package, whatever the caller asked for: a guest must not depend on who builds it.
# The flags are those of .cargo/config.toml, with this machine's paths taken out of panic messages.
SRC=$(pwd)
env -u CARGO_UNSTABLE_FEATURE_UNIFICATION -u CARGO_RESOLVER_FEATURE_UNIFICATION -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS \
  CARGO_ENCODED_RUSTFLAGS="-Clink-arg=-zstack-size=65536"$'\x1f'"--remap-path-prefix=$SRC="$'\x1f'"--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
  cargo "+$TOOLCHAIN" build --quiet --profile policy --target wasm32-unknown-unknown "${packages[@]}"

mkdir -p "$OUT"
for name in "${names[@]}"; do
  built=$TARGET_DIR/wasm32-unknown-unknown/policy/policy_${name//-/_}.wasm
  # Replaced by rename, and only if it differs: an operator may be watching the directory.
  if ! cmp -s "$built" "$OUT/$name.wasm"; then
    cp "$built" "$OUT/.$name.wasm.new" && mv "$OUT/.$name.wasm.new" "$OUT/$name.wasm"
  fi
done
