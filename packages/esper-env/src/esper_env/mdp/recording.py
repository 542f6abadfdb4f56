"""What a step's training and evaluation change in the state, in the environment and in a user's own loop alike."""

import torch
from torch import Tensor

from esper_env.mdp.state import State
from esper_env.population.evaluation import Evaluation
from esper_env.population.training import TrainingReport


def record_training(state: State, report: TrainingReport) -> None:
    """Remember what an epoch showed; tensors are replaced, none is written to."""
    state.previous_train_loss = state.train_loss
    state.train_loss = report.loss.double()
    state.block_grad, state.seed_grad = report.block_grad_norm.double(), report.seed_grad_norm.double()
    state.trained = torch.ones_like(state.trained)


def record_evaluation(state: State, measured: Evaluation, seed_size: Tensor, plateau_tolerance: float) -> None:
    """Remember what an evaluation found, and the sizes of seeds [n, slots] as shares of the host's."""
    state.history = torch.cat([state.metric[:, None], state.history[:, :-1]], dim=1)
    known = torch.ones_like(state.history_known[:, :1])
    state.history_known = torch.cat([known, state.history_known[:, :-1]], dim=1)
    state.previous_loss, state.previous_metric = state.loss, state.metric
    state.loss, state.metric = measured.loss.double(), measured.metric.double()
    state.contribution, state.prospect = measured.contribution.double(), measured.prospect.double()
    state.all_off, state.committed = measured.all_off.double(), measured.committed.double()
    state.seed_size, state.added = seed_size, seed_size.sum(dim=1)
    better = state.metric > state.best_metric + plateau_tolerance
    state.plateau = torch.where(better, 0, state.plateau + 1)
    state.best_metric = torch.maximum(state.metric, state.best_metric)
