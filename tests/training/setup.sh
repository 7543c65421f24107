#!/usr/bin/env bash
# Python environments with real frameworks, for the tests that train: setup.sh torch|jax|tensorflow...
# Each is a virtual environment of the system's own Python in $TRAINING/NAME, made once and kept. Pods on this machine's
# kubelets use it in place (the folder and the system's /usr mounted), so that no image has to be built and imported.
# Prints the path of each environment's Python.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../tools/env.sh"
TRAINING=${TRAINING:-$ETO_CACHE/training}
# Pods mount /usr, so it must be the Python that lives there.
python=/usr/bin/python3

# Versions that the tests were written for. The stand-ins for GPU libraries depend on torch's version.
TORCH=(torch==2.15.0)
TORCH_NEEDS=(typing_extensions filelock sympy mpmath networkx jinja2 MarkupSafe fsspec numpy setuptools)
JAX=(jax==0.10.2 jaxlib==0.10.2)
TENSORFLOW=(tensorflow-cpu==2.21.0)

say() { printf 'training setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 && return
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || die "install $package"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends "$package" >/dev/null
}

# pip of any Python can install into another one's environment. The bytecode is made once, here: without it each import
# of torch takes half a minute of CPU where Python may not write it.
pip_into() {
  local venv=$1
  shift
  local pip=python3
  python3 -m pip --version >/dev/null 2>&1 || pip=$python
  "$pip" -m pip --python "$venv/bin/python" --disable-pip-version-check install --quiet --compile --no-cache-dir "$@"
}

# make NAME STAMP INSTALL: the environment is moved into place when it is whole, so a try cut short leaves nothing.
make_venv() {
  local name=$1 stamp=$2 t=$SECONDS
  local dest=$TRAINING/$name
  if [ "$(cat "$dest/stamp" 2>/dev/null)" != "$stamp" ]; then
    say "making $name ($stamp) ..."
    rm -rf "$dest"
    mkdir -p "$dest"
    "$python" -m venv --without-pip --symlinks "$dest"
    "install_$name" "$dest"
    prune "$dest"
    "try_$name" "$dest" >&2 || die "$name was installed into $dest, but does not work"
    echo "$stamp" >"$dest/stamp"
    say "$name: $(du -sh "$dest" | cut -f1) in $((SECONDS - t)) s"
  fi
  echo "$dest/bin/python"
}

site() { echo "$1"/lib/python3.*/site-packages; }

# TensorFlow's public names include modules called `test`.
prune() {
  # shellcheck disable=SC2046
  find $(site "$1") -type d \( -name tests -o -name test \) -path '*/site-packages/*' ! -path '*/testing/*' \
    ! -path '*/tensorflow/*' ! -path '*/keras/*' -prune -exec rm -rf {} + || true
}

install_torch() {
  local torch
  pip_into "$1" --no-deps "${TORCH[@]}" "${TORCH_NEEDS[@]}"
  torch=$(site "$1")/torch
  rm -rf "$torch"/include "$torch"/share "$torch"/bin/protoc*
  "$python" "$here/gpu_stubs.py" "$torch" >&2
}
try_torch() {
  "$1/bin/python" - <<'PY'
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
x = torch.ones(3)
dist.all_reduce(x)
assert x.sum() == 3 and not torch.cuda.is_available()
torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1).step()
print("torch", torch.__version__, "works on CPUs with gloo")
PY
}

install_jax() { pip_into "$1" "${JAX[@]}"; }
try_jax() {
  JAX_PLATFORMS=cpu "$1/bin/python" -c 'import jax, jax.numpy as n; assert n.ones(3).sum() == 3; print("jax", jax.__version__, "works")'
}

install_tensorflow() { pip_into "$1" "${TENSORFLOW[@]}"; }
try_tensorflow() {
  TF_CPP_MIN_LOG_LEVEL=2 "$1/bin/python" -c 'import tensorflow as t; assert t.reduce_sum(t.ones(3)) == 3; print("tensorflow", t.__version__, "works")'
}

[ $# -gt 0 ] || { sed -n '2,5p' "$0"; exit 2; }
[ -x $python ] || need python3 test -x $python
need python3-venv "$python" -c 'import venv'
python3 -m pip --version >/dev/null 2>&1 || need python3-pip "$python" -m pip --version
mkdir -p "$TRAINING"
exec 9>"$TRAINING/.lock"
flock 9
for what in "$@"; do
  case $what in
    torch)
      need gcc gcc --version
      need binutils readelf --version
      make_venv torch "${TORCH[*]} $(sha256sum <"$here/gpu_stubs.py" | cut -c1-12)"
      ;;
    jax) make_venv jax "${JAX[*]}" ;;
    tensorflow) make_venv tensorflow "${TENSORFLOW[*]}" ;;
    *) die "unknown: $what (torch, jax or tensorflow)" ;;
  esac
done
