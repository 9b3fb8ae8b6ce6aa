"""The root file system of a host of containers: Debian trixie with LXC and libgbinder for Python."""

import tempfile
from pathlib import Path

from . import cache, rootfs

# Without systemd: its containers are what runs.
PACKAGES = ("lxc", "python3", "python3-gbinder", "libgbinder1", "libglib2.0-0t64", "iproute2", "procps", "kmod", "mount")


def get() -> Path:
    """The image, built on first use or when the recipe changed (a minute)."""
    return rootfs.cached(f"hosts-{rootfs.SUITE}", cache.fingerprint(Path(__file__).read_bytes()), build)


def build(image: Path) -> None:
    """Installs the packages, then makes the file system from the tree."""
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="tree.") as scratch:
        tree = Path(scratch) / "root"
        options = ("--variant=apt", *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc")))
        rootfs.install(tree, PACKAGES, rootfs.SUITES, options)
        (tree / "etc/fstab").write_text("", encoding="utf-8")
        rootfs.make_ext4(tree, image)
