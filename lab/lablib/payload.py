"""Programs for the machines: static binaries of Rust crates, built into the cache with a target directory of their own."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from . import cache
from .arch import AMD64, Arch
from .errors import LabError, tail

LAB = Path(__file__).resolve().parent.parent
STATIC = "-C target-feature=+crt-static"


def cargo(arch: Arch, command: list[str], manifest: Path) -> tuple[str, Path]:
    """Runs cargo for static programs of an architecture, and returns its output and the folder of the target."""
    if not shutil.which("cargo"):
        raise LabError("no cargo: install Rust to build payloads")
    target_dir = cache.root() / "payload-target" / cache.fingerprint(str(manifest.resolve()))
    argv = [LAB.parent / "scripts/target-env", arch.rust_target, "cargo", *command, "--quiet", "--locked",
            "--target", arch.rust_target, "--manifest-path", str(manifest), "--target-dir", str(target_dir)]
    flags = f"{os.environ.get('RUSTFLAGS', '')} {STATIC}".strip()
    # An explicit --target keeps the flags away from build scripts and proc macros, which cannot be static.
    done = subprocess.run(argv, env={**os.environ, "RUSTFLAGS": flags}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"cargo {' '.join(command)} failed:\n{tail(done.stderr, 40)}")
    return done.stdout, target_dir / arch.rust_target


def build(names: list[str], manifest: Path = LAB.parent / "Cargo.toml", arch: Arch = AMD64) -> list[Path]:
    """Builds these binaries of the workspace (release, static glibc) and returns where they are."""
    bins = [word for name in names for word in ("--bin", name)]
    _, folder = cargo(arch, ["build", "--release", *bins], manifest)
    found = []
    for name in names:
        binary = folder / "release" / name
        if b"/ld-linux" in interpreter(binary):
            raise LabError(f"{binary} is not static: it names a dynamic loader")
        found.append(stripped(binary, arch))
    return found


def build_tests(packages: list[str], arch: Arch) -> tuple[list[Path], list[Path]]:
    """Builds the tests of these packages of the workspace, and returns their executables and those of all programs.

    Each has to be at its own path in the machine: tests start programs by the paths at which cargo has built them.
    """
    chosen = [word for package in [*packages, "test-support"] for word in ("--package", package)]
    output, _ = cargo(arch, ["test", "--no-run", "--message-format=json", *chosen], LAB.parent / "Cargo.toml")
    artifacts = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    built = [one for one in artifacts if one["reason"] == "compiler-artifact" and one.get("executable")]
    is_test = [one for one in built if one["profile"]["test"] or one["target"]["kind"] == ["test"]]
    return [Path(one["executable"]) for one in is_test], [Path(one["executable"]) for one in built if one not in is_test]


def stripped(binary: Path, arch: Arch, profile: str = "") -> Path:
    """A copy without debug information: what travels into an initramfs should be small. A folder for each profile and architecture."""
    directory = cache.root() / "payload" / profile
    if arch.debian != AMD64.debian:
        directory /= arch.debian
    directory.mkdir(parents=True, exist_ok=True)
    copy = directory / binary.name
    part = directory / f"{binary.name}.{os.getpid()}"
    if shutil.which(arch.strip):
        subprocess.run([arch.strip, "--strip-debug", "-o", part, binary], check=True)
    else:
        shutil.copy(binary, part)
    part.rename(copy)
    return copy


def interpreter(binary: Path) -> bytes:
    """The PT_INTERP entry of an ELF file; empty for a static one."""
    data = binary.read_bytes()
    is_32_bit = data[4] == 1
    word = 4 if is_32_bit else 8
    table, sizes, offset_at, size_at = (28, 42, 4, 16) if is_32_bit else (32, 54, 8, 32)

    def number(at: int, length: int) -> int:
        return int.from_bytes(data[at:at + length], "little")

    for index in range(number(sizes + 2, 2)):
        header = number(table, word) + index * number(sizes, 2)
        if number(header, 4) == 3:
            start = number(header + offset_at, word)
            return data[start:start + number(header + size_at, word)]
    return b""


def lab_tools(arch: Arch = AMD64) -> Path:
    """Our own program for the inside."""
    return build(["lab-tools"], LAB / "tools/Cargo.toml", arch)[0]
