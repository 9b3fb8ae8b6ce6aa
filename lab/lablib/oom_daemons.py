"""The OOM daemons that the scenarios compare: how each is started in the machine, and how it is known to be ready."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError

# The unprivileged user whose programs misbehave, and headroom's configuration for it if none is given.
USER_UID = 1000
DEFAULT_HARD_LIMIT = "75%"
OOMD_READY = "systemctl -q is-active systemd-oomd && oomctl 2>/dev/null | grep -q lab.service"


@dataclass(frozen=True)
class OomDaemon:
    """`start` is a shell command that runs in the background, with its log in /run/lab/daemon.log; `ready` succeeds once it is ready."""

    start: str
    ready: str
    systemd: bool = False


# Started as by their Debian units, with default configurations.
PEERS = {
    "none": OomDaemon("exec sleep infinity", "true"),
    "earlyoom": OomDaemon(
        "echo -100 >/proc/self/oom_score_adj; exec nice -n -20 earlyoom -r 3600",
        "grep -q 'mem avail' /run/lab/daemon.log",
    ),
    "nohang": OomDaemon(
        "exec nohang --monitor --config /etc/nohang/nohang.conf",
        "grep -q 'Monitoring has started' /run/lab/daemon.log",
    ),
    "systemd-oomd": OomDaemon(
        "rm -f /etc/systemd/system/systemd-oomd.service /etc/systemd/system/systemd-oomd.socket; systemctl daemon-reload; "
        "systemctl start systemd-oomd.service && "
        "systemctl set-property --runtime lab.service ManagedOOMSwap=kill ManagedOOMMemoryPressure=kill; exec sleep infinity",
        OOMD_READY, systemd=True,
    ),
}
NAMES = [*PEERS, "headroom"]


def get(name: str, limit_mib: int | None, *, configured: bool = True) -> OomDaemon:
    """The daemon with this name. `limit_mib` is the limit in the user-limit scenario; only headroom has limits of users,
    and none where it is not `configured`."""
    if name in PEERS:
        return PEERS[name]
    if name != "headroom":
        raise LabError(f"no such daemon {name!r}: one of {', '.join(NAMES)}")
    hard = f"{limit_mib}M" if limit_mib else DEFAULT_HARD_LIMIT
    limit = f'[[limit]]\nuser = {USER_UID}\nhard = "{hard}"\n'
    if not configured:
        limit = ""
    # Scenarios about one particular limit, or about none, override the given configuration.
    keep = "" if limit_mib or not configured else "[ -e /payload/headroom/oomd.toml ] || "
    return OomDaemon(
        f"mkdir -p /run/headroom; {keep}printf %s {shlex.quote(limit)} >/payload/headroom/oomd.toml; "
        "exec /payload/headroom/headroom-oomd --socket /run/headroom/oomd.sock --config /payload/headroom/oomd.toml",
        "[ -S /run/headroom/oomd.sock ]",
    )


def payload(name: str, directory: Path | None) -> list[tuple[Path, str]]:
    """The files that it needs in the machine."""
    if name != "headroom":
        return []
    if directory is None:
        raise LabError("--daemon headroom needs --headroom DIR, with headroom-oomd (lab/build-payload) and maybe oomd.toml")
    if not (directory / "headroom-oomd").exists():
        raise LabError(f"{directory} has no headroom-oomd: lab/build-payload headroom-oomd, and copy it there")
    return [(directory, "/payload/headroom")]


def script(daemon: OomDaemon, scenario: str) -> str:
    """Shell script: starts the daemon, waits until it is ready (20 s), runs the scenario, and reports if the daemon died.

    The shell must outlive the shortage: if what is short is in no resident set, it would be among the largest processes.
    """
    return f"""
( {daemon.start} ) >/run/lab/daemon.log 2>&1 &
daemon=$!
tries=0
until {daemon.ready}; do
    tries=$((tries + 1))
    if [ $tries -gt 200 ] || ! kill -0 $daemon 2>/dev/null; then
        echo "the daemon was not ready within 20 s; its log:" >&2
        cat /run/lab/daemon.log >&2
        exit 3
    fi
    sleep 0.1
done
echo -1000 >/proc/self/oom_score_adj
{scenario}
status=$?
kill -0 $daemon 2>/dev/null || echo "the daemon did not survive" >&2
echo "--- the daemon's log:" >&2
tail -n 40 /run/lab/daemon.log >&2
exit $status
"""
