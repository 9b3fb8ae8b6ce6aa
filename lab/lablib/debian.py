"""A fresh installation of Debian, for tests of packages: systemd with the journal and logins, apt, AppArmor, nothing masked."""

import tempfile
from pathlib import Path

from . import cache, rootfs

SUITE = "trixie"
# Debian's installer has these beside the packages of priority "important"; libelf comes with iproute2, so it is there already.
PACKAGES = ("apparmor", "dbus", "libpam-systemd", "systemd-sysv")
# Without a network apt's own timers fail, and systemd would be "degraded" for a reason that has nothing to do with the test.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "networking.service")


def get() -> Path:
    """The image, built on first use or when the recipe changed (a minute or two)."""
    return rootfs.cached(f"debian-{SUITE}", cache.fingerprint(Path(__file__).read_bytes()), build)


def build(image: Path) -> None:
    """Installs the packages, then makes the file system from the tree."""
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="tree.") as scratch:
        tree = Path(scratch) / "root"
        rootfs.install(tree, PACKAGES, (SUITE,), ("--variant=important",))
        for unit in MASKED:
            (tree / "etc/systemd/system" / unit).symlink_to("/dev/null")
        (tree / "etc/machine-id").write_text("0" * 31 + "2\n", encoding="utf-8")
        (tree / "etc/hostname").write_text("debian\n", encoding="utf-8")
        (tree / "etc/fstab").write_text("", encoding="utf-8")
        rootfs.make_ext4(tree, image)
