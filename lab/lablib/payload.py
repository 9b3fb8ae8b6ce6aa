"""Programs for the machines: static binaries of Rust crates, built into the cache with a target directory of their own."""

import os
import shutil
import subprocess
from pathlib import Path

from . import cache
from .errors import LabError, tail

LAB = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
STATIC = "-C target-feature=+crt-static"


def build(names: list[str], manifest: Path = LAB.parent / "Cargo.toml") -> list[Path]:
    """Builds these binaries of the workspace (release, static glibc) and returns where they are."""
    if not shutil.which("cargo"):
        raise LabError("no cargo: install Rust to build payloads")
    target_dir = cache.root() / "payload-target" / cache.fingerprint(str(manifest.resolve()))
    argv = ["cargo", "build", "--quiet", "--release", "--locked", "--target", TARGET, "--manifest-path", str(manifest),
            "--target-dir", str(target_dir)]
    for name in names:
        argv += ["--bin", name]
    flags = f"{os.environ.get('RUSTFLAGS', '')} {STATIC}".strip()
    # An explicit --target keeps the flags away from build scripts and proc macros, which cannot be static.
    done = subprocess.run(argv, env={**os.environ, "RUSTFLAGS": flags}, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"cargo build {' '.join(names)} failed:\n{tail(done.stderr, 40)}")
    found = []
    for name in names:
        binary = target_dir / TARGET / "release" / name
        if b"/ld-linux" in interpreter(binary):
            raise LabError(f"{binary} is not static: it names a dynamic loader")
        found.append(stripped(binary))
    return found


def stripped(binary: Path) -> Path:
    """A copy without debug information: what travels into an initramfs should be small."""
    directory = cache.root() / "payload"
    directory.mkdir(exist_ok=True)
    copy = directory / binary.name
    part = directory / f"{binary.name}.{os.getpid()}"
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", "-o", part, binary], check=True)
    else:
        shutil.copy(binary, part)
    part.rename(copy)
    return copy


def interpreter(binary: Path) -> bytes:
    """The PT_INTERP entry of an x86-64 ELF file; empty for a static one."""
    data = binary.read_bytes()
    offset = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    for header in (data[offset + i * size:offset + (i + 1) * size] for i in range(count)):
        if int.from_bytes(header[:4], "little") == 3:
            start, length = int.from_bytes(header[8:16], "little"), int.from_bytes(header[32:40], "little")
            return data[start:start + length]
    return b""


def lab_tools() -> Path:
    """Our own program for the inside."""
    return build(["lab-tools"], LAB / "tools/Cargo.toml")[0]
