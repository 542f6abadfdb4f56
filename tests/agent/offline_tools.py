"""Small datasets for the tests of what is recorded and learnt from."""

from typing import Any

from esper_agent.offline.recording import Recording, record

QUICK = {"horizon": 12}


def recorded(name: str, *policies: str, episodes: int = 8, **settings: Any) -> str:
    """A small dataset of Esper-v0 in short episodes; returns its hash."""
    given = {"rows": 4, "env": QUICK, **settings}
    return record(Recording("Esper-v0", name, tuple((who, 1.0) for who in policies), episodes, **given))
