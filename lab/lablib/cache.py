"""Where built things live: outside the tree, keyed by what they were built from."""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Iterator


def root() -> Path:
    """The cache directory: `$HEADROOM_LAB_CACHE`, else `$XDG_CACHE_HOME/headroom-lab`."""
    override = os.environ.get("HEADROOM_LAB_CACHE")
    if override:
        path = Path(override)
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom-lab"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Held while `name` is built, so that two runs do not build it twice."""
    directory = root() / "locks"
    directory.mkdir(exist_ok=True)
    with open(directory / name, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fingerprint(*parts: bytes | str) -> str:
    """A short name for "built from exactly these inputs"."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:12]
