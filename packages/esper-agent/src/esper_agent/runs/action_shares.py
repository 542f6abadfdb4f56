"""How often each value of the op head is chosen, on record after every rollout."""

from typing import TYPE_CHECKING, cast

from stable_baselines3.common.callbacks import BaseCallback

if TYPE_CHECKING:
    from esper_agent.ppo import FactoredRecurrentPPO

SHARE_KEY = "rollout/share/"  # then the head and the value, such as rollout/share/op/3


class ActionShares(BaseCallback):
    """Logs the shares of a rollout's decisions; they sum to 1."""

    def _on_rollout_end(self) -> None:
        model = cast("FactoredRecurrentPPO", self.model)
        chosen = model.buffer.actions[:, 0][model.buffer.decisions]
        (counts,) = model.ranks.sum(chosen.bincount(minlength=model.action_spec.sizes[0]))
        for value, share in enumerate((counts / counts.sum().clamp(min=1)).tolist()):
            self.logger.record(f"{SHARE_KEY}{model.action_spec.heads[0]}/{value}", share)

    def _on_step(self) -> bool:
        return True
