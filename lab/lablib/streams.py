"""Output of a machine: that of its command, and the messages on the lab's own port."""

import threading
import time
from typing import BinaryIO


def pump(source: int, sink: BinaryIO) -> threading.Thread:
    """Copies a pipe to a stream as it comes; a closed sink only stops the copying."""

    def copy() -> None:
        with open(source, "rb", buffering=0) as stream:
            while data := stream.read(65536):
                try:
                    sink.write(data)
                    sink.flush()
                except (BrokenPipeError, ValueError):
                    pass

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


class LabPort:
    """Reads the messages of the guest's init: `boot UPTIME` and `exit STATUS`."""

    def __init__(self, source: int) -> None:
        self.booted_at: float | None = None
        self.guest_boot_s: float | None = None
        self.status: int | None = None
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, args=(source,), daemon=True)
        self.thread.start()

    def _read(self, source: int) -> None:
        with open(source, "rb") as stream:
            for line in stream:
                name, _, value = line.decode(errors="replace").strip().partition(" ")
                with self.changed:
                    if name == "boot":
                        self.booted_at, self.guest_boot_s = time.monotonic(), float(value)
                    elif name == "exit":
                        self.status = int(value)
                    self.changed.notify()
