"""Conformance checks that any vector environment can run: spaces, autoreset, seeding, rows, copies, masks, closing.

    from esper_env.testing import check_vector_env

    check_vector_env(
        lambda n, mode: gymnasium.make_vec("Esper-v0", n, autoreset_mode=mode, horizon=3, dtype="float64"),
        lambda: gymnasium.make("Esper-v0", horizon=3, dtype="float64"),
    )

Every check raises an `AssertionError` that says what is wrong.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from esper_env.testing.comparing import differences, leaves, rows_of, unlike
from esper_env.testing.playing import Env, Played, Subject, Vector, other_actions, play

MODES = ("next_step", "same_step", "disabled")


def check_vector_env(
    make: Callable[[int, str], Vector],
    make_single: Callable[[], Env] | None = None,
    *,
    num_envs: int = 3,
    max_steps: int = 50,
    seed: int = 123,
    tolerance: float = 1e-6,
) -> None:
    """Run every check.

    Args:
        make: Makes the vector environment from a number of rows and an autoreset mode ("next_step", "same_step",
            "disabled"), with NumPy outputs.
        make_single: Makes the single environment that each row must equal; without it that check is left out.
        num_envs: How many rows to check with.
        max_steps: Within how many steps an episode ends under random legal play.
        seed: Of the resets and of the actions.
        tolerance: By how much numbers of a row may differ from those of the single environment.
    """
    subject = Subject(make, make_single, num_envs, max_steps, seed, tolerance)
    for check in CHECKS:
        check(subject)


def check_spaces(subject: Subject) -> None:
    """Spaces are batches of the single ones; what reset and step return lies in them and has the right types."""
    for mode in MODES:
        env, observations, infos = subject.begin(mode)
        n = subject.num_envs
        assert env.num_envs == n, f"num_envs is {env.num_envs}; made with {n}"
        for kind in ("observation", "action"):
            batched = batch_space(getattr(env, f"single_{kind}_space"), n)
            assert getattr(env, f"{kind}_space") == batched, (
                f"{kind}_space is not batch_space(single_{kind}_space, {n})"
            )
        declared = env.metadata.get("autoreset_mode")
        assert declared is AutoresetMode[mode.upper()], (
            f"metadata['autoreset_mode'] is {declared!r}; made with {mode!r}"
        )
        assert observations in env.observation_space, "reset: the observation is not in observation_space"
        assert isinstance(infos, dict), f"reset: infos is a {type(infos).__name__}, not a dict"
        step = play(env, infos)
        assert step.observations in env.observation_space, "step: the observation is not in observation_space"
        _check_step_types(step, n)


def _check_step_types(step: Played, n: int) -> None:
    kinds = {"rewards": np.floating, "terminated": np.bool_, "truncated": np.bool_}
    for name, kind in kinds.items():
        value = getattr(step, name)
        right = isinstance(value, np.ndarray) and value.shape == (n,) and np.issubdtype(value.dtype, kind)
        assert right, f"step: {name} is {value!r}; expected an array of shape ({n},) and type {kind.__name__}"
    assert np.isfinite(step.rewards).all(), f"step: rewards are not finite: {step.rewards}"
    assert isinstance(step.infos, dict), f"step: infos is a {type(step.infos).__name__}, not a dict"


def check_next_step(subject: Subject) -> None:
    """NEXT_STEP: the step after an end ignores the action of that row, resets it, and rewards nothing."""
    env, steps = subject.play_until_end("next_step")
    other, other_steps = subject.play_until_end("next_step")
    ended = np.flatnonzero(steps[-1].ended).tolist()
    assert np.array_equal(steps[-1].ended, other_steps[-1].ended), "next_step: the same seed ends differently"
    first = play(env, steps[-1].infos)
    reset, *_ = other.step(other_actions(other, first.actions, ended))
    depends = unlike(env.observation_space, first.observations, reset)
    begun = unlike(env.observation_space, first.observations, steps[-1].observations)
    for row in ended:
        assert first.rewards[row] == 0.0, f"next_step: row {row} is rewarded {first.rewards[row]} for its reset"
        assert not first.ended[row], f"next_step: row {row} ends again in the step that resets it"
        assert row not in depends, f"next_step: the reset of row {row} depends on the action"
        assert row in begun, f"next_step: row {row} was not reset in the step after its end"


def check_same_step(subject: Subject) -> None:
    """SAME_STEP: an ended row gives its first new observation, and its last one in infos["final_obs"]."""
    env, steps = subject.play_until_end("same_step")
    last, ended = steps[-1], steps[-1].ended
    for step in steps[:-1]:
        assert "final_obs" not in step.infos, "same_step: infos has final_obs although no episode ended"
    for key in ("final_obs", "_final_obs", "final_info", "_final_info"):
        assert key in last.infos, f"same_step: an episode ended and infos has no {key!r}"
    marks = {key: last.infos[key] for key in ("_final_obs", "_final_info")}
    marks |= {f"final_info: {key}": rows for key, rows in last.infos["final_info"].items() if key.startswith("_")}
    for key, rows in marks.items():
        assert np.array_equal(rows, ended), f"same_step: infos[{key!r}] does not mark the ended rows"
    final = last.infos["final_obs"]
    assert isinstance(final, np.ndarray), f"same_step: final_obs is a {type(final).__name__}, not an array"
    assert final.dtype == object, f"same_step: final_obs has dtype {final.dtype}, not object"
    for row, begun in enumerate(rows_of(env.observation_space, last.observations)):
        if not ended[row]:
            assert final[row] is None, f"same_step: final_obs[{row}] is set although its episode goes on"
            continue
        legal = final[row] in env.single_observation_space
        assert legal, f"same_step: final_obs[{row}] is not in single_observation_space"
        new = differences(begun, final[row])
        assert new, f"same_step: row {row} returned its final observation instead of a new one"


def check_disabled(subject: Subject) -> None:
    """DISABLED: reset with a mask begins only those rows anew, and leaves the caller's options alone."""
    env, steps = subject.play_until_end("disabled")
    last = steps[-1].observations
    mask = np.zeros(subject.num_envs, dtype=np.bool_)
    mask[np.flatnonzero(steps[-1].ended)[0]] = True
    options = {"reset_mask": mask.copy()}
    observations, _ = env.reset(options=options)
    assert list(options) == ["reset_mask"], "disabled: reset(options=...) changed the caller's options"
    assert np.array_equal(options["reset_mask"], mask), "disabled: reset changed the caller's reset_mask"
    assert observations in env.observation_space, "disabled: the observation of a masked reset is not in the space"
    changed = unlike(env.observation_space, last, observations)
    for row in range(subject.num_envs):
        assert row in changed or not mask[row], f"disabled: reset_mask selects row {row}, which was not reset"
        assert row not in changed or mask[row], f"disabled: reset_mask spares row {row}, which changed"


