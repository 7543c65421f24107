#!/usr/bin/env bash
# Builds the policies that come with the product, for wasm, into ${ETO_POLICIES_OUT:-target/policies}/NAME.wasm, and the
# guests of the tests (tests/guests) into its folder `guests`, which nobody serves.
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
guests=()
for manifest in tests/guests/*/Cargo.toml; do
  [ -e "$manifest" ] || continue # the image is built without the tests
  name=$(basename "$(dirname "$manifest")")
  guests+=("$name") packages+=(-p "guest-$name")
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

# take CRATE FILE: replaced by rename, and only if it differs: an operator may be watching the directory.
take() {
  local built=$TARGET_DIR/wasm32-unknown-unknown/policy/${1//-/_}.wasm
  cmp -s "$built" "$2" && return
  mkdir -p "$(dirname "$2")"
  cp "$built" "$2.new" && mv "$2.new" "$2"
}
for name in "${names[@]}"; do take "policy-$name" "$OUT/$name.wasm"; done
for name in "${guests[@]}"; do take "guest-$name" "$OUT/guests/$name.wasm"; done
