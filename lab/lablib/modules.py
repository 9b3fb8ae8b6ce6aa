"""Which kernel modules go into the initramfs, in the order in which they load."""

import gzip
import lzma
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError


@dataclass(frozen=True)
class Module:
    """One module: its name (with underscores), its plain .ko bytes, what it needs loaded before."""

    name: str
    data: bytes
    needs: tuple[str, ...]


def canonical(name: str) -> str:
    """The kernel takes `-` and `_` in module names for the same."""
    return name.replace("-", "_")


def read(path: Path) -> bytes:
    """A module file, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
    return data


def needs(data: bytes) -> tuple[str, ...]:
    """The `depends=` entry of a module's .modinfo."""
    found = re.search(rb"\0depends=([^\0]*)\0", data)
    names = found.group(1).decode().split(",") if found else []
    return tuple(canonical(n) for n in names if n)


def select(tree: Path, required: list[str], optional: list[str]) -> list[Module]:
    """The wanted modules of a kernel and all they need, dependencies first.

    A required one that is neither there nor built in is an error; an optional one is left out.
    """
    files = {canonical(p.name.split(".ko")[0]): p for p in tree.glob("kernel/**/*.ko*")}
    builtin = {canonical(Path(line).stem) for line in (tree / "modules.builtin").read_text("utf-8").split()}
    order: dict[str, Module] = {}

    def visit(name: str) -> None:
        if name in order or name not in files:
            return
        data = read(files[name])
        for dependency in needs(data):
            visit(dependency)
        order[name] = Module(name, data, needs(data))

    for name in map(canonical, required):
        if name not in files and name not in builtin:
            raise LabError(f"{tree} has no module {name}, and it is not built in")
        visit(name)
    for name in map(canonical, optional):
        visit(name)
    return list(order.values())
