"""Threads: as many as the work is worth while an environment works, and the user's own number before and after."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from env_tools import IDS, WAIT, assert_same, everywhere, play, settings_of, tiny
from esper_env import EsperEnv, EsperVectorEnv
from esper_env.fused import threads
from esper_env.fused.threads import WORK, worthwhile_threads


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eight cores, and a user who gave torch three threads."""
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_cores", lambda: 8)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.ledger("Y17")
def test_the_number_of_threads_follows_the_work_and_leaves_a_core_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [worthwhile_threads(share * WORK // 2) for share in (0, 1, 3, 4, 6, 100)] == [1, 1, 1, 2, 3, 3]
    for cores, most in ((1, 1), (2, 1), (3, 2), (4, 3)):
        monkeypatch.setattr(threads, "_cores", lambda cores=cores: cores)
        assert worthwhile_threads(100 * WORK) == most


@pytest.mark.ledger("Y17")
@pytest.mark.parametrize("name", IDS)
def test_few_rows_take_one_thread(name: str) -> None:
    assert EsperVectorEnv(1, **settings_of(name)).threads == 1


@pytest.mark.ledger("Y17")
def test_many_rows_take_more_unless_the_user_says_how_many() -> None:
    many = tiny(4000)
    assert many.threads > 1
    assert tiny(4000, threads=1).threads == 1
    assert tiny(1, threads=2).threads == EsperEnv(task="digits_mlp", threads=2).row.threads == 2


@pytest.mark.ledger("Y17")
@pytest.mark.parametrize("own", [1, 2])
def test_an_environment_gives_torch_back_the_number_that_it_had(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = tiny(2, threads=own, horizon=2, autoreset_mode="disabled")
    seen: list[int] = []
    for name in ("reset", "step", "evaluate_test"):
        inner = getattr(env.simulation, name)

        def watched(*arguments: Any, inner: Any = inner) -> Any:
            seen.append(torch.get_num_threads())
            return inner(*arguments)

        monkeypatch.setattr(env.simulation, name, watched)
    env.reset(seed=0)
    env.step(everywhere(WAIT, 2))
    env.evaluate_test()
    with pytest.raises(ValueError, match="op"):
        env.step({**everywhere(WAIT, 2), "op": np.full(2, 99)})
    assert seen == [own] * 4  # the refused step, too
    assert torch.get_num_threads() == 3


@pytest.mark.ledger("Y17")
def test_a_saved_environment_goes_on_with_another_number_of_threads() -> None:
    one, two = tiny(2, threads=1), tiny(2, threads=2)
    for _ in play(one, 3):
        pass
    two.load_state_dict(one.state_dict())
    assert_same(one.current()[1], two.current()[1])
