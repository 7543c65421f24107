#!/usr/bin/env python3
"""Lets a PyTorch wheel that was built for NVIDIA GPUs be imported where no NVIDIA library is installed.

    gpu_stubs.py SITE_PACKAGES/torch

The wheel links against CUDA's libraries, a few gigabytes that a test on CPUs has no use for. For each library that is
missing, a tiny one of the same name is built whose functions answer "no device", which torch takes as a machine
without a GPU. The GPU code inside torch's own libraries is then never read and gives its disk space back.

For tests alone: an image for training gets a CPU wheel, or the real libraries. Needs gcc, binutils and util-linux.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Libraries of NVIDIA: CUDA's runtime and driver, the mathematical ones, NCCL, NVSHMEM.
FOREIGN = re.compile(r"lib(cu|nv|nccl)[\w.+-]*\.so[\d.]*")
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE
TEXT = re.compile(r"(ErrorString|ErrorName|GetErrorString|GetStatusString)$")


def output(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def needed(library):
    """Names of the libraries that this one is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", output("readelf", "-dW", library))


def dynamic_symbols(library, which):
    """(type, name, version) of the symbols of the dynamic table; the version is "" where there is none."""
    for line in output("nm", "-D", which, "--with-symbol-versions", library).splitlines():
        parts = line.split()
        if len(parts) >= 2:
            name, _, version = parts[-1].partition("@")
            yield parts[-2], name, version.lstrip("@")


def resolved(library):
    """Paths of the system's libraries that the loader finds for this one."""
    return re.findall(r"=> (/\S+)", output("ldd", library))


def owner(symbol, libraries):
    """Which library a symbol without a version belongs to: the longest name that it begins with."""
    fits = [m for m in libraries if symbol.lower().startswith(re.sub(r"\.so.*", "", m)[3:].lower())]
    return max(fits, key=len, default=libraries[0])


def missing_symbols(libraries, absent):
    """{absent library: {symbol: version node}}"""
    present = {p for library in libraries for p in resolved(library) if not FOREIGN.fullmatch(pathlib.Path(p).name)}
    defined = {n for p in [*libraries, *present] for _, n, _ in dynamic_symbols(p, "--defined-only")}
    wanted = {name: {} for name in absent}
    for library in libraries:
        for kind, name, version in dynamic_symbols(library, "--undefined-only"):
            if kind in "wv" or name in defined:
                continue
            if version in wanted:
                wanted[version][name] = version
            elif re.match(r"cu|nccl|nv", name):
                wanted[owner(name, absent)][name] = version
    return wanted


def build(path, symbols):
    """A library of this name with these functions."""
    body = ["#define STUB(name) long name(void) { return %d; }" % NO_DEVICE,
            '#define WORDS(name) const char *name(void) { return "no GPU here"; }']
    body += ["%s(%s)" % ("WORDS" if TEXT.search(name) else "STUB", name) for name in sorted(symbols)]
    versions = sorted(set(symbols.values()) - {""})
    script = "".join("%s { global: %s };\n" % (v, " ".join(n + ";" for n in sorted(symbols) if symbols[n] == v))
                     for v in versions)
    with tempfile.TemporaryDirectory() as folder:
        source, exports = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "exports")
        source.write_text("\n".join(body) + "\n")
        exports.write_text(script)
        with_versions = ["-Wl,--version-script=%s" % exports] if script else []
        output("gcc", "-shared", "-fPIC", "-nostdlib", "-w", "-Wl,-soname," + path.name, "-o", path, source, *with_versions)


def punch(library):
    """Gives back the disk space of the GPU code in a library; it reads as zeros afterwards."""
    for offset, size in re.findall(r"\.nv_fatbin\s+PROGBITS\s+\S+\s+(\S+)\s+(\S+)", output("readelf", "-SW", library)):
        if int(size, 16) > 0:
            output("fallocate", "--punch-hole", "--offset", int(offset, 16), "--length", int(size, 16), library)


def main(torch):
    folder = pathlib.Path(torch, "lib")
    own = [p for p in [*folder.glob("*.so*"), *pathlib.Path(torch).glob("_C*.so")] if not FOREIGN.fullmatch(p.name)]
    if not own:
        sys.exit("%s holds no libraries: is it the torch folder of site-packages?" % folder)
    absent = sorted({n for p in own for n in needed(p) if FOREIGN.fullmatch(n)})
    if not absent:
        print("nothing to do: this torch needs no GPU library")
        return
    for name, symbols in missing_symbols(own, absent).items():
        build(folder / name, symbols)
    for library in folder.glob("libtorch_cuda*.so"):
        punch(library)
    print("%d libraries stand in for those of the GPU" % len(absent))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
