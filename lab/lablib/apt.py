"""apt with a state of its own: other suites' packages, the system's configuration untouched."""

import os
import re
import subprocess
from pathlib import Path

from . import cache
from .arch import AMD64, Arch
from .errors import LabError, tail

KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
)
# Every suite that carries a kernel we name in kernel.py; the newest version of each line wins.
SUITES = ("bookworm", "bookworm-backports", "trixie", "trixie-backports", "sid")
INDEX_MAX_AGE_S = 24 * 3600


def keyring() -> str:
    """The archive keyring that is installed here."""
    for path in KEYRINGS:
        if os.path.exists(path):
            return path
    raise LabError("no Debian archive keyring: install debian-archive-keyring")


def mirror() -> str:
    """The Debian mirror this machine already uses, or `$HEADROOM_LAB_MIRROR`."""
    override = os.environ.get("HEADROOM_LAB_MIRROR")
    if override:
        return override
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    ).stdout
    for line in listing.splitlines():
        site, _, release = line.partition(" ")
        if release in SUITES and site.rstrip("/").endswith("/debian"):
            return site
    raise LabError("no Debian mirror in this machine's apt sources: set HEADROOM_LAB_MIRROR=URI")


class Apt:
    """Runs apt's tools on a state of their own in the cache; needs no privilege."""

    def __init__(self, arch: Arch, suites: tuple[str, ...] = SUITES) -> None:
        self.suites = suites
        others = [arch.debian] if arch.debian != AMD64.debian else []
        if suites != SUITES:
            others += suites
        self.dir = cache.root() / "-".join(["apt", *others])
        for sub in ("state/lists/partial", "cache/archives/partial", "etc"):
            (self.dir / sub).mkdir(parents=True, exist_ok=True)
        (self.dir / "state/status").touch()
        self.options = [
            f"Dir::State={self.dir}/state",
            f"Dir::State::status={self.dir}/state/status",
            f"Dir::Cache={self.dir}/cache",
            f"Dir::Etc::SourceList={self.dir}/etc/sources.list",
            "Dir::Etc::SourceParts=/dev/null",
            "Dir::Etc::Preferences=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            "Acquire::Languages=none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            "APT::Sandbox::User=root",
            f"APT::Architecture={arch.debian}",
            f"APT::Architectures::={arch.debian}",
        ]

    def run(self, tool: str, *args: str, cwd: Path | None = None) -> str:
        """One apt command; its output, or an error with the end of its log."""
        argv = [tool]
        for option in self.options:
            argv += ["-o", option]
        done = subprocess.run(argv + list(args), capture_output=True, text=True, cwd=cwd, check=False)
        if done.returncode != 0:
            raise LabError(f"{tool} {' '.join(args)} failed:\n{tail(done.stdout + done.stderr)}")
        return done.stdout

    def update(self, force: bool = False) -> None:
        """Fetches the package lists unless they are younger than a day."""
        stamp = self.dir / "updated"
        sources = "".join(f"deb [signed-by={keyring()}] {mirror()} {s} main\n" for s in self.suites)
        fresh = stamp.exists() and stamp.read_text(encoding="utf-8") == sources and \
            os.stat(stamp).st_mtime + INDEX_MAX_AGE_S > os.stat(self._touch()).st_mtime
        if fresh and not force:
            return
        (self.dir / "etc/sources.list").write_text(sources, encoding="utf-8")
        self.run("apt-get", "-q", "update")
        stamp.write_text(sources, encoding="utf-8")

    def _touch(self) -> Path:
        """A file touched now, so that ages are compared on the file system's own clock."""
        now = self.dir / "now"
        now.touch()
        return now

    def versions(self, package: str) -> list[str]:
        """All versions on offer, newest first."""
        rows = self.run("apt-cache", "madison", package).splitlines()
        return [row.split("|")[1].strip() for row in rows if row.count("|") == 2]

    def depends(self, package: str, version: str) -> dict[str, str]:
        """The exact-version dependencies of a package: name to version."""
        text = self.run("apt-cache", "show", f"{package}={version}")
        found: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith(("Depends:", "Pre-Depends:")):
                found.update(re.findall(r"([a-z0-9][a-z0-9+.\-]+) \(= ([^)]+)\)", line))
        return found

    def download(self, package: str, version: str, into: Path) -> Path:
        """Downloads one .deb (verified by apt) and returns its path."""
        before = set(into.glob("*.deb"))
        self.run("apt-get", "-q", "download", f"{package}={version}", cwd=into)
        new = set(into.glob("*.deb")) - before
        if len(new) != 1:
            raise LabError(f"apt-get download {package}={version} left no package in {into}")
        return new.pop()
