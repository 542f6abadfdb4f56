"""Escalation: when an event is critical, what an engineer would ask for next is gathered, and told on the console."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from esper_env.files import replace_text
from torch import Tensor

from esper_agent.algorithm.loss import Targets
from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.algorithm.update import Learner
from esper_agent.diagnostics.alarms import Event, Severity, say
from esper_agent.diagnostics.metrics import Metrics

DIRECTORY = "critical"
WORST = 5  # steps in a dossier

Dossier = dict[str, Any]


class Escalation:
    """Tells each kind of critical event once, and writes a dossier of every one."""

    def __init__(self) -> None:
        self.told: set[tuple[str, str | None]] = set()

    def report(self, events: Sequence[Event], dossier: Dossier, directory: str | None) -> None:
        """Write a dossier for every critical event, if there is a directory, and say what is in it.

        Args:
            events: those of the update.
            dossier: what `investigate` found.
            directory: where the run keeps its files.
        """
        for event in events:
            file = None if directory is None else Path(directory) / DIRECTORY / _file_name(event)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                whole = _plain({"event": asdict(event), **dossier})
                replace_text(file, json.dumps(whole, indent=1, allow_nan=False) + "\n")
            if (event.name, event.head) not in self.told:
                self.told.add((event.name, event.head))
                say(Severity.CRITICAL, _sentence(event, dossier) + ("" if file is None else f"; see {file}"))


def critical(events: Sequence[Event]) -> list[Event]:
    """Those that ask for an engineer."""
    return [event for event in events if event.severity is Severity.CRITICAL]


@torch.no_grad()
def investigate(learner: Learner, batch: SequenceBatch, targets: Targets, metrics: Metrics) -> Dossier:
    """Layers, worst ratios and the first non-finite numbers, as the update has left them."""
    evaluation = learner.evaluate(batch)
    outputs = {"lstm": evaluation.hidden, "logits": evaluation.distribution.scores, "values": evaluation.values}
    named = dict(learner.policy.named_parameters())
    gradients = {name: parameter.grad for name, parameter in named.items() if parameter.grad is not None}
    found: dict[str, Mapping[str, Tensor]] = {"parameter": named, "gradient": gradients, "output": outputs}
    return {
        "layers": {name: _layer(named[name], gradients.get(name)) for name in named},
        "first_nonfinite": {kind: _first_nonfinite(tensors) for kind, tensors in found.items()},
        "worst_ratios": _worst(learner, batch, targets, evaluation.distribution.entry_log_prob(batch.entries)),
        "metrics": metrics,
    }


def _layer(parameter: Tensor, gradient: Tensor | None) -> dict[str, float]:
    return {
        "norm": float(parameter.norm()),
        "largest": float(parameter.abs().max()),
        "gradient_norm": math.nan if gradient is None else float(gradient.norm()),
        "nonfinite": int((~parameter.isfinite()).sum()),
    }


def _first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first by name, in the order in which data pass."""
    return next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)


def _worst(learner: Learner, batch: SequenceBatch, targets: Targets, log_probs: Tensor) -> list[Dossier]:
    """The steps whose joint probability, or one head's, changed most: when, what was done, and how likely it was."""
    ratios = torch.where(batch.decisions, log_probs - targets.head_log_probs, 0.0).flatten(1)
    sizes = torch.cat([ratios, ratios.sum(0, keepdim=True)]).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).amax(0)
    before, after = targets.head_log_probs.flatten(1).exp(), log_probs.flatten(1).exp()
    actions, index, heads = batch.actions.flatten(1), batch.index.flatten(), learner.policy.actions.heads

    def by_head(values: Tensor, step: int) -> dict[str, Any]:
        return dict(zip(heads, values[:, step].tolist(), strict=True))

    return [
        {
            "step": int(index[step]),
            "head": heads[int(ratios[:, step].abs().nan_to_num(nan=torch.inf).argmax())],
            "action": by_head(actions, step),
            "log_ratio": by_head(ratios, step),
            "old_probability": by_head(before, step),
            "new_probability": by_head(after, step),
        }
        for step in sizes.topk(min(WORST, len(sizes))).indices.tolist()
    ]


def _sentence(event: Event, dossier: Dossier) -> str:
    """What happened, and the layer, head, steps and actions to look at first."""
    layers, lost, worst = dossier["layers"], dossier["first_nonfinite"], dossier["worst_ratios"]
    steepest = max(layers, key=lambda name: layers[name]["gradient_norm"])
    broken = lost["parameter"] or lost["gradient"] or lost["output"]
    layer = f"first non-finite layer {broken}" if broken else f"steepest layer {steepest}"
    head = event.head or worst[0]["head"]
    steps = ", ".join(f"{each['step']} ({_action(each['action'])})" for each in worst[:3])
    return f"{event.name} at {event.step} steps: {event.message}; {layer}; head {head}; rollout steps {steps}"


def _action(action: Mapping[str, int]) -> str:
    return " ".join(f"{head}={value}" for head, value in action.items())


def _file_name(event: Event) -> str:
    head = f"_{event.head}" if event.head else ""
    return f"{event.name}{head}_{event.step:012d}.json"


def _plain(value: Any) -> Any:
    """The same with words for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
