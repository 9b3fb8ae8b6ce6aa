"""One virtual machine: what it is made of, its QEMU command line, its life from boot to exit code."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from . import debian, hosts, initramfs, kernel as kernels, rootfs
from .arch import AMD64, Arch
from .cpio import Archive
from .errors import LabError, last_words
from .streams import LabPort, pump

EXIT_TIMEOUT, EXIT_BOOT_FAILED = 124, 125
ICOUNT = "shift=0,sleep=off"
# Boot leaves work behind that would fall into the first measurements; free with sleep=off.
ICOUNT_SETTLE_S = 5


@dataclass
class Spec:
    """What to boot and what to run in it. Sizes in MiB, times in seconds."""

    kernel: str
    command: list[str]
    arch: Arch = AMD64
    payload: list[tuple[Path, str]] = field(default_factory=list)
    memory: int = 512
    cpus: int = 1
    icount: bool = False
    swap: int = 0
    swap_on: str = "zram"
    scratch: int = 0
    iops: int = 0
    rootfs: bool = False
    systemd: bool = False
    debian: bool = False
    hosts: bool = False
    timeout: float = 300
    boot_timeout: float = 120
    append: str = ""
    console: bool = False

    @property
    def on_disk(self) -> bool:
        """Whether the command runs in a root file system on a disk."""
        return self.rootfs or self.systemd or self.debian or self.hosts


@dataclass
class Outcome:
    """How it ended. `boot_s` is from QEMU's start to the command's; `guest_boot_s` is the guest's uptime then."""

    status: int
    boot_s: float | None
    guest_boot_s: float | None
    wall_s: float


def check(spec: Spec) -> None:
    """Contradictions and missing files, before anything is built."""
    if not shutil.which(spec.arch.qemu):
        raise LabError(f"no {spec.arch.qemu}: run lab/setup")
    if spec.arch.debian != AMD64.debian and spec.on_disk:
        raise LabError(f"--rootfs, --systemd, --debian and --hosts are for {AMD64.name} machines only")
    if spec.icount and spec.cpus != 1:
        raise LabError("--icount counts the instructions of one CPU: drop --smp")
    for source, _ in spec.payload:
        if not source.exists():
            raise LabError(f"payload {source} does not exist")
    if not spec.command:
        raise LabError("no command given: lab/run [options] -- CMD [ARG]...")


def overlay(spec: Spec) -> bytes:
    """The second archive: the command, its settings, the payload."""
    archive = Archive()
    archive.directory("lab")
    settle = f"sleep {ICOUNT_SETTLE_S}\n" if spec.icount else ""
    archive.file("lab/command", f"#!/bin/sh\n{settle}exec {shlex.join(spec.command)}\n".encode(), 0o755)
    swap = (f"zram:{spec.swap}" if spec.swap_on == "zram" else "disk") if spec.swap else ""
    settings = {
        "LAB_SWAP": swap,
        "LAB_SCRATCH": "1" if spec.scratch else "",
        "LAB_ROOTFS": "1" if spec.on_disk else "",
        "LAB_SYSTEMD": "1" if spec.systemd or spec.debian else "",
    }
    archive.file("lab/config.sh", "".join(f"{k}={shlex.quote(v)}\n" for k, v in settings.items()).encode())
    below = "lab/payload" if settings["LAB_ROOTFS"] else ""
    for source, destination in spec.payload:
        archive.host_path(source, str(PurePosixPath(below) / destination.strip("/")))
    return archive.bytes()


def sparse_disk(directory: Path, name: str, mib: int) -> Path:
    """An empty disk image that takes no space until written."""
    path = directory / name
    with open(path, "wb") as handle:
        handle.truncate(mib << 20)
    return path


