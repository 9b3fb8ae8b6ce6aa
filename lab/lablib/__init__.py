"""The lab: Debian kernels in QEMU, with our programs inside. One concept a module."""
