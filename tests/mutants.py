"""Mutants: small faults put into the code, each with the test that must fail on it (`make mutants`).

The Z rows of ledger.md are faults that survived the suite of version 0.1.0; the others are those feared most.
"""

from dataclasses import dataclass

ENV = "packages/esper-env/src/esper_env"
AGENT = "packages/esper-agent/src/esper_agent"
FEARED = "feared"


class StaleMutantError(ValueError):
    """The code that a mutant changes is no longer there, or not only there."""


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    row: str  # of ledger.md, or FEARED
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


MUTANTS = (
    Mutant(
        "Z18",
        "a checkpoint is read into memory instead of mapped",
        f"{AGENT}/algorithm/archive.py",
        "weights_only=True, mmap=True",
        "weights_only=True",
        "tests/agent/test_checkpoint.py::test_an_agent_takes_its_weights_straight_from_the_mapped_file",
    ),
    Mutant(
        "Z18",
        "an agent is built beside a copy of the whole file",
        f"{AGENT}/algorithm/checkpoint.py",
        "state = migrate(*_read(Path(path)))",
        "state = copy.deepcopy(migrate(*_read(Path(path))))",
        "tests/agent/test_checkpoint.py::test_an_agent_takes_its_weights_straight_from_the_mapped_file",
    ),
    Mutant(
        FEARED,
        "a head that the operation does not use keeps its choices",
        f"{ENV}/mdp/masks.py",
        'active = used & (legal | (head == "op"))',
        "active = used | legal",
        "tests/env/test_env_legality.py::test_masks_are_well_formed_and_marginals_are_the_projection_of_the_tables",
    ),
    Mutant(
        FEARED,
        "a truncated episode is not bootstrapped",
        f"{AGENT}/algorithm/rollout_buffer.py",
        "rewards + gamma * next_value * ~terminated - values",
        "rewards + gamma * next_value * ~(terminated | truncated) - values",
        "tests/agent/test_rollout.py::test_advantages_equal_the_naive_reference",
    ),
    Mutant(
        FEARED,
        "a truncated episode is valued without its memory",
        f"{AGENT}/algorithm/collector.py",
        "started = torch.zeros_like(self.starts)",
        "started = torch.ones_like(self.starts)",
        "tests/agent/test_ppo_environments.py::"
        "test_a_truncated_episode_is_valued_at_its_final_observation_with_the_carried_state",
    ),
    Mutant(
        FEARED,
        "memory survives an automatic reset in the next step",
        f"{AGENT}/algorithm/collector.py",
        "self.starts, self.resetting = self.resetting, done",
        "self.starts, self.resetting = torch.zeros_like(done), done",
        "tests/agent/test_ppo_environments.py::test_both_autoreset_modes_give_the_same_advantages",
    ),
    Mutant(
        FEARED,
        "memory survives an automatic reset in the same step",
        f"{AGENT}/algorithm/collector.py",
        "            self.starts = done",
        "            self.starts = transition.truncated",
        "tests/agent/test_ppo_environments.py::test_both_autoreset_modes_give_the_same_advantages",
    ),
    Mutant(
        FEARED,
        "an episode that the governor ends keeps its potential",
        f"{ENV}/mdp/rewards/terms.py",
        "following = torch.where(t.terminated, 0.0, t.after.potential)",
        "following = torch.where(t.finished, 0.0, t.after.potential)",
        "tests/env/test_env_shaping.py::test_shaping_telescopes_over_random_play_with_rollbacks_and_early_ends",
    ),
    Mutant(
        FEARED,
        "validation plays instances of training",
        f"{ENV}/mdp/instances.py",
        '"validation": bits + 1',
        '"validation": bits + 2',
        "tests/env/test_env_instances.py::test_the_three_sets_are_disjoint_and_episodes_do_not_repeat",
    ),
    Mutant(
        FEARED,
        "the final reward counts seeds that were never committed",
        f"{ENV}/mdp/rewards/terms.py",
        "torch.where(t.finished, t.after.committed, 0.0)",
        "torch.where(t.finished, t.after.metric, 0.0)",
        "tests/env/test_env_shaping.py::test_a_hand_worked_sparse_episode",
    ),
    Mutant(
        FEARED,
        "a rollback restores the weights without their optimiser",
        f"{ENV}/mdp/governor.py",
        "            theirs.index_copy_(0, index, mine.index_select(0, index))",
        "            theirs.index_copy_(0, index, (mine if mine is self.body[0] else theirs).index_select(0, index))",
        "tests/env/test_env_governor.py::test_a_fault_is_undone_and_charged_in_its_row_and_unnoticed_elsewhere",
    ),
    Mutant(
        FEARED,
        "optimiser state does not follow its rows when a cohort shrinks",
        f"{ENV}/population/cohort.py",
        "values, *state = (t.index_select(0, index) for t in self.tensors())",
        "values, *state = self.values.index_select(0, index), *(t[: len(index)] for t in self.state)",
        "tests/env/test_engine_cohorts.py::test_row_operations_equal_a_dictionary_of_seeds",
    ),
    Mutant(
        FEARED,
        "seeds planted at once share their random numbers",
        f"{ENV}/population/population.py",
        "draws = weight_draws(keys, Purpose.SEED_WEIGHTS",
        "draws = weight_draws(keys[:1].expand(len(keys)), Purpose.SEED_WEIGHTS",
        "tests/env/test_engine_rows.py::test_training_is_the_same_in_any_company",
    ),
    Mutant(
        FEARED,
        "a lesion leaves one unit too many alive",
        f"{ENV}/population/population.py",
        "alive = np.arange(mask.shape[1]) < live_units[:, slot, None]",
        "alive = np.arange(mask.shape[1]) <= live_units[:, slot, None]",
        "tests/env/test_engine_lesions.py::test_a_lesioned_block_has_exactly_k_live_outputs",
    ),
    Mutant(
        FEARED,
        "a checkpoint is written over the previous one",
        f"{ENV}/files.py",
        'partial = path.with_name(f".{path.name}.{os.getpid()}.partial")',
        "partial = path",
        "tests/agent/test_checkpoint.py::test_a_failed_write_leaves_the_previous_checkpoint_and_no_litter",
    ),
    Mutant(
        FEARED,
        "steps that only reset count in the loss",
        f"{AGENT}/algorithm/loss.py",
        "weights = (decisions / counts.steps.clamp(min=1)).flatten()",
        "weights = (torch.ones_like(decisions) / counts.steps.clamp(min=1)).flatten()",
        "tests/agent/test_ppo_update.py::test_steps_that_only_reset_count_for_nothing",
    ),
)
