"""A host that is busy: a machine gets a share of its CPUs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .machine import die_with_parent

# Shares by the names that steps have.
SHARES = {"half": 0.5, "quarter": 0.25}


@contextmanager
def busy_host(share: float) -> Iterator[None]:
    """Programs that compute all the time, as many on each CPU as leave the machine this share of it by the scheduler's fairness."""
    count = round((1 / share - 1) * (os.cpu_count() or 1))
    # die_with_parent is one call into libc: safe between fork and exec.
    spinners = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=die_with_parent)  # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()
