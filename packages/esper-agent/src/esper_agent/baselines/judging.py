"""Baselines that look where to grow: by the host's gradients, and by what trial seeds promise."""

from esper_env import Op, Stage

from esper_agent.baselines.scripted import Actions, Baseline, Floats, Infos, require_value, waiting
from esper_agent.evaluation.episodes import Env, Flags


class GreedyScore(Baseline):
    """Plants trial seeds where the gradient is largest, then commits those that promise the most, whatever that is.

    Args:
        env: As for `Baseline`.
        start: The step of the first trial; one follows per step.
        trials: How many slots are tried, by the gradient norm at the block's output.
        incubation: Steps from the last planting to the choice.
        seeds: How many are committed at most, by their prospective contribution; the others are pruned.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(
        self, env: Env, start: int = 2, trials: int = 1, incubation: int = 2, seeds: int = 1, **seed: int
    ) -> None:
        super().__init__(env, **seed)
        require_value("trials", trials, self.slots, low=1)
        require_value("seeds", seeds, self.slots, low=1)
        require_value("incubation", incubation, self.config.horizon, low=self.config.training_steps)
        self.start, self.trials, self.incubation, self.seeds = start, trials, incubation, seeds

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Commit, plant in the first steps, and after the trial advance the best and prune the rest."""
        self.choose(actions, Op.FOSSILIZE, self.may(observation, Op.FOSSILIZE))
        since = (self.step(observation) - self.start)[:, None]
        planting, judging = (since >= 0) & (since < self.trials), since >= self.trials - 1 + self.incubation
        gradient = self.slot_field(observation, "block_gradient")
        self.choose(actions, Op.GERMINATE, self.may_grow(observation) & planting, gradient)
        chosen = self.in_stage(observation, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
        enough = chosen.sum(axis=1, keepdims=True) >= self.seeds
        prospect = self.slot_field(observation, "prospect")
        self.choose(actions, Op.ADVANCE, self.may(observation, Op.ADVANCE) & judging & ~enough, prospect)
        rest = self.in_stage(observation, Stage.TRAINING) & self.may(observation, Op.PRUNE)
        self.choose(actions, Op.PRUNE, rest & judging & enough)
        return actions


class TryAndPrune(Baseline):
    """Tries one slot after the other, those with large gradients first; commits what pays and prunes what does not.

    Its state is which slots were tried, [n, slots].

    Args:
        env: As for `Baseline`.
        start: The step of the first trial.
        incubation: Steps that a trial takes.
        threshold: Least prospective contribution of a seed that is advanced, and least contribution of one that is
            committed.
        seeds: How many are committed at most.
        **seed: Blueprint, blend and tempo, as for `Baseline`.
    """

    def __init__(
        self, env: Env, start: int = 2, incubation: int = 3, threshold: float = 0.03, seeds: int = 1, **seed: int
    ) -> None:
        super().__init__(env, **seed)
        require_value("seeds", seeds, self.slots, low=1)
        require_value("incubation", incubation, self.config.horizon, low=self.config.training_steps)
        self.start, self.incubation, self.threshold, self.seeds = start, incubation, threshold, seeds

    def respond(self, observation: Floats, state: Flags | None, begun: Flags, infos: Infos) -> tuple[Actions, Flags]:
        """Judge what is there, then plant in a slot that was not tried yet."""
        del infos
        tried = ~self.in_stage(observation, Stage.DORMANT)
        if state is not None:
            tried |= state & ~begun[:, None]
        actions = self.act(observation, waiting(len(observation)))
        fresh = self.may_grow(observation) & ~tried & self._wanted(observation)
        self.choose(actions, Op.GERMINATE, fresh, self.slot_field(observation, "block_gradient"))
        return actions, tried

    def act(self, observation: Floats, actions: Actions) -> Actions:
        """Decide about seeds whose trial is over: by the prospect while they incubate, by the contribution after."""
        held, incubated = self.may(observation, Op.FOSSILIZE), self._incubated(observation)
        pays = self.slot_field(observation, "contribution") >= self.threshold
        promises = self.slot_field(observation, "prospect") >= self.threshold
        self.choose(actions, Op.FOSSILIZE, held & pays)
        self.choose(actions, Op.ADVANCE, incubated & promises)
        useless = (held & ~pays) | (incubated & ~promises)
        self.choose(actions, Op.PRUNE, useless & self.may(observation, Op.PRUNE))
        return actions

    def _incubated(self, observation: Floats) -> Flags:
        over: Flags = self.steps(self.slot_field(observation, "stage_age")) >= self.incubation
        return self.may(observation, Op.ADVANCE) & over

    def _wanted(self, observation: Floats) -> Flags:
        """Rows in which it is time for another trial, [n, 1]."""
        committed = self.in_stage(observation, Stage.FOSSILIZED).sum(axis=1, keepdims=True)
        wanted: Flags = (self.step(observation)[:, None] >= self.start) & (committed < self.seeds)
        return wanted & self.idle(observation)
