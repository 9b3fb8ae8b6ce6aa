"""The base initramfs of a kernel: static busybox, our init, the modules. Uncompressed: TCG is slow at unpacking."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from . import cache, modules
from .apt import Apt
from .arch import AMD64, Arch
from .cpio import Archive
from .errors import LabError
from .kernel import Driver, Kernel

GUEST = Path(__file__).resolve().parent.parent / "guest"
# Loaded at every boot, in this order (dependencies come first by themselves).
AT_BOOT = ["virtio_pci", "virtio_console", "virtio_blk", "fuse"]
# The driver in Rust is always built in.
DRIVER_MODULES = {Driver.C: ["binder_linux"], Driver.RUST: [], None: []}
# Available to init or modprobe on request.
ON_DEMAND = ["ext4", "zram", "overlay"]
# ext4 and zram request these from the crypto API by name; newer kernels have them built in.
WHERE_SEPARATE = ["crc32c_generic", "crc32c_cryptoapi", "lzo_rle", "lz4"]
MODULE_OPTIONS = {"binder_linux": "devices=binder,hwbinder,vndbinder"}


def busybox_here() -> Path:
    """This machine's busybox."""
    busybox = shutil.which("busybox")
    if not busybox:
        raise LabError("no static busybox: run lab/setup")
    return Path(busybox)


def busybox_of(arch: Arch) -> Path:
    """A static busybox for the machine."""
    if arch.debian == AMD64.debian:
        return busybox_here()
    target = cache.root() / f"busybox-{arch.debian}"
    with cache.lock(target.name):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache.root(), prefix="busybox.") as scratch:
                with cache.lock("apt"):
                    apt = Apt(arch)
                    apt.update()
                package = "busybox-static"
                deb = apt.download(package, apt.versions(package)[-1], Path(scratch))
                subprocess.run(["dpkg-deb", "-x", deb, scratch], check=True)
                next(Path(scratch).glob("**/bin/busybox")).rename(target)
    return target


def get(kernel: Kernel) -> Path:
    """The initramfs file of `kernel`, built when an input changed (about a second)."""
    busybox = busybox_of(kernel.arch)
    scripts = sorted(GUEST.iterdir())
    key = cache.fingerprint(
        kernel.release, str(kernel.packages), busybox.read_bytes(), *[s.read_bytes() for s in scripts],
        Path(__file__).read_bytes(), Path(modules.__file__).read_bytes(),
    )
    directory = cache.root() / "initramfs"
    directory.mkdir(exist_ok=True)
    target = directory / f"{kernel.label}-{key}.cpio"
    with cache.lock(f"initramfs-{kernel.label}"):
        if not target.exists():
            for old in directory.glob(f"{kernel.label}-*"):
                old.unlink()
            part = target.with_suffix(".part")
            part.write_bytes(build(kernel, busybox, scripts))
            part.rename(target)
    return target


def build(kernel: Kernel, busybox: Path, scripts: list[Path]) -> bytes:
    """The archive's bytes."""
    archive = Archive()
    for directory in ("proc", "sys", "dev", "tmp", "run", "root", "mnt", "scratch", "etc", "payload"):
        archive.directory(directory)
    archive.character_device("dev/console", 5, 1)
    archive.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    archive.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    archive.file("bin/busybox", busybox.read_bytes(), 0o755)
    # Of this machine's busybox, since another architecture's cannot be run. Their versions differ in a few.
    applets = subprocess.run([busybox_here(), "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if applet not in ("busybox", "init", "linuxrc"):
            archive.symlink(f"bin/{applet}", "busybox")
    archive.symlink("sbin", "bin")
    for script in scripts:
        name = "init" if script.name == "init" else f"lab/{script.name}"
        archive.file(name, script.read_bytes(), 0o755)
    add_modules(archive, kernel)
    return archive.bytes()


def add_modules(archive: Archive, kernel: Kernel) -> None:
    """The modules, the list of what init loads, and the dependency file for modprobe."""
    tree = kernel.path / "modules"
    at_boot = AT_BOOT + DRIVER_MODULES[kernel.driver]
    chosen = modules.select(tree, at_boot + ON_DEMAND, WHERE_SEPARATE)
    first = {m.name for m in modules.select(tree, at_boot, [])}
    known = {m.name: m for m in chosen}
    load, depends = [], []
    for module in chosen:
        archive.file(f"lib/modules/{kernel.release}/{module.name}.ko", module.data)
        if module.name in first:
            load.append(f"{module.name} {MODULE_OPTIONS.get(module.name, '')}".strip())
        depends.append(f"{module.name}.ko:" + "".join(f" {n}.ko" for n in closure(module, known)))
    archive.file("lab/modules-at-boot", ("\n".join(load) + "\n").encode())
    archive.file(f"lib/modules/{kernel.release}/modules.dep", ("\n".join(depends) + "\n").encode())


def closure(module: modules.Module, known: dict[str, modules.Module]) -> list[str]:
    """All that `module` needs, nearest first, as modules.dep lists it."""
    found: list[str] = []
    for name in module.needs:
        if name in known:
            for each in [name, *closure(known[name], known)]:
                if each in found:
                    found.remove(each)
                found.append(each)
    return found
