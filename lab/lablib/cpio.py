"""Writes "newc" cpio archives, the only format the kernel's initramfs unpacker takes."""

import os
import stat
from pathlib import Path, PurePosixPath


class Archive:
    """An archive in memory; everything in it belongs to root. Parents are made as needed."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.made: set[str] = set()
        self.inode = 0

    def _entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self.inode += 1
        path = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields)
        self.chunks += [header, path, b"\0" * (-(len(header) + len(path)) % 4), data, b"\0" * (-len(data) % 4)]

    def directory(self, name: str) -> None:
        """A directory and its parents, once."""
        name = name.strip("/")
        if not name or name in self.made:
            return
        self.directory(str(PurePosixPath(name).parent) if "/" in name else "")
        self.made.add(name)
        self._entry(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """A regular file."""
        name = name.strip("/")
        self.directory(name.rpartition("/")[0])
        self._entry(name, stat.S_IFREG | mode, data)

    def symlink(self, name: str, target: str) -> None:
        """A symbolic link."""
        name = name.strip("/")
        self.directory(name.rpartition("/")[0])
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def character_device(self, name: str, major: int, minor: int) -> None:
        """A device node, mode 0600."""
        self.directory(name.rpartition("/")[0])
        self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def host_path(self, source: Path, name: str) -> None:
        """A file of the host, or a directory with all that is in it."""
        if source.is_symlink() and not source.exists():
            self.symlink(name, os.readlink(source))
        elif source.is_dir():
            self.directory(name)
            for child in sorted(source.iterdir()):
                self.host_path(child, f"{name}/{child.name}")
        else:
            self.file(name, source.read_bytes(), stat.S_IMODE(source.stat().st_mode))

    def bytes(self) -> bytes:
        """The finished archive, padded so that another one can follow."""
        self._entry("TRAILER!!!", 0)
        data = b"".join(self.chunks)
        return data + b"\0" * (-len(data) % 512)
