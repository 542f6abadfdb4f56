"""A mutant: a small fault to put into the code, and the test that must fail on it."""

from dataclasses import dataclass

ENV = "packages/esper-env/src/esper_env"
AGENT = "packages/esper-agent/src/esper_agent"


class StaleMutantError(ValueError):
    """The code that a mutant changes is no longer there, or not only there."""


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    row: str  # of ledger.md, or "feared"
    fault: str  # in words
    file: str
    old: str  # occurs exactly once in the file
    new: str
    test: str  # pytest's node id of what must fail

    def applied(self, text: str) -> str:
        """The text of the file with the fault in it.

        Raises:
            StaleMutantError: unless `old` occurs exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            where = f"{self.row}, {self.fault!r}: {self.file}"
            raise StaleMutantError(f"{where} holds {self.old!r} {count} times; allowed: once")
        return text.replace(self.old, self.new)
