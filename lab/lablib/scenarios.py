"""One run of an out-of-memory scenario with one OOM daemon, in a fresh machine."""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from . import machine, oom_daemons
from .arch import AMD64, Arch
from .busy_host import busy_host
from .errors import LabError, tail

# How long a scenario may last, in seconds of the guest. A thrash and a fork bomb end only if they are killed.
SECONDS = {"leak": 60, "herd": 60, "forkbomb": 30, "thrash": 40, "memfd": 60, "ramfs": 60, "page-tables": 60, "user-limit": 40}
# Without limits of users: what the load takes is in no resident set, and the machine runs short of memory.
UNLIMITED = {"memfd", "ramfs", "page-tables"}
# user-limit: part of the machine's memory that the limited user may have.
LIMIT_PERCENT = 20
SCRATCH_MIB = 512
# Daemons that need no root file system.
BUILT_HERE = {"none", "headroom"}


@dataclass(frozen=True)
class Setting:
    """The machine, in MiB and seconds; `headroom` is a directory with our daemon, and maybe its oomd.toml; `cpu_share` is what the
    machine has of the host's CPUs."""

    kernel: str = "6.12"
    arch: Arch = AMD64
    memory: int = 768
    cpus: int = 2
    swap: int = 0
    swap_on: str = "zram"
    iops: int = 150
    seconds: int | None = None
    timeout: float = 300
    cpu_share: float = 1.0
    headroom: Path | None = None
    verbose: bool = False


def run(setting: Setting, scenario: str, daemon: str, tools: Path) -> dict[str, object]:
    """Runs the scenario. Returns its result and its parameters."""
    limit = setting.memory * LIMIT_PERCENT // 100 if scenario == "user-limit" else None
    under_test = oom_daemons.get(daemon, limit, configured=scenario not in UNLIMITED)
    # The root file system, which has the other daemons, is for amd64.
    if setting.arch is not AMD64 and daemon not in BUILT_HERE:
        raise LabError(f"{daemon} runs on {AMD64.name} machines only")
    command = f"/payload/lab-tools scenario --scenario {scenario} --seconds {setting.seconds or SECONDS[scenario]}"
    if limit:
        command += f" --limit-mib {limit}"
    spec = machine.Spec(
        kernel=setting.kernel, arch=setting.arch, command=["sh", "-c", oom_daemons.script(under_test, command)], memory=setting.memory,
        cpus=setting.cpus, payload=[(tools, "/payload/lab-tools"), *oom_daemons.payload(daemon, setting.headroom)],
        rootfs=setting.arch is AMD64,
        systemd=under_test.systemd, swap=setting.swap, swap_on=setting.swap_on, scratch=SCRATCH_MIB, iops=setting.iops,
        timeout=setting.timeout / setting.cpu_share, boot_timeout=setting.timeout / setting.cpu_share,
    )
    out, err = io.BytesIO(), io.BytesIO()
    with busy_host(setting.cpu_share):
        outcome = machine.run(spec, out, err)
    errors = err.getvalue().decode(errors="replace")
    if setting.verbose:
        sys.stderr.write(errors)
    if outcome.status != 0:
        raise LabError(f"{daemon} in {scenario}: status {outcome.status}\n{tail(errors, 40)}")
    head = {"bench": "scenario", "case": scenario, "subject": daemon, "kernel": setting.arch.label(setting.kernel), "mem_mib": setting.memory,
            "cpus": setting.cpus, "cpu_share": setting.cpu_share, "swap_mib": setting.swap, "swap_on": setting.swap_on if setting.swap else None, "iops": setting.iops}
    tail_ = {"daemon_survived": "did not survive" not in errors, "wall_s": round(outcome.wall_s, 1)}
    return {**head, **json.loads(out.getvalue()), **tail_}
