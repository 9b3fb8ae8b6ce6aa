"""The root file system: Debian trixie with the other OOM daemons and libgbinder's tools, as an ext4 image."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Callable

from . import apt, cache
from .errors import LabError, tail

SUITE = "trixie"
# libgbinder exists in backports only, so no pinning is needed.
SUITES = (SUITE, "trixie-backports")
PACKAGES = (
    "systemd", "systemd-sysv", "systemd-oomd", "dbus", "udev", "kmod", "procps", "psmisc", "iproute2", "python3",
    "earlyoom", "nohang", "libgbinder1", "libgbinder-tools", "python3-gbinder", "libglibutil1", "stress-ng",
)
# What a machine without network, terminals or a clock to keep need not start.
MASKED = (
    "systemd-timesyncd.service", "systemd-networkd.service", "systemd-resolved.service", "systemd-logind.service",
    "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket",
    "systemd-hwdb-update.service", "systemd-journal-catalog-update.service", "systemd-journal-flush.service",
    "systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket",
    "systemd-update-utmp.service", "systemd-random-seed.service", "systemd-sysusers.service", "systemd-pstore.service",
    "systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service", "systemd-tmpfiles-setup-dev-early.service",
    "systemd-tmpfiles-clean.timer", "systemd-binfmt.service", "systemd-sysctl.service", "systemd-modules-load.service",
    "systemd-remount-fs.service", "systemd-firstboot.service", "systemd-machine-id-commit.service", "dev-hugepages.mount",
    "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount",
    "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount", "kmod-static-nodes.service", "modprobe@.service",
    "getty@.service", "serial-getty@.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
    "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "networking.service", "earlyoom.service", "nohang.service",
    "nohang-desktop.service", "systemd-oomd.service", "systemd-oomd.socket",
)
FREE_SPACE_MIB = 400


def get(update: bool = False) -> Path:
    """The image, built on first use or when the recipe changed (about a minute)."""

    def make(image: Path) -> None:
        installed = build(image)
        (image.parent / "packages.json").write_text(json.dumps(installed, indent=1), encoding="utf-8")

    return cached(SUITE, cache.fingerprint(Path(__file__).read_bytes()), make, update)


def cached(name: str, key: str, make: Callable[[Path], None], update: bool = False) -> Path:
    """The image of this name that was made from `key`; `make` writes it if there is none. Its predecessors are deleted."""
    directory = cache.root() / "rootfs"
    directory.mkdir(exist_ok=True)
    target = directory / f"{name}-{key}.ext4"
    with cache.lock(f"rootfs-{name}"):
        if not target.exists() or update:
            if os.geteuid() != 0:
                raise LabError("building the root file system needs root: run sudo -E lab/build once")
            part = target.with_suffix(".part")
            make(part)
            for old in directory.glob(f"{name}-*.ext4"):
                old.unlink()
            part.rename(target)
    return target


def packages() -> dict[str, str]:
    """Names and versions of the packages of the built image; empty if it is not built."""
    record = cache.root() / "rootfs/packages.json"
    return json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}


def build(image: Path) -> dict[str, str]:
    """Builds the image; returns the versions installed."""
    options = ("--variant=apt", *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale")))
    with tempfile.TemporaryDirectory(dir=image.parent, prefix="tree.") as scratch:
        tree = Path(scratch) / "root"
        installed = install(tree, PACKAGES, SUITES, options)
        settle(tree)
        make_ext4(tree, image)
    return installed


def install(tree: Path, packages: tuple[str, ...], suites: tuple[str, ...], options: tuple[str, ...]) -> dict[str, str]:
    """Installs packages and what they need from the suites, of which the first is the system's, into a new tree; returns their versions."""
    command("mmdebstrap", "--quiet", f"--include={','.join(packages)}", "--architectures=amd64", *options, suites[0], str(tree), *sources(suites))
    listing = command("dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n", *packages)
    return dict(line.split() for line in listing.splitlines())


def sources(suites: tuple[str, ...]) -> list[str]:
    """Lines of sources.list for these suites."""
    return [f"deb [signed-by={apt.keyring()}] {apt.mirror()} {suite} main" for suite in suites]


def make_ext4(tree: Path, image: Path) -> None:
    """Makes an ext4 image of the tree, with some free space."""
    used_mib = int(command("du", "-sm", str(tree)).split()[0])
    image.unlink(missing_ok=True)
    command("/sbin/mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d", str(tree), str(image),
            f"{used_mib + FREE_SPACE_MIB}M")


def settle(tree: Path) -> None:
    """Turns a fresh installation into one that boots in seconds under emulation."""
    units = tree / "etc/systemd/system"
    for unit in MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (tree / "etc/machine-id").write_text("0" * 31 + "1\n", encoding="utf-8")
    (tree / "etc/hostname").write_text("lab\n", encoding="utf-8")
    (tree / "etc/fstab").write_text("", encoding="utf-8")
    # libgbinder finds today's service managers with exactly this.
    (tree / "etc/gbinder.conf").write_text("[General]\nApiLevel = 36\n", encoding="utf-8")
    # systemd runs its first-boot units when these are older than /usr.
    for stamp in ("etc/.updated", "var/.updated"):
        (tree / stamp).touch()


def command(*argv: str) -> str:
    """A host tool; its output, or an error that names it."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError(f"no {argv[0]}: run lab/setup") from None
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed ({done.returncode}):\n{tail(done.stdout + done.stderr)}")
    return done.stdout
