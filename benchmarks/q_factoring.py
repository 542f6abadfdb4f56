"""What does a Q lose that adds up heads given the op, against one with a number for every joint action?

    python benchmarks/q_factoring.py --dataset esper/mixed-v0

Both are networks of the same trunk, fitted to the recorded returns-to-go of what was done, and judged by the share of
the variance of held-out returns that they explain, over all steps and over those on which a seed was planted, where
heads that might depend on each other were chosen together. It can be done where joint actions can be enumerated.
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.algorithm.update import explained_variance
from esper_agent.evaluation.statistics import difference
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.policy import Policy
from esper_agent.offline.dataset import load_recorded
from esper_agent.offline.method import mean_over
from esper_agent.offline.q_learning import of_actions, q_network, terms
from esper_agent.offline.sequences import EpisodeBatch, as_sequences
from esper_agent.offline.training import split
from esper_agent.ppo import FactoredRecurrentPPO
from esper_env import Op

MINIBATCH = 16
WHERE = ("everywhere", "planting")


@dataclass(frozen=True)
class Fitted:
    """The share of held-out variance that a Q explains."""

    everywhere: float
    planting: float


def joint(model: FactoredRecurrentPPO, batch: SequenceBatch) -> tuple[ActionSpec, SequenceBatch]:
    """The same steps with one head that numbers all joint actions."""
    sizes, number = model.action_spec.sizes, torch.zeros_like(batch.actions[0])
    for head, size in zip(batch.actions, sizes, strict=True):
        number = number * size + head
    total = int(torch.tensor(sizes).prod())
    return ActionSpec("discrete", ("action",), (total,), by_op=False, masked=False), replace(
        batch, entries=number[None]
    )


def fit(network: Policy, data: EpisodeBatch, held_out: EpisodeBatch, targets: Any, epochs: int, seed: int) -> Fitted:
    """Train a network on returns-to-go; `targets` turns returns into the network's units."""
    adam = torch.optim.AdamW(network.parameters(), lr=2e-3)
    generator, each = torch.Generator().manual_seed(seed), -(-data.count // MINIBATCH)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, each * epochs)
    for _ in range(epochs):
        for rows in torch.randperm(data.count, generator=generator).split(MINIBATCH):
            part = data.select(rows)
            error = of_actions(terms(network, part.batch), part.batch.entries) - targets(part.returns)
            adam.zero_grad()
            mean_over(error.square(), part.batch.decisions).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            adam.step()
            decay.step()
    with torch.no_grad():
        values = of_actions(terms(network, held_out.batch), held_out.batch.entries)
    planted = held_out.batch.decisions & (held_out.batch.actions[0] == int(Op.GERMINATE))
    return Fitted(*(_explained(values, targets(held_out.returns), steps) for steps in (held_out.steps, planted)))


def _explained(values: Any, returns: Any, steps: Any) -> float:
    return float(explained_variance(values[steps], returns[steps], torch.ones_like(values[steps])))


def compare(model: FactoredRecurrentPPO, data: EpisodeBatch, epochs: int, seed: int) -> dict[str, Fitted]:
    """Both forms of Q on the same episodes."""
    train, held_out = split(data, 0.2, seed)
    mean, deviation = train.returns[train.steps].mean(), train.returns[train.steps].std()
    factored = q_network(model, seed)
    spec, _ = joint(model, data.batch)
    torch.manual_seed(seed)
    whole = Policy(model.observation_encoder.size, spec, replace(model.config, idle_bias=0.0), model.entities)
    for network in (factored, whole):
        if network.normalizer is not None:
            network.normalizer.update(train.batch.observations[train.steps])
    joined, judged = (replace(part, batch=joint(model, part.batch)[1]) for part in (train, held_out))
    return {
        "factored": fit(factored, train, held_out, lambda returns: (returns - mean) / deviation, epochs, seed),
        "joint": fit(whole, joined, judged, lambda returns: (returns - mean) / deviation, epochs, seed),
    }


def measure(name: str, epochs: int, seeds: int) -> dict[str, Any]:
    """Both forms of Q on a dataset, by seed."""
    recorded = load_recorded(name)
    model = FactoredRecurrentPPO(recorded.env_id, n_envs=1, seed=0, entity_size=0)
    data = as_sequences(recorded, model)
    found = [compare(model, data, epochs, seed) for seed in range(seeds)]
    players = " + ".join(one["policy"] for one in recorded.about["policies"])
    scores = {where: {form: [getattr(one[form], where) for one in found] for form in found[0]} for where in WHERE}
    return {"players": players, "episodes": len(recorded.episodes), "env_id": recorded.env_id, **scores}


def main() -> None:
    """Compare over seeds and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", required=True, help="recorded in Esper-v0")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, options.epochs, options.seeds) for name in options.dataset]
    made = provenance()
    write_json(RESULTS / "q_factoring.json", {"provenance": made, "rows": rows})
    about = (
        f"Share of the variance of held-out returns that Q explains, {options.seeds} seeds, {options.epochs} epochs."
    )
    head = [
        "# What a factored Q loses",
        "",
        about,
        "",
        "| Played by | Episodes | Steps | Factored | Joint | Difference |",
    ]
    lines = [line for row in rows for line in table_rows(row)]
    text = "\n".join([*head, "|---|---|---|---|---|---|", *lines, "", f"`{made['command']}`", ""])
    (RESULTS / "q_factoring.md").write_text(text, encoding="utf-8")
    print(text)


def table_rows(row: dict[str, Any]) -> list[str]:
    """A line for each kind of step."""
    lines = []
    for where in WHERE:
        factored, joint_q = (np.array(row[where][form]) for form in ("factored", "joint"))
        gap = difference(factored, joint_q)
        shares = f"{factored.mean():.3f} | {joint_q.mean():.3f} | {gap}"
        lines.append(f"| {row['players']} | {row['episodes']} | {where} | {shares} |")
    return lines


if __name__ == "__main__":
    main()