def check_seeding(subject: Subject) -> None:
    """An integer seed means seed, seed + 1, ...; a list is taken as it is; None goes on."""
    env, first, _ = subject.begin("disabled")
    numbers = [subject.seed + row for row in range(subject.num_envs)]
    following, third = env.reset()[0], env.reset()[0]
    assert differences(following, third), "seeding: reset() without a seed repeats the episode before"
    assert not differences(env.reset(seed=subject.seed)[0], first), "seeding: the same seed gives another observation"
    assert not differences(env.reset()[0], following), "seeding: the episode after a seeded one differs between runs"
    assert differences(first, following), "seeding: reset() without a seed repeats the seeded episode"
    by_list, _ = env.reset(seed=numbers)  # type: ignore[arg-type]
    assert not differences(by_list, first), f"seeding: seed={subject.seed} and seed={numbers} differ"
    shifted, _ = env.reset(seed=subject.seed + 1)
    earlier, later = rows_of(env.observation_space, first), rows_of(env.observation_space, shifted)
    for row in range(subject.num_envs - 1):
        moved = differences(later[row], earlier[row + 1])
        assert not moved, f"seeding: row {row} of seed s + 1 is not row {row + 1} of seed s"


def check_rows(subject: Subject) -> None:
    """Row i equals a single environment with the seed of row i, in every mode, beyond the end of an episode."""
    if subject.make_single is None:
        return
    for mode in MODES:
        env, observations, infos = subject.begin(mode)
        single = SyncVectorEnv([subject.make_single] * subject.num_envs, autoreset_mode=AutoresetMode[mode.upper()])
        expected, _ = single.reset(seed=subject.seed)
        _check_observations(subject, env, observations, expected, f"rows: {mode}, reset")
        remaining = subject.max_steps
        while remaining:
            step = play(env, infos)
            reference = Played(step.actions, *single.step(step.actions))
            _check_results(subject, step, reference, f"rows: {mode}")
            observations, infos, expected = step.observations, step.infos, reference.observations
            if mode == "disabled" and step.ended.any():
                observations, infos = env.reset(options={"reset_mask": step.ended})
                expected, _ = single.reset(options={"reset_mask": step.ended})
            _check_observations(subject, env, observations, expected, f"rows: {mode}")
            remaining = min(remaining - 1, 2) if step.ended.any() else remaining - 1


