"""A kernel with binder's driver in Rust, which Debian configures none with: built from Debian's source, by Debian's newest compilers."""

import os
import shutil
from pathlib import Path

from . import rootfs
from .errors import LabError

# The source and the compilers that it needs are in one suite, so they fit.
SUITE = "sid"
SOURCE = "linux-source-7.2"
COMPILERS = ("rustc", "rust-src", "bindgen", "clang", "lld", "llvm")
TOOLS = ("build-essential", "flex", "bison", "bc", "libelf-dev", "libssl-dev", "kmod", "cpio", "rsync", "python3", "xz-utils", "dwarves", "gawk")
CONFIG = Path(__file__).resolve().parent.parent / "rust-driver.config"

SCRIPT = f"""set -eu
mkdir /build
cd /build
tar xf /usr/src/{SOURCE}.tar.xz --strip-components=1
make -s LLVM=1 rustavailable
make -s LLVM=1 allnoconfig
scripts/kconfig/merge_config.sh -m .config /rust-driver.config >/dev/null
make -s LLVM=1 olddefconfig
# A newer source may have renamed an option: the machine would lack what it needs.
for option in $(grep = /rust-driver.config | grep -v '=n$'); do
    grep -qxF "$option" .config || {{ echo "the kernel has no $option"; exit 1; }}
done
make -s LLVM=1 -j"$(nproc)" vmlinux
make -s LLVM=1 kernelrelease >release
llvm-strip -g -o stripped vmlinux
"""


def build(tree: Path, target: Path) -> dict[str, object]:
    """Builds in a new tree and fills `target` as a kernel's directory; returns its release and packages. It takes 10 to 25 minutes on two CPUs."""
    if os.geteuid() != 0:
        raise LabError("building the kernel with binder's driver in Rust needs root: run sudo -E lab/build --rust-driver once")
    # A mirror's index of this suite may be some weeks old.
    options = ("--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"')
    installed = rootfs.install(tree, (SOURCE, *COMPILERS, *TOOLS), (SUITE,), options)
    shutil.copy(CONFIG, tree)
    (tree / "build-kernel").write_text(SCRIPT, encoding="utf-8")
    # objtool reads the limit of its stack in /proc.
    rootfs.command("unshare", "--mount", "--pid", "--fork", f"--mount-proc={tree}/proc", "chroot", str(tree), "sh", "/build-kernel")
    made = tree / "build"
    (target / "modules").mkdir()
    for source, name in [("stripped", "vmlinux"), (".config", "config"), ("modules.builtin", "modules/modules.builtin")]:
        shutil.move(made / source, target / name)
    packages = {name: installed[name] for name in (SOURCE, *COMPILERS)}
    return {"release": (made / "release").read_text("utf-8").strip(), "packages": packages}
