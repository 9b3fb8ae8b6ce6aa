# shellcheck shell=bash
# Root file systems of Debian for tests, each made once. Sourced after tests/clients/lib.sh.

roots=${CARGO_TARGET_DIR:-$here/target}/roots
mkdir -p "$roots"

# debian SUITE: makes $roots/SUITE.
debian() {
    [ -e "$roots/$1.complete" ] && return 0
    rm -rf "${roots:?}/$1"
    debootstrap --variant=minbase "$1" "$roots/$1" >"$roots/$1.log" 2>&1 || { cat "$roots/$1.log"; return 1; }
    touch "$roots/$1.complete"
}