def _check_observations(subject: Subject, env: Vector, found: Any, expected: Any, where: str) -> None:
    wrong = unlike(env.observation_space, found, expected, subject.tolerance)
    assert not wrong, f"{where}: the observation of row {min(wrong)} is not that of the single environment"


def _check_results(subject: Subject, step: Played, expected: Played, where: str) -> None:
    for row, (mine, reward) in enumerate(zip(step.rewards, expected.rewards, strict=True)):
        near = abs(mine - reward) <= subject.tolerance * max(1.0, abs(reward))
        assert near, f"{where}: row {row} is rewarded {mine}; the single environment {reward}"
        ends, flags = ([one.terminated[row], one.truncated[row]] for one in (step, expected))
        assert ends == flags, f"{where}: row {row} has terminated, truncated = {ends}; the single one {flags}"


def check_copies(subject: Subject) -> None:
    """Nothing that was returned shares memory with anything else that was, or changes later."""
    for mode in MODES:
        env, steps = subject.play_until_end(mode)
        results: list[Any] = [vars(step) | {"actions": None} for step in steps[-2:]]
        if mode != "disabled":
            before = deepcopy(results)
            results.append(vars(play(env, steps[-1].infos)) | {"actions": None})
            changed = [path for old, new in zip(before, results, strict=False) for path in differences(old, new)]
            assert not changed, f"copies: {mode}: a later step changed what was returned before: {changed[0]}"
        arrays = [
            (f"result {number}{path}", array) for number, one in enumerate(results) for path, array in leaves(one, "")
        ]
        for place, (path, array) in enumerate(arrays):
            for other_path, other in arrays[:place]:
                shared = array.size and np.shares_memory(array, other)
                assert not shared, f"copies: {mode}: {path} and {other_path} share memory"


def check_masks(subject: Subject) -> None:
    """Masks in infos have the form of the action space, and every row has a legal value in each of its heads."""
    for mode in MODES:
        env, _, infos = subject.begin(mode)
        _check_masks(env, infos, f"masks: {mode}, reset")
        env, steps = subject.play_until_end(mode)
        for number, step in enumerate(steps, start=1):
            _check_masks(env, step.infos, f"masks: {mode}, step {number}")
            if "final_info" in step.infos:
                _check_masks(env, step.infos["final_info"], f"masks: {mode}, step {number}, final_info", step.ended)


def _check_masks(env: Vector, infos: dict[str, Any], where: str, rows: Any = slice(None)) -> None:
    if "action_mask" not in infos:
        return
    mask, space = infos["action_mask"], env.single_action_space
    heads = {key: flags for key, flags in mask.items() if key[0] != "_"} if isinstance(mask, dict) else {"action": mask}
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"action": space}
    assert set(heads) == set(parts), f"{where}: action_mask has the heads {sorted(heads)}, not {sorted(parts)}"
    for head, flags in heads.items():
        assert len(flags) == env.num_envs, f"{where}: action_mask[{head!r}] has {len(flags)} rows, not {env.num_envs}"
        _check_flags(flags[rows], parts[head], f"{where}: action_mask[{head!r}]")
    by_op = infos.get("action_mask_by_op", {})
    for head, table in ((head, by_op[head][rows]) for head in parts if head in by_op):
        assert table.any(axis=-1).all(), f"{where}: action_mask_by_op[{head!r}] has a row without a legal value"


def _check_flags(flags: NDArray[Any], space: gymnasium.Space[Any], name: str) -> None:
    sizes = space.nvec.tolist() if isinstance(space, gymnasium.spaces.MultiDiscrete) else [int(space.n)]  # type: ignore[attr-defined]
    assert flags.shape[1:] == (sum(sizes),), f"{name} has rows of shape {flags.shape[1:]}; expected ({sum(sizes)},)"
    assert flags.dtype == np.int8, f"{name} has type {flags.dtype}; expected int8, as Space.sample(mask) takes"
    for part in np.split(flags, np.cumsum(sizes)[:-1], axis=1):
        assert part.any(axis=1).all(), f"{name} leaves a row without a legal value"


def check_close(subject: Subject) -> None:
    """Closing twice is legal, before a reset as well as after."""
    for begun in (False, True):
        env = subject.make(subject.num_envs, "next_step")
        if begun:
            env.reset(seed=subject.seed)
        env.close()
        try:
            env.close()
        except Exception as error:
            raise AssertionError(f"close: closing twice raises {error!r}") from error


CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_spaces,
    check_next_step,
    check_same_step,
    check_disabled,
    check_seeding,
    check_rows,
    check_copies,
    check_masks,
    check_close,
)
