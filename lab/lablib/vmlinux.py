"""The kernel that QEMU boots. On x86 the ELF kernel inside a bzImage, which saves decompressing it in emulation."""

import gzip
import lzma
import struct
import subprocess
from pathlib import Path

from .errors import LabError

# Offsets in the x86 boot protocol's setup header.
SETUP_SECTS, HEADER_MAGIC, PAYLOAD_OFFSET, PAYLOAD_LENGTH = 0x1F1, 0x202, 0x248, 0x24C
# Offset of the magic number of an uncompressed arm64 kernel.
ARM64_MAGIC = 0x38


def extract(image: Path, out: Path) -> None:
    """Writes the uncompressed kernel of `image` to `out`."""
    data = image.read_bytes()
    if data[ARM64_MAGIC:ARM64_MAGIC + 4] == b"ARMd":
        out.write_bytes(data)
        return
    if data[HEADER_MAGIC:HEADER_MAGIC + 4] != b"HdrS":
        raise LabError(f"{image} is neither an x86 bzImage nor an uncompressed arm64 kernel")
    protected_mode = ((data[SETUP_SECTS] or 4) + 1) * 512
    offset, = struct.unpack_from("<I", data, PAYLOAD_OFFSET)
    length, = struct.unpack_from("<I", data, PAYLOAD_LENGTH)
    payload = data[protected_mode + offset:protected_mode + offset + length]
    elf = decompress(payload, image)
    if not elf.startswith(b"\x7fELF"):
        raise LabError(f"{image}: the payload is not an ELF kernel")
    out.write_bytes(elf)


def decompress(payload: bytes, image: Path) -> bytes:
    """By magic number; the kernel build appends the size (4 bytes) to all formats but gzip."""
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.decompress(payload[:-4])
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dc"], input=payload[:-4], capture_output=True, check=True).stdout
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload)
    raise LabError(f"{image}: unknown compression {payload[:6].hex()}")
