"""The table of the rungs in `docs/benchmark.md`, from what `growth_controls.py` wrote into `benchmarks/results/`.

python benchmarks/ladder.py
"""

import json
from typing import Any

from common import RESULTS
from esper_env.registration import ENVIRONMENTS

PAGE = RESULTS.parents[1] / "docs" / "benchmark.md"
BEGIN, END = "<!-- made by benchmarks/ladder.py -->", "<!-- end of what benchmarks/ladder.py made -->"
REFERENCES = ("oracle", "planner")  # both know more than anyone who plays
TITLES = ("rung", "instances", "never", "random", "best rule", "share of the oracle's gain", "oracle")
Rows = dict[str, dict[str, dict[str, float]]]


def rows_of(result: dict[str, Any]) -> Rows:
    rows: Rows = result.get("baselines") or result["arms"]  # as version 0.1.0 called them
    return rows


def point(number: dict[str, float]) -> float:
    return number["point"] if "point" in number else number["mean"]


def cell(number: dict[str, float]) -> str:
    return f"{point(number):.3f} [{number['low']:.3f}, {number['high']:.3f}]"


def line(name: str, result: dict[str, Any]) -> str:
    """One rung's line: returns, and what the best rule has of the oracle's gain."""
    rows, value = rows_of(result), "discounted_return"
    best = max((rule for rule in rows if rule not in REFERENCES), key=lambda rule: point(rows[rule][value]))
    share = rows[best].get(f"{value}_oracle_share") or rows[best][f"{value}_share"]
    old = result["provenance"]["versions"]["esper-env"] == "0.1.0"
    instances = f"{result['episodes']}, {'validation' if old else result['config']['instances']}"
    link = f"[`{name}`](../benchmarks/results/growth_controls_{name}.md)"
    returns = [cell(rows[rule][value]) for rule in ("never", "random", best, "oracle")]
    shown = [link, instances, *returns[:2], f"`{best}` {returns[2]}", cell(share), returns[3]]
    return f"| {' | '.join(shown)} |"


def table() -> list[str]:
    found = {name: RESULTS / f"growth_controls_{name}.json" for name in ENVIRONMENTS}
    played = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items() if path.exists()}
    head = [f"| {' | '.join(TITLES)} |", "|---" * len(TITLES) + "|"]
    return head + [line(name, result) for name, result in played.items()]


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *table(), "", END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
