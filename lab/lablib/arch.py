"""The architectures of the machines, by the names of Debian's kernel flavours."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Arch:
    """An architecture. `starved_host`: arguments of the kernel that make it tolerate a busy host."""

    name: str
    debian: str
    rust_target: str
    qemu: str
    machine: str
    cpu: str
    console: str
    starved_host: tuple[str, ...]
    strip: str
    page_kib: int = 4

    def label(self, line: str) -> str:
        """The name of a kernel line on this architecture, in files and results."""
        return line if self is AMD64 else f"{self.name}-{line}"


# A busy host delays the emulated CPUs while its clocks go on.
TOLERANT = ("rcupdate.rcu_cpu_stall_suppress=1", "nowatchdog")

AMD64 = Arch(
    name="amd64", debian="amd64", rust_target="x86_64-unknown-linux-gnu", qemu="qemu-system-x86_64",
    # `rep movsb` costs one counted instruction per byte under -icount, and is slow in TCG anyway.
    machine="q35,usb=off,vmport=off", cpu="max,-erms,-fsrm", console="ttyS0",
    # The boot-time timer check would fail, and the TSC be measured wrong by some factor, so that the guest's seconds would not
    # be seconds. The HPET is QEMU's own clock.
    starved_host=("no_timer_check", "tsc=unstable", "clocksource=hpet", *TOLERANT),
    strip="strip",
)
# Pages of 4 KiB and of 16 KiB, which need a CPU that has both. Without pointer authentication, whose emulation is slow.
ARM64, ARM64_16K = (
    Arch(
        name=name, debian="arm64", rust_target="aarch64-unknown-linux-gnu", qemu="qemu-system-aarch64",
        machine="virt", cpu="cortex-a76", console="ttyAMA0", starved_host=TOLERANT,
        strip="aarch64-linux-gnu-strip", page_kib=page_kib,
    )
    for name, page_kib in (("arm64", 4), ("arm64-16k", 16))
)
# Debian's kernel of virtual machines in a cloud: no binder, but FUSE passthrough and type information.
CLOUD = replace(AMD64, name="cloud-amd64")
BY_NAME = {arch.name: arch for arch in (AMD64, CLOUD, ARM64, ARM64_16K)}

# Of programs only: arm64 kernels run them.
ARMHF = Arch(
    name="armhf", debian="armhf", rust_target="armv7-unknown-linux-gnueabihf", qemu="", machine="", cpu="", console="", starved_host=(),
    strip="arm-linux-gnueabihf-strip",
)
OF_PROGRAMS = BY_NAME | {ARMHF.name: ARMHF}