def arguments(spec: Spec, directory: Path, pipes: list[int]) -> list[str]:
    """The QEMU command line. `pipes`: write ends for the guest's stdout, stderr and lab port."""
    arch, kernel = spec.arch, kernels.get(spec.kernel, spec.arch)
    initrd = directory / "initrd"
    initrd.write_bytes(initramfs.get(kernel).read_bytes() + overlay(spec))
    append = [f"console={arch.console}", "quiet", "panic=-1", "psi=1", "random.trust_cpu=on"]
    argv = [arch.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", arch.machine,
            "-cpu", arch.cpu, "-m", str(spec.memory), "-smp", str(spec.cpus)]
    if spec.icount:
        argv += ["-accel", "tcg,thread=single", "-icount", ICOUNT, "-rtc", "base=2026-01-01,clock=vm", "-seed", "1"]
        append += ["nokaslr", "norandmaps"]
    else:
        argv += ["-accel", "tcg,thread=" + ("single" if spec.cpus == 1 else "multi")]
        append += arch.starved_host
    argv += ["-serial", f"file:{directory}/console", "-device", "virtio-serial-pci,ioeventfd=off"]
    for number, pipe in enumerate(pipes, 1):
        argv += ["-add-fd", f"fd={pipe},set={number}", "-chardev", f"file,id=port{number},path=/dev/fdset/{number},append=on",
                 "-device", f"virtserialport,nr={number},chardev=port{number}"]

    def disk(role: str, path: Path, snapshot: bool, iops: int) -> list[str]:
        throttle = f",throttling.iops-total={iops}" if iops else ""
        return ["-drive", f"if=none,id={role},file={path},format=raw,cache=unsafe,snapshot={'on' if snapshot else 'off'}{throttle}",
                "-device", f"virtio-blk-pci,drive={role},serial={role}"]

    if spec.debian:
        argv += disk("root", debian.get(), True, 0)
    elif spec.hosts:
        argv += disk("root", hosts.get(), True, 0)
    elif spec.on_disk:
        argv += disk("root", rootfs.get(), True, 0)
    if spec.scratch:
        path = sparse_disk(directory, "scratch", spec.scratch)
        rootfs.command("/sbin/mke2fs", "-q", "-t", "ext4", "-m", "0", "-F", str(path))
        argv += disk("scratch", path, False, spec.iops)
    if spec.swap and spec.swap_on == "disk":
        argv += disk("swap", sparse_disk(directory, "swap", spec.swap), False, spec.iops)
    if spec.systemd:
        append += ["systemd.unit=lab.target", "systemd.show_status=0", "systemd.log_target=null", "net.ifnames=0"]
    elif spec.debian:
        append += ["systemd.unit=multi-user.target", "systemd.wants=lab.service", "systemd.show_status=0"]
    argv += ["-kernel", str(kernel.path / "vmlinux"), "-initrd", str(initrd), "-append", " ".join([*append, spec.append])]
    return argv


def die_with_parent() -> None:
    """A killed lab/run must not leave a QEMU behind (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(spec: Spec, out: BinaryIO | None = None, err: BinaryIO | None = None) -> Outcome:
    """Boots, runs, returns; the guest's output goes to `out` and `err` as it comes (default: ours)."""
    check(spec)
    with tempfile.TemporaryDirectory(prefix="headroom-lab.") as name:
        directory = Path(name)
        pipes = [os.pipe() for _ in range(3)]
        try:
            argv = arguments(spec, directory, [write for _, write in pipes])
            started = time.monotonic()
            # die_with_parent is one call into libc: safe between fork and exec.
            qemu = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
                argv, pass_fds=[write for _, write in pipes], preexec_fn=die_with_parent,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        finally:
            for _, write in pipes:
                os.close(write)
        threads = [pump(pipes[0][0], out or sys.stdout.buffer), pump(pipes[1][0], err or sys.stderr.buffer)]
        port = LabPort(pipes[2][0])
        try:
            problem = wait(qemu, port, spec, started)
        finally:
            qemu.kill()
            output, _ = qemu.communicate()
            for thread in [*threads, port.thread]:
                thread.join(5)
        console = (directory / "console").read_text(errors="replace") if (directory / "console").exists() else ""
    if spec.console:
        sys.stderr.write(console)
    boot_s = port.booted_at - started if port.booted_at else None
    outcome = Outcome(0, boot_s, port.guest_boot_s, time.monotonic() - started)
    if port.status is not None:
        outcome.status = port.status
    else:
        outcome.status, text = problem or (EXIT_BOOT_FAILED, "the machine stopped")
        sys.stderr.write(f"lab: {text}\n{last_words(console + output.decode(errors='replace'))}\n")
    return outcome


def wait(qemu: subprocess.Popen, port: LabPort, spec: Spec, started: float) -> tuple[int, str] | None:
    """Until the exit status is known, the machine is gone, or time is up: then the status to use and why."""
    while True:
        with port.changed:
            if port.status is None:
                port.changed.wait(0.1)
            if port.status is not None:
                return None
        now = time.monotonic() - started
        if qemu.poll() is not None:
            port.thread.join(5)
            if port.status is not None:
                return None
            phase = f"while the command ran ({spec.command[0]})" if port.booted_at else "while it booted"
            return EXIT_BOOT_FAILED, f"kernel {spec.kernel} stopped {phase}; its console ended with:"
        if port.booted_at is None and now > spec.boot_timeout:
            return EXIT_BOOT_FAILED, f"kernel {spec.kernel} did not boot within {spec.boot_timeout:g} s; its console:"
        if now > spec.timeout:
            return EXIT_TIMEOUT, f"{spec.command[0]} did not end within {spec.timeout:g} s (--timeout); the console:"
