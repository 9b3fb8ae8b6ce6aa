"""The steps of `make lab`: every benchmark and the conformance suite on every kernel, and the scenarios of the OOM daemons.

A step runs one machine (or one program here) and converts its output. A failed step is reported and counted; the others
run. Results are lines of JSON, one file per step, so that a repeated step replaces its results.
"""

import io
import json
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

from . import aosp, cache, kernel, machine, payload, scenarios
from .arch import AMD64, ARM64, ARM64_16K, CLOUD, Arch
from .busy_host import SHARES
from .errors import LabError, tail

BINARIES = [
    "roundtrip", "handles", "sendvec", "contention", "buffers", "conformance", "headroom", "headroom-binderd", "headroom-oomd",
    "memory-hog", "lease_client",
]
QUICK_BINARIES = ["contention", "conformance", "headroom-binderd", "headroom-oomd"]
LIMITS_BINARIES = ["buffers", "headroom", "headroom-binderd", "headroom-oomd", "memory-hog", "lease_client"]
ARM64_BINARIES = ["roundtrip", "conformance", *LIMITS_BINARIES]
LIMIT_BYTES = 64 << 20
# Of the blocks that lease_client allocates.
PIECE_BYTES = 4096
REPO = payload.LAB.parent
# Handles in use at most. 6.1 takes quadratic time: 100,000 would take half an hour of emulation.
HANDLES = {"6.1": 40_000}
HANDLES_ELSEWHERE = 100_000
OOM_DAEMONS = ["none", "headroom", "earlyoom", "nohang", "systemd-oomd"]
# If the observer was later than this, the host starved the machine, and the result is not significant: the scenario is repeated.
STARVED_MS = 1000
ATTEMPTS = 3
# Rounds of each scenario: three of those that are compared, one of the others.
# Also with a share of the host's CPUs, by our daemon.
STARVED_SCENARIOS = ["forkbomb", "leak", "herd", "page-tables", "memfd"]
ROUNDS = {"leak": 3, "herd": 3, "thrash": 3, "forkbomb": 1, "memfd": 1, "ramfs": 1, "page-tables": 1, "user-limit": 1}

