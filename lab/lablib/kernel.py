"""A kernel line (6.1, 6.12, 7.x) becomes a directory: vmlinux, config, modules, what it came from."""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Iterator

from . import cache, rust_driver, vmlinux
from .apt import SUITES, Apt
from .arch import AMD64, BY_NAME, Arch
from .errors import LabError

# Newest version of each line: 5.10 is older than what is supported, 6.1 before the published binder improvements, 6.12 after,
# 7.x the newest there is.
LINES = {"5.10": r"5\.10\.", "6.1": r"6\.1\.", "6.12": r"6\.12\.", "7.x": r"7\."}
# A newest one that is built here, since Debian configures none with the driver in Rust.
RUST = "rust"
CHOICES = [*LINES, RUST]
# What the suite runs on.
COMPARED = ["6.1", "6.12", "7.x"]
# A suite that may leave the mirror, and is needed for one line only.
SUITES_OF = {"5.10": ("bullseye",)}
# Since 7.2 linux-image only depends on the packages that hold the files.
PARTS = re.compile(r"linux-(image|base|binary|modules)-\d")
# Modules a lab machine could use; the rest (graphics, sound, network cards ...) is nine tenths of the bytes.
KEPT_MODULES = ("arch", "block", "crypto", "fs", "lib", "mm", "net/9p", "net/vmw_vsock", "drivers/android",
                "drivers/block", "drivers/char", "drivers/virtio")


class Driver(Enum):
    """A kernel's own binder driver. The value is its subject in results, without the kernel line."""

    C = "kernel"
    RUST = "kernel-rust"


# By its option. The one in Rust excludes the one in C, and is no module; Debian's kernels do not have it up to 7.3.
DRIVERS = {"CONFIG_ANDROID_BINDER_IPC": Driver.C, "CONFIG_ANDROID_BINDER_IPC_RUST": Driver.RUST}


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel. `release` is the output of `uname -r`, `flavour` the name of its `Arch`."""

    line: str
    release: str
    packages: dict[str, str]
    directory: str
    flavour: str = AMD64.name

    @property
    def arch(self) -> Arch:
        """The architecture of the machine."""
        return BY_NAME[self.flavour]

    @property
    def label(self) -> str:
        """Its name in files and results."""
        return self.arch.label(self.line)

    @property
    def path(self) -> Path:
        """The directory that holds `vmlinux`, `config` and `modules/`."""
        return Path(self.directory)

    @property
    def driver(self) -> Driver | None:
        """The binder driver that the kernel is configured with."""
        options = (self.path / "config").read_text("utf-8").splitlines()
        found = (DRIVERS.get(name) for name, _, value in (line.partition("=") for line in options) if value in ("y", "m"))
        return next((driver for driver in found if driver), None)


def get(line: str, arch: Arch = AMD64, update: bool = False) -> Kernel:
    """The kernel of that line, downloaded and unpacked, or built, on first use."""
    if line not in CHOICES:
        raise LabError(f"unknown kernel {line!r}: one of {', '.join(CHOICES)}")
    with cache.lock(f"kernel-{arch.label(line)}"):
        known = cached(line, arch)
        if known and not update:
            return known
        if line == RUST:
            return build_rust(arch)
        with cache.lock("apt"):
            apt = Apt(arch, SUITES_OF.get(line, SUITES))
            apt.update(force=update)
        packages = resolve(apt, line, arch)
        if known and known.packages == packages:
            return known
        return unpack(apt, line, arch, packages)


def build_rust(arch: Arch) -> Kernel:
    """Builds the kernel with the driver in Rust."""
    if arch is not AMD64:
        raise LabError(f"the kernel with binder's driver in Rust is built for {AMD64.name} only")
    with new_directory(RUST) as (tree, kept):
        return settle(kept, {"line": RUST, "flavour": arch.name, **rust_driver.build(tree, kept)})


@contextlib.contextmanager
def new_directory(label: str) -> Iterator[tuple[Path, Path]]:
    """A place for the tree that a kernel is taken from, and its directory, which `settle` puts into its place; else both are deleted."""
    home = cache.root() / "kernels"
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=f"{label}.new.") as scratch:
        kept = Path(scratch) / "kept"
        kept.mkdir()
        yield Path(scratch) / "tree", kept


def settle(kept: Path, record: dict) -> Kernel:
    """Puts a directory that is complete into its place."""
    (kept / "kernel.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    final = cache.root() / "kernels" / BY_NAME[record["flavour"]].label(record["line"])
    shutil.rmtree(final, ignore_errors=True)
    kept.rename(final)
    return Kernel(**record, directory=str(final))


def cached(line: str, arch: Arch = AMD64) -> Kernel | None:
    """What the cache has, without building anything."""
    record = cache.root() / "kernels" / arch.label(line) / "kernel.json"
    if not record.exists():
        return None
    return Kernel(**json.loads(record.read_text(encoding="utf-8")), directory=str(record.parent))


def resolve(apt: Apt, line: str, arch: Arch) -> dict[str, str]:
    """The packages of the newest kernel of the line: name to version."""
    meta = f"linux-image-{arch.name}"
    for version in apt.versions(meta):
        if re.match(LINES[line], version):
            break
    else:
        raise LabError(f"the mirror offers no {meta} {line}: only {', '.join(apt.versions(meta))}")
    todo, packages = [(meta, version)], {}
    while todo:
        name, wanted = todo.pop()
        for dependency, exact in apt.depends(name, wanted).items():
            if PARTS.match(dependency) and dependency not in packages:
                packages[dependency] = exact
                todo.append((dependency, exact))
    if not packages:
        raise LabError(f"{meta} {version} depends on no kernel package of a known series")
    return packages


def unpack(apt: Apt, line: str, arch: Arch, packages: dict[str, str]) -> Kernel:
    """Downloads and unpacks, keeps what the lab needs, drops the rest."""
    with new_directory(arch.label(line)) as (tree, kept):
        for name, version in packages.items():
            deb = apt.download(name, version, kept.parent)
            subprocess.run(["dpkg-deb", "-x", deb, tree], check=True)
        builtin = [*tree.glob("lib/modules/*/modules.builtin"), *tree.glob("usr/lib/modules/*/modules.builtin")]
        images = list(tree.glob("boot/vmlinuz-*")) + list(tree.glob("usr/lib/modules/*/vmlinuz"))
        modules = [m for m in [*tree.glob("lib/modules/*"), *tree.glob("usr/lib/modules/*")] if (m / "kernel").is_dir()]
        if not images or len(modules) != 1 or len(builtin) != 1:
            raise LabError(f"{', '.join(packages)}: no kernel image, no modules or no modules.builtin inside")
        release = modules[0].name
        vmlinux.extract(images[0], kept / "vmlinux")
        for config in [*tree.glob("boot/config-*"), *tree.glob("usr/lib/modules/*/config")]:
            shutil.copy(config, kept / "config")
        keep_modules(modules[0], kept / "modules")
        shutil.copy(builtin[0], kept / "modules")
        return settle(kept, {"line": line, "release": release, "packages": packages, "flavour": arch.name})


def keep_modules(source: Path, target: Path) -> None:
    """Moves the kept part of `/lib/modules/RELEASE` (same file system)."""
    for part in KEPT_MODULES:
        if (source / "kernel" / part).is_dir():
            (target / "kernel" / part).parent.mkdir(parents=True, exist_ok=True)
            (source / "kernel" / part).rename(target / "kernel" / part)


def as_json(kernel: Kernel) -> dict[str, object]:
    """For `lab/versions`."""
    return {key: value for key, value in asdict(kernel).items() if key != "directory"}
