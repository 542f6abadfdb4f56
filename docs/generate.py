"""Write the pages that are made from the code: `make docs`."""

from inspect import cleandoc
from pathlib import Path
from typing import Any

from esper_agent.comparison.leaderboard import HEADER, table
from esper_agent.pretrained import pretrained_ids, read_card
from esper_env import EsperEnv

DOCS = Path(__file__).parent
NOTICE = "<!-- Made by `make docs` from the docstring of EsperEnv; edit that. -->"


def environment_page() -> str:
    """The environment's page: its class docstring, as it is."""
    return f"# The environment\n\n{NOTICE}\n\n{cleandoc(EsperEnv.__doc__ or '')}\n"


CARDS_NOTICE = (
    "<!-- Made by `make docs` from the cards in esper_agent/pretrained; run benchmarks/pretrain.py again. -->"
)
CARDS_INTRO = """For some ids a trained agent comes with esper-agent: a file of tensors and JSON of 0.3 MB and a card.

```python
from esper_agent import FactoredRecurrentPPO
from esper_agent.comparison.leaderboard import HEADER, table
from esper_agent.pretrained import pretrained_ids, read_card

agent = FactoredRecurrentPPO.pretrained("Esper-v0")  # predicts; a policy for a Grower
agent = FactoredRecurrentPPO.pretrained("Esper-v0", "Esper-v0", n_envs=8)  # plays there, and goes on learning
print(pretrained_ids(), read_card("Esper-v0")["limits"])
```

```sh
esper-agent play --pretrained Esper-v0                   # an episode in the terminal
esper-agent play --pretrained Esper-v0 --gif episode.gif
esper-agent evaluate --pretrained Esper-v0 --instances test
```

What is loaded is checked like any checkpoint: nothing in it runs, records and tensors are what their checksums say, and
weights are finite. Besides, a file is refused that is not the one its card speaks of (sha256). An id without an agent
gets one error, which lists those that there are. A test plays some of the instances and compares with the card.
"""
CARDS_OUTRO = """Means over test instances with 95 % bootstrap intervals; the gain is paired with never growing. `python
benchmarks/pretrain.py ID ...` trains them anew and replaces files and cards, `make docs` this page.
"""
PLAYERS = {"agent": "pretrained", "never": "never grow", "plateau": "plateau rule", "oracle": "oracle"}
MEASURES = ("discounted_return", "gain_in_return", "test_accuracy", "added_parameters")


def pretrained_page() -> str:
    """What the cards of the shipped agents say."""
    titles = ("id", "who", "return", "gain over never growing", "test accuracy", "added parameters")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    cards = [read_card(env_id) for env_id in pretrained_ids()]
    lines += [line for card in cards for line in _results(card)]
    parts = [_card(card) for card in cards]
    return "\n".join(["# Pretrained policies", "", CARDS_NOTICE, "", CARDS_INTRO, *lines, "", CARDS_OUTRO, *parts])


def _results(card: dict[str, Any]) -> list[str]:
    results = card["results"]
    rows = [(name, [results[who][measure] for measure in MEASURES]) for who, name in PLAYERS.items() if who in results]
    return [f"| `{card['env_id']}` | {name} | {' | '.join(map(_interval, found))} |" for name, found in rows]


def _interval(found: dict[str, float]) -> str:
    return f"{found['point']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _card(card: dict[str, Any]) -> str:
    training, versions = card["training"], card["provenance"]["versions"]
    seeds = ", ".join(f"{seed}: {score:.3f}" for seed, score in training["return_on_validation_by_seed"].items())
    settings = ", ".join(f"`{name}={value}`" for name, value in training["settings"].items()) or "none"
    facts = [
        f"{training['steps']:,} steps in {training['environments']} environments; settings other than the defaults: "
        f"{settings}. Returns on validation instances by training seed: {seeds}; shipped is seed {training['seed']}.",
        f"{card['parameters']:,} parameters; results on {card['results']['episodes']} test instances.",
        f"`{card['provenance']['command']}`; esper-env {versions['esper-env']}, torch {versions['torch']}.",
        *card["limits"],
    ]
    return "\n".join([f"## {card['env_id']}", "", *[f"- {fact}" for fact in facts], ""])


RESULTS = DOCS.parent / "benchmarks" / "results"
LEADERBOARD_NOTICE = "<!-- Made by `make docs` from the runs in benchmarks/results. -->"
LEADERBOARD_INTRO = """Who reaches which return on test instances. A baseline plays once and has no seeds; `oracle`
knows the lesion and `planner` the simulator: they say what can be had. Intervals are 95 %, over seeds and instances.

To submit, play the id with its own arguments on at least 128 test instances, choose everything on validation instances
before, and train at least 10 seeds if it learns ([how](comparison.md), [policies of your own](own_agent.md)):

```sh
esper-agent compare --env Esper-v0 --agents my_agent:GrowAtOnce,never,oracle --out runs/mine --episodes 128
python benchmarks/leaderboard.py runs/mine/never_seed0.json
```

A submission is the JSON file of each run: its plan, its scores in every instance, and versions. The script says what
keeps a file from being accepted. Files that are go to `benchmarks/results/compare_agents_ID` by a pull request, with
the code or weights to play them again; the tables are made of these files.

On the test set of version 0.1.0, settings of the environments [were chosen](comparison.md#what-was-tried), and its
learners were trained five times: rows of that version are no results on fresh instances.
"""


def leaderboard_page() -> str:
    """The table of each environment, from the runs that are committed."""
    parts = [f"# Leaderboard\n\n{LEADERBOARD_NOTICE}\n\n{LEADERBOARD_INTRO}"]
    for directory in sorted(RESULTS.glob("compare_agents_*/")):
        lines = [HEADER, ["---"] * len(HEADER), *table(directory)]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        title = directory.name.removeprefix("compare_agents_")
        parts.append(f"\n## {title}\n\n{rows}\n")
    return "".join(parts)


PAGES = {"environment.md": environment_page, "pretrained.md": pretrained_page, "leaderboard.md": leaderboard_page}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
