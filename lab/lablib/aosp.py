"""Android 10's service manager and its client, built by tests/clients/aosp/build."""

from pathlib import Path

from . import cache, rootfs

RECIPE = Path(__file__).resolve().parents[2] / "tests/clients/aosp"
INPUTS = ("android.h", "build", "changes.patch")
PROGRAMS = ("servicemanager", "bctest")


def get() -> Path:
    """The folder of the programs, built on first use or when the recipe changed (some seconds)."""
    key = cache.fingerprint(*((RECIPE / name).read_bytes() for name in INPUTS))
    target = cache.root() / "aosp" / key
    with cache.lock("aosp"):
        if not all((target / name).exists() for name in PROGRAMS):
            rootfs.command(str(RECIPE / "build"), str(target))
    return target
