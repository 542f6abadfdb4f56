"""A progress bar on the standard error stream, shown only where someone can see it."""

import sys

WIDTH = 30
MEGA = 1e6


class Progress:
    """How much of a download is there.

    Args:
        label: What is downloaded.
        done: Bytes that are there already.
        total: Bytes of the whole, or None if the server does not tell.
    """

    def __init__(self, label: str, done: int, total: int | None) -> None:
        self.label, self.done, self.total = label, done, total
        self.visible = sys.stderr.isatty()

    def advance(self, size: int) -> None:
        """So many more bytes are there."""
        self.done += size
        if self.visible:
            print(f"\r{self.label} {self}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line."""
        if self.visible:
            print(file=sys.stderr, flush=True)

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.done / MEGA:.1f} MB"
        filled = WIDTH * self.done // max(self.total, 1)
        return f"[{'#' * filled:<{WIDTH}}] {self.done / MEGA:.1f} of {self.total / MEGA:.1f} MB"
