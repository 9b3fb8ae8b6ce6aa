"""The one exception that a user of the lab sees as a plain message."""


class LabError(Exception):
    """Something the reader can act on; printed without a traceback."""


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a log, indented, to put below a message."""
    return "\n".join("  | " + line for line in text.splitlines()[-lines:])


def last_words(console: str, lines: int = 15) -> str:
    """The end of a kernel's console, or the panic in it, which the traces that follow would push out."""
    found = console.find("Kernel panic")
    if found < 0:
        return tail(console, lines)
    start = console.rfind("\n", 0, found) + 1
    return "\n".join("  | " + line for line in console[start:].splitlines()[:lines])