# Verdict of `conformance compare` on a case that is not as expected.
UNEXPECTED = re.compile(r"^(\S+): (?:differs and is not|differs in another|listed, but|only in the)", re.MULTILINE)
LISTED = re.compile(r"^(\S+): differs as listed", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """`alone`: no other step may run at the same time, since real time is measured. `arch`: of the programs that it needs."""

    name: str
    group: str
    run: Callable[[Path], None]
    alone: bool = False
    arch: Arch = AMD64


@dataclass(frozen=True)
class Guest:
    """A kernel line on an architecture."""

    line: str
    arch: Arch = AMD64

    @property
    def label(self) -> str:
        """Its name in steps and results."""
        return self.arch.label(self.line)

    @property
    def series(self) -> str:
        """Its name in results: that of its line, and the series of the kernel that is built here."""
        return ".".join(self.kernel.release.split(".")[:2]) if self.line == kernel.RUST else self.label

    @property
    def kernel(self) -> kernel.Kernel:
        """Its kernel."""
        return kernel.get(self.line, self.arch)


# Pages of 4 KiB, and of 16 KiB where Debian has such a kernel.
ARM64_GUESTS = [Guest("6.1", ARM64), Guest("6.12", ARM64), Guest("7.x", ARM64), Guest("6.12", ARM64_16K), Guest("7.x", ARM64_16K)]
# Benchmarks and scenarios of the others would differ little from those of x86-64 on their kernels.
ARM64_BENCHMARKED = [Guest("6.12", ARM64), Guest("6.12", ARM64_16K)]
# Older than what is supported: what works without the features of later kernels.
OLDEST_GUESTS = [Guest("5.10")]
# Without a driver of its own: the machine that needs ours most.
CLOUD_GUESTS = [Guest("6.12", CLOUD)]
# Differences of our driver, beside those on every kernel. 5.10 lacks the same features as 6.1.
DIFFERENCES_OF_LINE = {"5.10": "known-differences-6.1.toml", "6.1": "known-differences-6.1.toml"}
# Features that the daemons do without, and the first kernel that has each, which `doctor` names. The notifier needs atomic BPF
# instructions of 5.12; 6.1 is the oldest kernel on which it is tested.
FEATURES = {
    "process-mrelease": "5.15", "cgroup-kernel-memory": "5.18", "seccomp-wait-killable": "5.19", "bpf-notifier": "6.1",
    "peer-pidfd": "6.5", "fuse-direct-mmap": "6.6", "fuse-passthrough": "6.9", "pidfd-thread": "6.9", "bpf-send-signal-task": "6.13",
}


# A round of `contention` ends then, also if a class has fewer calls: beside real-time callers that call without pause, `nice 19`
# has the share of a CPU that its weight gives, which may be one call in seconds. Its longest call counts all the same.
CONTENTION_LIMIT = ["--limit-seconds", "20"]

# Cases of `contention` besides four classes during reclaim, on one kernel.
CONTENTION_CASES = {
    "spinners": ["--spinner", "nice 0"],
    "users": ["--users", "16", "--classes", "fifo-99,nice 0"],
    "handlers": ["--work-us", "5000"],
    "unprivileged": ["--server-uid", "65534"],
}


@dataclass
class Plan:
    """The kernels, the scope and the programs of a run."""

    kernels: list[str]
    quick: bool
    arm64: list[Guest] = field(default_factory=list)
    oldest: list[Guest] = field(default_factory=list)
    cloud: list[Guest] = field(default_factory=list)
    # By Debian's name of the architecture, and by name.
    binaries: dict[str, dict[str, Path]] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """All steps; of those that may run in parallel the longest first."""
        guests = [Guest(line) for line in self.kernels]
        for guest in guests:
            yield Step(f"handles-{guest.label}", "handles", lambda out, guest=guest: self.handles(guest, out))
        for guest in guests:
            yield Step(f"contention-{guest.label}", "contention", lambda out, guest=guest: self.contention(guest, out))
        if not self.quick:
            for name, options in CONTENTION_CASES.items():
                yield Step(
                    f"contention-{name}-6.12", "contention", lambda out, options=options: self.contention_case(Guest("6.12"), options, out),
                )
        for guest in guests:
            yield Step(f"sendvec-{guest.label}", "sendvec", lambda out, guest=guest: self.sendvec(guest, out))
        for guest in guests + [guest for guest in self.arm64 if guest in ARM64_BENCHMARKED]:
            yield Step(f"roundtrip-{guest.label}", "roundtrip", lambda out, guest=guest: self.roundtrip(guest, out), arch=guest.arch)
        for guest in guests + self.arm64 + self.oldest + self.cloud:
            yield Step(
                f"conformance-{guest.label}", "conformance", lambda out, guest=guest: self.conformance(guest, out), alone=True, arch=guest.arch,
            )
        for guest in self.arm64 + self.oldest + self.cloud:
            yield Step(f"limits-{guest.label}", "limits", lambda out, guest=guest: self.limits(guest, out), alone=True, arch=guest.arch)
        for guest in self.cloud:
            yield Step(f"hosts-{guest.label}", "hosts", lambda out, guest=guest: self.hosts(guest, out), alone=True)
        if not self.quick:
            yield Step("evasion-6.12", "evasion", lambda out: self.evasion(Guest("6.12"), out), alone=True)
        if self.quick:
            yield Step("one-cpu-6.12", "one-cpu", lambda out: self.one_cpu(Guest("6.12"), out), alone=True)
        if self.arm64:
            yield Step("conformance-armhf-6.12", "conformance", self.conformance_armhf, alone=True)
        if not self.quick:
            yield Step("pressure-6.12", "buffers", lambda out: self.pressure(Guest("6.12"), out), alone=True)
        for scenario, rounds in self.rounds().items():
            for number in range(1, rounds + 1):
                for daemon in OOM_DAEMONS if not self.quick else ["headroom"]:
                    yield Step(
                        f"scenario-{scenario}-{daemon}-{number}", "scenario",
                        lambda out, s=scenario, d=daemon, n=number: self.scenario(Guest("6.12"), s, d, n, out), alone=True,
                    )
        if not self.quick:
            for scenario in STARVED_SCENARIOS:
                for name in SHARES:
                    yield Step(
                        f"scenario-{scenario}-headroom-{name}", "scenario", lambda out, s=scenario, n=name: self.starved(s, n, out), alone=True,
                    )
        for guest in self.arm64:
            if guest in ARM64_BENCHMARKED:
                yield Step(
                    f"scenario-leak-headroom-{guest.label}", "scenario",
                    lambda out, guest=guest: self.scenario(guest, "leak", "headroom", 1, out), alone=True, arch=guest.arch,
                )

    def rounds(self) -> dict[str, int]:
        """Number of runs of each scenario."""
        return {"leak": 1} if self.quick else ROUNDS

    def build(self, steps: list[Step]) -> None:
        """Builds the programs of these steps."""
        needed = {step.arch.debian for step in steps}
        if AMD64.debian in needed:
            self.build_for(AMD64, QUICK_BINARIES if self.quick else BINARIES)
        else:
            # It compares transcripts.
            self.build_for(AMD64, ["conformance"])
        if ARM64.debian in needed:
            self.build_for(ARM64, ARM64_BINARIES)

    def build_for(self, architecture: Arch, names: list[str]) -> None:
        """Builds these programs for an architecture."""
        self.binaries[architecture.debian] = dict(zip(names, payload.build(names, arch=architecture)))
        self.binaries[architecture.debian]["lab-tools"] = payload.lab_tools(architecture)

    def payload(self, guest: Guest, *names: str) -> list[tuple[Path, str]]:
        """These programs, for the machine's PATH."""
        return [(self.binaries[guest.arch.debian][name], f"/payload/{name}") for name in names]

    # --- benchmarks on the instruction-count clock

    def roundtrip(self, guest: Guest, out: Path) -> None:
        """Empty and larger calls, beside sockets."""
        self.bench(guest, out, ["roundtrip", "--pinned", "--sizes", "4,1024,4096,16384,65536", "--blocks", "5", "--block", "100"])

    def handles(self, guest: Guest, out: Path) -> None:
        """Each call carries a new node."""
        most = str(HANDLES.get(guest.line, HANDLES_ELSEWHERE))
        arguments = ["handles", "--up-to", most, "--rounds", "1", "--naive-samples", "5", "--keep-free-mib", "64"]
        # The mapping does not affect handles: one mapping only, to save 15 minutes.
        arguments += ["--mapping", "notify-store" if guest.line == "6.1" else "passthrough"]
        self.bench(guest, out, arguments, memory=1536, timeout=3600)

    def sendvec(self, guest: Guest, out: Path) -> None:
        """Sizes only: a memory stressor does not affect an instruction-count clock."""
        self.bench(guest, out, ["sendvec", "--stress-mib", "0", "--pairs", "2", "--block", "100", "--keep-free-mib", "64"])

    def contention(self, guest: Guest, out: Path) -> None:
        """Four scheduling classes on one CPU, during reclaim. The other classes make about fifty calls per call of `nice 19`."""
        arguments = ["contention", "--reclaim", "--calls", "150", "--rounds", "2", *CONTENTION_LIMIT]
        self.bench(guest, out, arguments, memory=1024, timeout=2400)

    def contention_case(self, guest: Guest, options: list[str], out: Path) -> None:
        """One of `CONTENTION_CASES`, on one CPU."""
        arguments = ["contention", "--newcomers", "0", "--calls", "100", "--rounds", "2", *CONTENTION_LIMIT, *options]
        self.bench(guest, out, arguments, memory=1024, timeout=2400)

    def one_cpu(self, guest: Guest, out: Path) -> None:
        """Four scheduling classes share one CPU, by the guest's clock: no client may block the others for ever. Its figures are not kept."""
        command = ["contention", "--newcomers", "0", "--calls", "20", "--rounds", "1", "--limit-seconds", "10", "--headroom"]
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, command=command, memory=768, timeout=900,
            payload=self.payload(guest, "contention", "headroom-binderd"),
        )
        results = [json.loads(text) for text in output(spec, "contention").splitlines()]
        served = {(one["case"], one["subject"]) for one in results if one["subject"].startswith("headroom") and one["metric"] == "avg_us"}
        if len(served) != 8:
            raise LabError(f"contention on one CPU with {guest.label}: 4 classes by 2 mappings expected, only {sorted(served)} were served")
        result = {"bench": "one-cpu", "case": "four scheduling classes", "subject": f"headroom {guest.label}", "kernel": guest.label}
        write(out, json.dumps({**result, "metric": "served", "value": len(served), "unit": "classes", "runs": 1}))

    def pressure(self, guest: Guest, out: Path) -> None:
        """A machine that runs out of memory: the daemon releases idle buffers by itself. On the machine's own clock."""
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, command=["buffers", "--pressure", "--rounds", "5"], cpus=2, memory=768, timeout=1200,
            payload=self.payload(guest, "buffers", "headroom-binderd"),
        )
        lines = []
        for result in map(json.loads, output(spec, "buffers").splitlines()):
            result |= {"subject": f"{result['subject']} {guest.label}", "kernel": guest.label}
            lines.append(json.dumps(result))
        write(out, "\n".join(lines))

    def bench(self, guest: Guest, out: Path, arguments: list[str], memory: int = 768, timeout: float = 1200) -> None:
        """Runs one benchmark on the kernel's driver and on ours, in one machine. Adds the kernel to each result."""
        name = arguments[0]
        command = [*arguments, "--device", "/dev/binder", "--subject", f"{guest.kernel.driver.value}-{guest.series}", "--headroom"]
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, command=command, icount=True, memory=memory, timeout=timeout,
            payload=self.payload(guest, name, "headroom-binderd"),
        )
        results = output(spec, name)
        lines = []
        for result in map(json.loads, results.splitlines()):
            if not result["subject"].startswith("kernel-"):
                result["subject"] = f"{result['subject']} {guest.series}"
            result |= {"case": f"icount: {result['case']}", "kernel": guest.series, "clock": "icount"}
            lines.append(json.dumps(result))
        write(out, "\n".join(lines))

    # --- conformance

    def conformance(self, guest: Guest, out: Path) -> None:
        """Repeated once if it fails: a case that checks whether a call blocks depends on time, and fails on a busy host."""
        try:
            self.conformance_once(guest, out)
        except LabError:
            self.conformance_once(guest, out)

    def conformance_once(self, guest: Guest, out: Path) -> None:
        """The kernel's driver behaves as recorded, and ours on this kernel has the listed differences only."""
        client = "conformance --hangs-after 15000"
        # It gives work of a process to loopers only.
        driver = guest.kernel.driver
        threads = "looper" if driver is kernel.Driver.RUST else "plain"
        play_theirs = f"{client} --threads {threads} --device /dev/binder" if driver else ""
        serve = """
            mkdir -p /run/headroom /run/bus
            headroom-binderd --mount /run/bus --socket /run/headroom/binderd.sock >/run/lab/binderd.log 2>&1 &
            daemon=$!
            tries=0
            until [ -e /run/bus/binder ] && [ -S /run/headroom/binderd.sock ]; do
                tries=$((tries + 1))
                if [ $tries -gt 300 ]; then cat /run/lab/binderd.log >&2; exit 3; fi
                sleep 0.1
            done
        """
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, timeout=1500, cpus=2, memory=1024,
            command=["sh", "-ec", f"{play_theirs}\necho '#### ours'\n{serve}\n{client} --device /run/bus/binder\nkill $daemon"],
            payload=self.payload(guest, "conformance", "headroom-binderd"),
        )
        theirs, _, ours = output(spec, "conformance").partition("#### ours\n")
        if not ours:
            raise LabError(f"conformance on {guest.label}: no transcript of ours")
        transcripts = out.parent / "conformance"
        transcripts.mkdir(exist_ok=True)
        for name, text in ((f"kernel-{guest.label}.txt", theirs), (f"headroom-{guest.label}.txt", ours)):
            (transcripts / name).write_text(text)
        lists = REPO / "conformance"
        reference = lists / "reference"
        of_line = [lists / DIFFERENCES_OF_LINE[guest.line]] if guest.line in DIFFERENCES_OF_LINE else []
        record, kernels = reference / f"{guest.line}.txt", transcripts / f"kernel-{guest.label}.txt"
        # Differences are listed against the driver of 6.12, on every kernel.
        expected, against_record = reference / "6.12.txt", None
        if guest.arch.page_kib != AMD64.page_kib:
            # The records are of pages of 4 KiB, on which sizes depend. There is no other page size before 6.12, since when drivers are alike.
            expected = kernels
        elif driver and record.exists():
            against_record = self.compare(record, kernels, [])
        against_ours = self.compare(expected, transcripts / f"headroom-{guest.label}.txt", [lists / "known-differences.toml", *of_line])
        (transcripts / f"differences-{guest.label}.txt").write_text(against_ours)
        unlike, unknown = UNEXPECTED.findall(against_record or ""), UNEXPECTED.findall(against_ours)
        of_record = []
        if driver and against_record is not None:
            of_record = [{"subject": f"{driver.value}-{guest.series}", "metric": "unlike_its_record", "value": len(unlike)}]
        result = {"bench": "conformance", "case": f"on Linux {guest.series}", "unit": "cases", "runs": 1}
        write(out, "\n".join(json.dumps(result | more) for more in (
            *of_record,
            {"subject": f"headroom {guest.series}", "metric": "cases", "value": sum(text.startswith("== ") for text in ours.splitlines())},
            {"subject": f"headroom {guest.series}", "metric": "known_differences", "value": len(LISTED.findall(against_ours))},
            {"subject": f"headroom {guest.series}", "metric": "unknown_differences", "value": len(unknown)},
        )))
        if unlike or unknown:
            raise LabError(f"conformance on {guest.label}: not as its record: {unlike}; ours, not as listed: {unknown}; see {transcripts}")

    def conformance_armhf(self, out: Path) -> None:
        """Ours on an arm64 kernel, for 32-bit clients."""
        done = subprocess.run([REPO / "conformance/armhf", "6.12"], capture_output=True, text=True, check=False)
        counts = re.search(r"^(\d+) cases, (\d+) known differences, (\d+) failures$", done.stdout, re.MULTILINE)
        if not counts:
            raise LabError(f"conformance/armhf:\n{tail(done.stderr)}")
        names = ("cases", "known_differences", "unknown_differences")
        result = {"bench": "conformance", "case": "on Linux arm64-6.12", "unit": "cases", "runs": 1, "subject": "headroom armhf-6.12"}
        write(out, "\n".join(json.dumps(result | {"metric": name, "value": int(count)}) for name, count in zip(names, counts.groups())))
        if done.returncode != 0:
            raise LabError(f"conformance/armhf: {UNEXPECTED.findall(done.stdout)}")

    def compare(self, reference: Path, ours: Path, lists: list[Path]) -> str:
        """The output of `conformance compare`."""
        argv = [self.binaries[AMD64.debian]["conformance"], "compare", reference, ours]
        for known in lists:
            argv += ["--known", known]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise LabError(f"conformance compare {reference} {ours}:\n{tail(done.stderr)}")
        return done.stdout

    def hosts(self, guest: Guest, out: Path) -> None:
        """Containers of LXC as waydroid configures them, started and stopped: they call each other, and nothing of them is left.

        Android 10's service manager does, too.
        """
        android = aosp.get()
        files = [(REPO / "examples/python/adder.py", "/payload/adder.py"), (payload.LAB / "hosts/call_adder.py", "/payload/call_adder.py")]
        files += [(payload.LAB / "hosts/aosp", "/payload/aosp"), *((android / name, f"/payload/{name}") for name in aosp.PROGRAMS)]
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, timeout=1800, cpus=2, memory=1024, hosts=True, command=["/payload/hosts"],
            payload=[*self.payload(guest, "headroom", "headroom-binderd"), *files, (payload.LAB / "hosts/run", "/payload/hosts")],
        )
        rounds = int(output(spec, "hosts"))
        result = {"bench": "hosts", "case": "containers on a kernel without binder", "subject": f"headroom {guest.label}", "kernel": guest.label}
        write(out, json.dumps(result | {"metric": "rounds", "value": rounds, "unit": "rounds", "runs": 1}))

    # --- limits of users

    def limits(self, guest: Guest, out: Path) -> None:
        """A user's limit: a process is killed, also one that dumps core, tmalloc is refused memory instead, and a bus releases idle buffers.

        `doctor` names the features that this kernel does not have. What it and the daemon report is in `OUT/raw/limits`.
        """
        spec = machine.Spec(
            kernel=guest.line, arch=guest.arch, timeout=900, cpus=2, memory=1024, command=["/lab/limits"],
            payload=self.payload(guest, *LIMITS_BINARIES),
        )
        first, *rest = output(spec, "limits").splitlines()
        try:
            found = json.loads(first)
        except ValueError as error:
            raise LabError(f"limits on {guest.label}: {error}: {first}") from None
        reports = out.parent / "limits"
        reports.mkdir(exist_ok=True)
        (reports / f"{guest.label}.json").write_text(json.dumps(found, indent=1))
        missing = self.check_doctor(guest, found["doctor"])
        killed = [one for one in found["why"]["decisions"] if one.get("killer")]
        victims = [one for one in killed if one["victim"]["pid"] != found["dumped"]]
        if len(killed) != len(victims) + 1:
            raise LabError(f"limits on {guest.label}: pid {found['dumped']}, which dumped core, is not one of the victims: {killed}")
        if found["exit_code"] != 128 + signal.SIGKILL or len(victims) != 1:
            raise LabError(f"limits on {guest.label}: the process that exceeded the limit ended with {found['exit_code']}: {victims}")
        reserved = found["pieces"] * PIECE_BYTES
        if not LIMIT_BYTES // 2 < reserved < LIMIT_BYTES:
            raise LabError(f"limits on {guest.label}: tmalloc got {reserved} bytes of {LIMIT_BYTES}")
        victim = victims[0]
        sender = "daemon" if "bpf-notifier" in missing else "kernel"
        if victim["killer"] != sender:
            raise LabError(f"limits on {guest.label}: killed by the {victim['killer']} instead of the {sender}")
        result = {"bench": "limits", "case": f"64 MiB, killed by the {victim['killer']}", "subject": f"headroom {guest.label}",
                  "kernel": guest.label, "unit": "B", "runs": 1}
        lines = [json.dumps(result | {"metric": metric, "value": value}) for metric, value in (
            ("over_limit", victim["used_bytes"] - victim["hard_bytes"]), ("reserved", reserved),
        )]
        lines.append(json.dumps(result | {"case": "features", "metric": "missing", "value": len(missing), "unit": "features"}))
        for line in map(json.loads, rest):
            lines.append(json.dumps(line | {"subject": f"{line['subject']} {guest.label}", "kernel": guest.label}))
        write(out, "\n".join(lines))

    def check_doctor(self, guest: Guest, report: dict[str, list[dict[str, object]]]) -> set[str]:
        """The features that the kernel lacks. `doctor` reports these as missing, with the version that has them, and no others."""

        def version(release: str) -> tuple[int, ...]:
            return tuple(map(int, re.findall(r"\d+", release)[:2]))

        lacking = {name for name, first in FEATURES.items() if version(guest.kernel.release) < version(first)}
        checks = {check["capability"]: check for check in report["binder"] + report["oom"]}
        reported = {name for name in FEATURES if not checks[name]["present"]}
        nameless = {name for name in lacking & reported if FEATURES[name] not in checks[name]["remedy"]}
        if reported != lacking or nameless:
            raise LabError(
                f"limits on {guest.label}: doctor reports as missing {sorted(reported)}, expected {sorted(lacking)}; "
                f"without the version: {sorted(nameless)}"
            )
        return lacking

    def evasion(self, guest: Guest, out: Path) -> None:
        """The table of memory that counts in `docs/design/usage.md`, with the memory controller as the third source."""
        package = REPO / "crates/headroom-oomd"
        holder = cache.root() / "payload" / "holder"
        built = ["cc", "-std=gnu11", "-O1", "-pthread", "-static", "-o", holder, package / "tests/support/holder.c"]
        done = subprocess.run(built, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"holder.c:\n{tail(done.stderr)}")
        argv = [payload.LAB / "tests", "--kernel", guest.line, "-p", package.name, "--only", "evasion", "--rootfs", "--mem", "4096"]
        argv += ["--file", REPO / "docs/design/usage.md", "--file", holder, "--env", f"HEADROOM_HOLDER={holder}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(f"evasion on {guest.label}:\n{tail(done.stdout + done.stderr, 80)}")
        result = {"bench": "evasion", "case": "kinds of memory, each in each hand", "subject": f"headroom {guest.label}", "kernel": guest.label}
        rows = [line.split(" | ") for line in (REPO / "docs/design/usage.md").read_text("utf-8").splitlines()]
        rows = [row for row in rows if len(row) == 5]
        held = sum((row[0].count("; ") + 1) * (row[1].count("; ") + 1) for row in rows)
        write(out, json.dumps({**result, "metric": "rows_as_documented", "value": held - 1, "unit": "rows", "runs": 1}))

    # --- killers

    def starved(self, scenario: str, name: str, out: Path) -> None:
        """One run of one scenario with our daemon on a busy host."""
        programs = self.binaries[AMD64.debian]
        with tempfile.TemporaryDirectory(prefix="headroom-lab-") as directory:
            shutil.copy(programs["headroom-oomd"], Path(directory) / "headroom-oomd")
            setting = scenarios.Setting(headroom=Path(directory), cpu_share=SHARES[name])
            result = scenarios.run(setting, scenario, "headroom", programs["lab-tools"])
        write(out, json.dumps({**result, "case": f"{scenario} at {name} speed", "run": 1, "attempts": 1}))

    def scenario(self, guest: Guest, scenario: str, daemon: str, number: int, out: Path) -> None:
        """One run of one scenario."""
        programs = self.binaries[guest.arch.debian]
        with tempfile.TemporaryDirectory(prefix="headroom-lab-") as directory:
            shutil.copy(programs["headroom-oomd"], Path(directory) / "headroom-oomd")
            setting = scenarios.Setting(kernel=guest.line, arch=guest.arch, headroom=Path(directory))
            for attempt in range(1, ATTEMPTS + 1):
                result = scenarios.run(setting, scenario, daemon, programs["lab-tools"])
                if result["observer_late_ms_max"] <= STARVED_MS:
                    break
        # Not a run of the same case as those that are compared with other daemons.
        case = {} if guest.arch is AMD64 else {"case": f"{scenario} on {guest.label}"}
        write(out, json.dumps({**result, **case, "run": number, "attempts": attempt}))


def output(spec: machine.Spec, name: str) -> str:
    """The standard output of the machine. A failure is an error with the end of its standard error."""
    out, err = io.BytesIO(), io.BytesIO()
    outcome = machine.run(spec, out, err)
    if outcome.status != 0:
        errors = err.getvalue().decode(errors="replace")
        raise LabError(f"{name} on {spec.arch.label(spec.kernel)}: status {outcome.status}\n{tail(errors, 30)}")
    return out.getvalue().decode(errors="replace")


def write(path: Path, text: str) -> None:
    """All or nothing."""
    part = path.with_suffix(".part")
    part.write_text(text + "\n")
    part.rename(path)


def choose(plan: Plan, only: list[str]) -> list[Step]:
    """The steps whose name begins with one of these (all, if none is given)."""
    found = [step for step in plan.steps() if not only or any(step.name.startswith(prefix) for prefix in only)]
    for prefix in only:
        if not any(step.name.startswith(prefix) for step in found):
            raise LabError(f"no step begins with {prefix!r}: try --list")
    return found


def table(files: list[Path], metric: str) -> list[str]:
    """The figures of a metric as lines of text: a row for each kernel and case, a column for each subject."""
    results = [json.loads(line) for path in files if path.exists() for line in path.read_text("utf-8").splitlines()]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in results:
        if result["metric"] == metric:
            line = result["kernel"]
            subject = result["subject"].removesuffix(line).rstrip(" -")
            rows.setdefault((line, result["case"]), {})[subject] = f"{result['value']:g}"
    found = {subject for row in rows.values() for subject in row}
    # Both drivers always have a column, to show that a kernel does not have one of them.
    drivers = [driver.value for driver in kernel.Driver]
    columns = [*drivers, *sorted(found - set(drivers))]
    lines = [["kernel", "case", *columns]]
    lines += [[line, case, *(row.get(column, "-") for column in columns)] for (line, case), row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip() for cells in lines]
