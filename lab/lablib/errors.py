"""The one exception that a user of the lab sees as a plain message."""


class LabError(Exception):
    """Something the reader can act on; printed without a traceback."""


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a log, indented, to put below a message."""
    return "\n".join("  | " + line for line in text.splitlines()[-lines:])
