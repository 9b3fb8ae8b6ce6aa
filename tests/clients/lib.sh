# shellcheck shell=bash
# Code shared by tests/clients/run and scripts/demo: a private /dev, children that are always ended, and a
# line for each step. Sourced by bash with `set -eu`; the caller sets `scratch`, a folder for logs.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
clients=${CARGO_TARGET_DIR:-$here/target}/clients
# Limit for any wait.
patience_s=20

# Runs the calling script again in a mount namespace of its own, in which /dev is a tmpfs: /dev/binderfs,
# where rsbinder looks, can be made there and nowhere else. It is gone with the last process in it.
enter_private_dev() {
    [ -z "${HEADROOM_PRIVATE_DEV:-}" ] || return 0
    if [ "$(id -u)" != 0 ]; then skip "needs root: mounts"; fi
    # Opened for a test read: the node may be there without a driver.
    if ! (: <>/dev/fuse) 2>/dev/null; then skip "/dev/fuse does not open"; fi
    HEADROOM_PRIVATE_DEV=1 exec unshare --mount --propagation private "$0" "$@"
}

make_private_dev() {
    mount -t tmpfs -o mode=755,size=1m private-dev /dev
    local node
    while read -r node major minor; do
        mknod -m 666 "/dev/$node" c "$major" "$minor"
    done <<'NODES'
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
NODES
    ln -s /proc/self/fd /dev/fd
    mkdir /dev/shm /dev/binderfs
    # libgbinder picks its protocol by the name of the device.
    ln -s binderfs/binder /dev/binder
}

# Ends the script; where every test is required, as a failure.
skip() {
    echo "skipped: $*"
    [ "${HEADROOM_TESTS_REQUIRE:-}" != all ] || exit 1
    exit 0
}

# --- children, by name, ended in reverse order whatever happens -------------------------------------

scratch=${scratch:-}
declare -A pid_of=()
started=()

# start NAME COMMAND...: in the background; output goes to $scratch/NAME.log.
start() {
    local name=$1
    shift
    # Emptied here: the child may be late, and a reader would find the output of an earlier child of this name.
    : >"$scratch/$name.log"
    "$@" >>"$scratch/$name.log" 2>&1 </dev/null &
    pid_of[$name]=$!
    started+=("$name")
}

running() { [ -n "${pid_of[$1]:-}" ] && kill -0 "${pid_of[$1]}" 2>/dev/null; }

# stop NAME [SIGNAL]: signals the child, waits, kills it if it does not exit. Returns its exit code.
stop() {
    local name=$1 pid=${pid_of[$1]:-} code=0
    [ -n "$pid" ] || return 0
    kill "-${2:-TERM}" "$pid" 2>/dev/null || true
    await eval "! running '$name'" || kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || code=$?
    unset "pid_of[$name]"
    return "$code"
}

stop_all() {
    local i
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        stop "${started[i]}" || true
    done
}

# await COMMAND...: until it succeeds, for a bounded time.
await() {
    local deadline=$((SECONDS + patience_s))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# --- steps --------------------------------------------------------------------------------------------

# fail WORDS...: the step under way did not work; shows the last output of the children.
fail() {
    echo "FAILED: $*"
    local name
    for name in "${started[@]}"; do
        [ -s "$scratch/$name.log" ] || continue
        echo "--- output of $name:"
        tail -n 15 "$scratch/$name.log"
    done
    exit 1
}

# libgbinder's tools run with the libraries of their own suite; the second are 32-bit programs.
gbinder() { timeout "$patience_s" chroot "$clients/gbinder/root" "$@"; }
gbinder_over_rings() { over_rings gbinder "$@"; }
# over_rings COMMAND...: the library has the same path in the other root.
over_rings() { LD_PRELOAD=$ring_library BINDER_RING_REQUESTS=1 "$@"; }
gbinder_32() { timeout "$patience_s" chroot "$clients/gbinder-32/root" "$@"; }
