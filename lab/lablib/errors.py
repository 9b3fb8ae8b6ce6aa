"""The one exception that a user of the lab sees as a plain message."""

import re

# Lines in which a crashing kernel reports the reason.
BAD = re.compile(r"Kernel panic|BUG: |Oops|RIP: 0010|general protection|invalid opcode|WARNING: |lab: ")


class LabError(Exception):
    """Something the reader can act on; printed without a traceback."""


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a log, indented, to put below a message."""
    return "\n".join("  | " + line for line in text.splitlines()[-lines:])


def last_words(console: str, lines: int = 15) -> str:
    """The end of a kernel's console, or its first error, which the traces that follow would push out."""
    bad = [line for line in console.splitlines() if BAD.search(line)][:lines]
    return "\n".join("  | " + line for line in bad) or tail(console, lines)
