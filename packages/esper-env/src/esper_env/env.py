"""The single environment: a population of one behind Gymnasium's `Env`."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from esper_env.mdp.actions import HEADS
from esper_env.population.evaluation import Evaluation
from esper_env.population.export import GrownNetwork
from esper_env.vector_env import EsperVectorEnv


class EsperEnv(gymnasium.Env[NDArray[np.float32], dict[str, Any]]):
    """Grow a neural network while it trains.

    ## Description
    A neural network, the **host**, learns a data set. It is a row of blocks, and beside each block is a **slot**.
    While the host trains, the agent may graft a small module, a **seed**, into a slot: the seed reads the input of
    its block and adds to the block's output. A seed first learns in the host's shadow, is then blended in over a few
    steps, and is at last committed for good (fossilised) or removed (pruned).

    Each episode draws an **instance**: which blocks of the host are lesioned, with few live units (none, one or two),
    the learning rate, the label noise, and the part of the data that is used; with `shapes="widths"` the width of every
    block; and, where they are given as ranges, the prices of capacity and the number of seeds allowed. So where, what,
    when and whether to grow differs by episode, and must be inferred from how the host behaves: of the instance an
    observation tells only prices and budget.

    One step: apply the operation; train the host and its seeds for a fixed number of minibatches; move ramps and
    dwell times on; validate, with and without each seed; restore the host if it collapsed; observe and reward.

    With `measurements="partial"` a step, but for the last one, measures less, as a training run that grows must: it
    validates on few samples, drawn anew by each row and step, and looks at one slot, in turn. Only there gradients and
    what a seed adds are measured, and earlier metrics are not repeated: evidence must be gathered and remembered. The
    metric of the final reward is that of all samples.

    With more than one of `phases` the data are a **stream**: each phase has some of the classes, drawn like the steps
    with which phases begin, and a step trains and validates on samples of the present phase only. Nothing tells that a
    phase began but the measurements. Metrics, those of rewards and of `evaluate_test` among them, are over all samples
    of the split that are of the phase that was trained on last; at the end that is the episode's last phase.

    | Id | Host | Data |
    |---|---|---|
    | `Esper-v0` | MLP, 3 blocks of 24 units | digits, 8x8 (scikit-learn) |
    | `Esper-Deep-v0` | MLP, 6 blocks of 20 units; one place in six, more expensive parameters | the same |
    | `Esper-Partial-v0` | that of `Esper-v0`; a step measures 16 validation samples and one slot | the same |
    | `Esper-Shapes-v0` | MLP, 3 blocks of 2 to 24 units, all widths drawn; drawn price and budget | the same |
    | `Esper-Stream-v0` | that of `Esper-v0`, for 60 steps; 2 to 4 phases of 2 to 10 classes | the same |
    | `Esper-CNN-v0` | CNN, 3 blocks of 6, 8, 8 channels | the same |
    | `Esper-FashionMNIST-v0` | CNN, 3 blocks of 8, 16, 24 channels | Fashion-MNIST, 28x28; 10,000 training images |
    | `Esper-CIFAR10-v0` | CNN, 3 blocks of 8, 16, 24 channels | CIFAR-10, 32x32; 10,000 training images |
    | `Esper-Text-v0` | transformer, 3 blocks of 24 units and 2 heads | characters of a text, 24 at a time |

    The metric is accuracy; of the text it is 1 - bits per character / log2(48), the share of bits that the host saves
    of those that a uniform guess among the 48 characters takes, or zero if it saves none. The text is what
    `esper-env data import text PATH` imported; without it, a generated language in which brackets and verbs must agree
    with what was opened before.

    Fashion-MNIST and CIFAR-10 need files: `esper-env data fetch NAME` downloads them, `esper-env data import NAME PATH`
    imports them. Their images enter in patches of 4x4 pixels, shifted and (CIFAR-10) mirrored at random. Other hosts
    for them are the tasks NAME_blunted (the middle block has 4 channels), NAME_minimal (4 channels everywhere) and, for
    a GPU, NAME_capable (32, 64, 128 channels, whole images, all data), where NAME is fashion_mnist or cifar10.

    `gymnasium.make_vec(id, num_envs=n)` gives `EsperVectorEnv`, in which n hosts train as one tensor program.

    ## Action Space
    A `Dict` of `Discrete` heads. `Dict` sorts its keys; the order of the heads is `env.unwrapped.heads`.

    | Head | Values | Used by |
    |---|---|---|
    | `op` | 0 WAIT, 1 GERMINATE, 2 ADVANCE, 3 FOSSILIZE, 4 PRUNE | every operation |
    | `slot` | one per block | all but WAIT |
    | `blueprint` | what to graft; 5 kinds, listed below | GERMINATE |
    | `blend` | 0 ADD `h + a d(x)`, 1 MULTIPLY `h (1 + a tanh d(x))`, 2 GATE `h + a sigmoid(g(x)) d(x)` | GERMINATE |
    | `tempo` | the ramp takes 3, 5 or 8 steps | GERMINATE |

    Here h is the block's output, x its input, d the seed, a its alpha. Blueprints of the MLPs are low_rank,
    narrow_mlp, medium_mlp, wide_mlp and gated_unit; of the CNN pointwise, depthwise, bottleneck, convolution and
    wide_convolution; of the transformer affine_norm, low_rank_adapter, gated_mlp, attention_head and wide_token_mlp.
    Heads that the operation does not use are ignored.

    ### Lifecycle and legality
    DORMANT -> TRAINING -> BLENDING -> HOLDING -> FOSSILIZED; a prune leads to EMBARGOED, and then to DORMANT.

    | Operation | Legal in a slot that is | Leads to |
    |---|---|---|
    | GERMINATE | DORMANT, after `warmup_steps`, within the `budget` | TRAINING: the seed learns, unfelt by the host |
    | ADVANCE | TRAINING for `training_steps` | BLENDING: alpha rises to 1, then HOLDING by itself |
    | FOSSILIZE | HOLDING for `holding_steps` | FOSSILIZED: stays to the end, trains on, pays rent |
    | PRUNE | TRAINING, BLENDING or HOLDING, and `prune_age` steps old | EMBARGOED for `embargo_steps` |

    WAIT is always legal. `info["action_mask"]` holds one int8 array per head, the values that some legal action has,
    as `action_space.sample(mask)` takes them. `info["action_mask_by_op"]` holds one int8 table (operations, values)
    per head, and is exact: the row of an operation that does not use the head, or is illegal, has its only 1 at value
    0. An illegal action is executed as WAIT, sets `info["invalid_action"]` and costs `invalid_action_cost`. An action
    outside the space raises an error.

    ## Observation Space
    A float32 `Box` vector of 27 + 29 x slots numbers: the fields of the host, then those of slot 0, slot 1, ...
    Prices that are ranges, and a budget, add one number each to those of the host.
    `env.unwrapped.describe_observation(vector)` prints a vector as a table; `env.unwrapped.observation_entities` says
    which head chooses among the slots, and how many numbers describe the host and each slot. A measurement that does
    not exist is 0, and its flag says so. Losses are l / (l + that of a uniform guess); other unbounded quantities pass
    x / (1 + x).

    | Field | Size | Min | Max | Meaning |
    |---|---|---|---|---|
    | `progress` | 1 | 0 | 1 | steps taken / horizon |
    | `trained` | 1 | 0 | 1 | training has been measured |
    | `train_loss` | 1 | 0 | 1 | training loss of the step, relative to a uniform guess |
    | `train_loss_change` | 1 | -1 | 1 | its change since the step before |
    | `val_loss` | 1 | 0 | 1 | validation loss, relative to a uniform guess |
    | `val_loss_change` | 1 | -1 | 1 | its change since the step before |
    | `val_metric` | 1 | 0 | 1 | validation metric |
    | `val_metric_change` | 1 | -1 | 1 | its change since the step before |
    | `val_metric_best` | 1 | 0 | 1 | the best so far |
    | `metric_history` | 4 | 0 | 1 | earlier metrics, newest first |
    | `metric_history_known` | 4 | 0 | 1 | whether each was measured |
    | `plateau` | 1 | 0 | 1 | steps since the best metric rose / horizon |
    | `added_parameters` | 1 | 0 | 1 | parameters of all seeds / of the host |
    | `budget_used` | 1 | 0 | 1 | the same / of the largest seeds everywhere |
    | `rollbacks` | 1 | 0 | 1 | rollbacks / those allowed |
    | `last_op` | 5 | 0 | 1 | the operation of the last step, one-hot |
    | `last_executed` | 1 | 0 | 1 | it was legal and executed |

    If `rent` or `slot_rent` is a range, or there is a `budget`, the host also has:

    | Field | Size | Min | Max | Meaning |
    |---|---|---|---|---|
    | `rent` | 1 | 0 | 1 | the price of parameters, if it is drawn |
    | `slot_rent` | 1 | 0 | 1 | the price of a seed, if it is drawn |
    | `seeds_left` | 1 | 0 | 1 | seeds that the budget still allows / slots, if there is one |

    Each slot has:

    | Field | Size | Min | Max | Meaning |
    |---|---|---|---|---|
    | `stage` | 6 | 0 | 1 | the stage, one-hot |
    | `alpha` | 1 | 0 | 1 | share of the seed that acts |
    | `contribution` | 1 | -1 | 1 | metric with the seed minus without it |
    | `contribution_known` | 1 | 0 | 1 | a seed is there and was measured |
    | `prospect` | 1 | -1 | 1 | what an incubating seed would add at alpha 1 |
    | `prospect_known` | 1 | 0 | 1 | a seed incubates there |
    | `block_gradient` | 1 | 0 | 1 | gradient norm at the block's output |
    | `block_gradient_share` | 1 | 0 | 1 | the same / the sum over slots |
    | `seed_gradient` | 1 | 0 | 1 | gradient norm of the seed's parameters |
    | `age` | 1 | 0 | 1 | steps since germination / horizon |
    | `stage_age` | 1 | 0 | 1 | steps in this stage / horizon |
    | `blueprint` | 5 | 0 | 1 | what was planted, one-hot |
    | `blend` | 3 | 0 | 1 | how it joins its block, one-hot |
    | `tempo` | 1 | 0 | 1 | steps of its ramp / of the longest |
    | `size` | 1 | 0 | 1 | parameters of the seed / of the largest blueprint here |
    | `position` | 1 | 0 | 1 | place of the block in the host |
    | `may_advance` | 1 | 0 | 1 | ADVANCE is legal here |
    | `may_fossilize` | 1 | 0 | 1 | FOSSILIZE is legal here |

    With `measurements="partial"` each slot also has the following. Where it is 0, gradients and what a seed adds are
    not known and 0; `block_gradient_share` and `metric_history` are not known anywhere.

    | Field | Size | Min | Max | Meaning |
    |---|---|---|---|---|
    | `looked_at` | 1 | 0 | 1 | gradients and what a seed adds were measured here |

    ## Rewards
    The reward is `reward_scale` times the sum of the terms of a preset. `info["reward_terms"]` holds the scaled
    terms, and `env.unwrapped.reward_range` the bounds of a step's reward.

    | Preset | Terms |
    |---|---|
    | `shaped` | final_metric, rent, shaping, invalid_action, rollback |
    | `sparse` | final_metric, rent, invalid_action, rollback |
    | `contribution` | those of `sparse`, contribution, entanglement, holding, alpha_shock, op_cost |
    | `stream` | final_metric, online_metric, rent, shaping, invalid_action, rollback |
    | `loss` | loss_drop, rent, invalid_action, rollback |

    | Term | Value |
    |---|---|
    | `final_metric` | at the end of the budget: the metric of the committed network, with fossilised seeds only |
    | `online_metric` | `online_weight` x metric of the network as it is / horizon |
    | `rent` | - (`rent` x parameters of all seeds / of the host + `slot_rent` x seeds) / horizon |
    | `shaping` | gamma Phi(s') - Phi(s), with Phi = 0 after the last step |
    | `invalid_action` | - `invalid_action_cost` if the action was illegal |
    | `rollback` | - `rollback_penalty` if the host collapsed and was restored |
    | `contribution` | `contribution_weight` x attribution x sum over live seeds of credit / horizon |
    | `entanglement` | - `entanglement_weight` x excess / (gain + excess + `ratio_epsilon`) / horizon |
    | `holding` | - sum over slots in HOLDING of min(`holding_slope` x steps in it, `holding_cap`) |
    | `alpha_shock` | - `shock_weight` x sum over slots of (change of alpha) squared |
    | `op_cost` | - `op_costs`[executed operation] |
    | `loss_drop` | `loss_weight` x fall of the validation loss, each relative to a uniform guess and squashed |

    Phi(s) = `metric_weight` x metric + `stage_weight` x sum over slots of phi, where phi rises from the
    `stage_potential` of the slot's stage to that of the next one as the stage goes on. The gain is the metric minus
    that of the control or, where there is none, of the network without any seed, or 0; the excess is by how much the
    sum of the positive contributions exceeds it; attribution is (gain + `ratio_epsilon`) / (gain + excess +
    `ratio_epsilon`); credit is a seed's contribution times a factor that grows from 0 to 1 over the `legitimate_age`
    steps after its incubation.

    Of a single seed the network without any seed tells nothing: what the removal costs is then all that was gained.
    So gain is measured against the **control**, the same host trained on the same data without any seed, wherever the
    preset has a contribution or entanglement term, or `control_interval` asks for it; it takes about as long as the
    host itself. `info["control_metric"]` and `info["control_measured"]` exist only then.

    `info["detectors"]` flags signs of gaming: ransomware (a seed whose removal hurts, in a network that gained
    nothing over its control; there only if there is a control, and False where `control_measured` is),
    entanglement (the same against the network without any seed: seeds that undo each other), churn (seeds planted and
    pruned over and over) and endless_holding (neither committed nor removed).

    ### Info
    What a log shows of the hosts, at every reset and step; of a vector, arrays with one entry per row.

    | Key | Meaning |
    |---|---|
    | `action_mask`, `action_mask_by_op` | what is legal now, by head |
    | `executed_op` | the operation that was executed: WAIT for an illegal action, GERMINATE for a germination, ... |
    | `invalid_action` | the action was illegal |
    | `rolled_back` | the host collapsed and was restored |
    | `reward_terms` | the scaled terms of the reward, by name |
    | `detectors` | signs of gaming, by name |
    | `metric`, `committed_metric` | validation metric of the network, and with fossilised seeds only (see below) |
    | `added_parameters` | parameters of all seeds / of the host |
    | `training_flops` | of this step's training of host and seeds: products, forward and backward, without validation |
    | `seeds` | how many seeds are in each stage: training, blending, holding, fossilized |
    | `control_metric`, `control_measured` | validation metric of the control, and whether it was measured now |

    With partial measurements `committed_metric` is `metric` until the last step. Of a stream there are also:

    | Key | Meaning |
    |---|---|
    | `phase` | the number of the phase that was measured last, from 0 |
    | `forgetting` | the best metric of each earlier phase while it lasted, minus that on its samples now; their mean |
    | `recovery` | metric minus that after the first step of the phase |

    ## Starting State
    A host with fresh weights that has not trained, all slots DORMANT. `reset(seed=s)` begins the first episode of the
    seed, further calls without a seed the next ones; everything random is a pure function of the seed and the
    episode. `instances="train"`, `"validation"` and `"test"` draw from disjoint sets: agents train on the first, are
    chosen and tuned on the second, and results are published from the third.

    ## Episode End
    - Terminated: after `horizon` steps.
    - Terminated: at the collapse of the host that follows `max_rollbacks` restored ones. Loss that is not finite, above
      `collapse_loss` times that of a uniform guess, or above `spike_loss` times the last one counts as collapse.
    - Truncated: never by the environment itself.

    ## Arguments
    `gymnasium.make("Esper-v0", horizon=20, reward="sparse")`. Defaults in parentheses; the ids set some of them.

    - `render_mode` (None): "ansi" for text or "rgb_array" for a picture, which needs `pip install "esper-env[render]"`.
      Both show the lesioned blocks, which no observation does.
    - `task` (set by the id): what the host learns, and which host: "digits_mlp", "digits_deep", "digits_cnn",
      "fashion_mnist_cnn", "cifar10_cnn", "text", and the others above.
    - `horizon` (30): steps of an episode.
    - `gamma` (0.99): the discount, which the shaping depends on; an agent uses `env.unwrapped.gamma`.
    - `device` ("cpu"): where torch computes, such as "cpu" or "cuda".
    - `threads` (None): threads of torch while the environment works; None for one per 4 MiB of activations, at most
      torch's own number, with one core left free. Before and after, torch has the number that it had.
    - `dtype` ("float32"): precision of the networks, "float32" or "float64".
    - `instances` ("train"): which instances episodes draw, "train", "validation" or "test".
    - `shapes` ("lesions"): "lesions" for hosts of which few blocks are narrowed, or "widths" for hosts of which every
      block has a width drawn log-uniformly from `live_units`; `lesion_weights` then say nothing.
    - `lesion_weights` ((0.3, 0.5, 0.2)): how often none, one and two blocks are lesioned.
    - `live_units` ((1, 3)): least and greatest number of live units in a lesioned block, or of any block's width.
    - `learning_rate` ((0.12, 0.25)): range of the learning rate.
    - `label_noise` ((0.0, 0.1)): range of the share of training labels that are redrawn.
    - `subset` ((0.6, 1.0)): range of the share of the training data that is used.
    - `budget` (None): how many seeds a host may have at a time: a number, two numbers of which each episode draws one
      from the first to the second, or None for one seed per slot.
    - `phases` ((1, 1)): least and greatest number of phases of the data; with (1, 1) the data never change.
    - `phase_classes` ((2, 10)): least and greatest number of classes that a phase has; which ones is drawn. A redrawn
      label may be any class. Two phases may by chance have the same classes.
    - `phase_steps` (10): steps of the shortest phase, or horizon / most phases if that is less; the steps that remain
      are spread over the phases at random.
    - `warmup_steps` (2): steps that a host trains before GERMINATE is legal.
    - `training_steps` (2): steps in TRAINING before ADVANCE is legal.
    - `holding_steps` (1): steps in HOLDING before FOSSILIZE is legal.
    - `prune_age` (4): steps after germination before PRUNE is legal.
    - `embargo_steps` (6): decisions for which a pruned slot stays closed.
    - `collapse_loss` (4.0): a loss above this many times that of a uniform guess is a collapse.
    - `spike_loss` (5.0): a validation loss above this many times that of the step before is a collapse.
    - `small_loss` (0.05): a loss before the spike below this share of a uniform guess's counts as that much.
    - `max_rollbacks` (2): how many collapses are restored; the next one ends the episode.
    - `rollback_penalty` (0.5): price of a collapse.
    - `reward` ("shaped"): the preset.
    - `reward_scale` (1.0): factor of the whole reward.
    - `invalid_action_cost` (0.0): price of an illegal action.
    - `rent` (0.03): price of holding as many parameters as the host has for a whole episode: a number, or a range of
      which each episode draws its own, log-uniformly (uniformly if the range begins at 0). A drawn price is observed.
    - `slot_rent` (0.04): price of holding a seed, however small, for a whole episode; a number or a range, likewise.
    - `metric_weight` (1.0): weight of the metric in Phi.
    - `stage_weight` (0.01): weight of the slots in Phi.
    - `stage_potential` ((0.0, 0.1, 0.3, 0.6, 1.0, 0.0)): phi at the beginning of DORMANT, TRAINING, BLENDING, HOLDING,
      FOSSILIZED, EMBARGOED.
    - `contribution_weight` (0.2): weight of the contribution term.
    - `entanglement_weight` (0.05): weight of the entanglement term.
    - `ratio_epsilon` (0.01): what keeps ratios of small gains finite.
    - `legitimate_age` (3): steps after incubation until a seed's contribution counts fully.
    - `holding_slope` (0.002): price of a step in HOLDING, times the steps already there.
    - `holding_cap` (0.01): greatest such price per step and slot.
    - `shock_weight` (0.01): price of sudden changes of alpha.
    - `op_costs` ((0.0, 0.002, 0.001, 0.001, 0.002)): prices of WAIT, GERMINATE, ADVANCE, FOSSILIZE, PRUNE.
    - `loss_weight` (1.0): weight of the loss_drop term.
    - `online_weight` (1.0): weight of the online_metric term.
    - `control_interval` (0): steps between measurements of the control; 0 if only the reward may ask for it.
    - `ransom_contribution` (0.1): contribution above which ransomware is suspected.
    - `ransom_gain` (0.02): gain of all seeds up to which it is.
    - `churn_prunes` (3): prunes in an episode that count as churn.
    - `holding_limit` (6): steps in HOLDING that count as endless.
    - `measurements` ("full"): what a step measures: "full" for all validation samples and what every seed adds, or
      "partial" for some samples and one slot, in turn; then neither the preset "contribution" nor the detectors that
      need what every seed adds are there.
    - `validation_samples` (16): how many samples a partial measurement draws.
    - `plateau_tolerance` (0.005): by how much the metric must rise to end a plateau.

    The data has three splits: the agent's reward and observation come from the validation split, and only
    `env.unwrapped.evaluate_test()` reads the test split.

    ## Version History
    - v0: Initial version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's form)
    heads = HEADS

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        self.row = EsperVectorEnv(1, render_mode=render_mode, autoreset_mode="disabled", **settings)
        self.render_mode = self.row.render_mode
        self.observation_space = self.row.single_observation_space
        self.action_space = self.row.single_action_space
        self.config, self.gamma, self.reward_range = self.row.config, self.row.gamma, self.row.reward_range
        self.observation_entities = self.row.observation_entities

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; with a seed, the first one of that seed."""
        super().reset(seed=seed, options=options)
        observation, infos = self.row.reset(seed=[seed])
        return observation[0], _first(infos)

    def step(self, action: dict[str, Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply the operation, train one epoch, validate, and reward."""
        if self.row.simulation.ended.any():
            raise RuntimeError("the episode is over; call reset() before step()")
        observation, reward, terminated, _, infos = self.row.step(action)
        return observation[0], float(reward[0]), bool(terminated[0]), False, _first(infos)

    def render(self) -> Any:
        """The picture or text of the present state, or None without a render mode."""
        frames = self.row.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Nothing is held open; closing twice is fine."""

    def legality(self) -> dict[str, Any]:
        """The masks of the present state, `action_mask` and `action_mask_by_op`, as in info."""
        return _first(self.row.legality())

    def current(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The present observation and info, for continuing after `load_state_dict`."""
        observation, infos = self.row.current()
        return observation[0], _first(infos)

    def evaluate_test(self) -> Evaluation:
        """The host on the test split, which no step reads."""
        return self.row.evaluate_test()

    def export_host(self) -> GrownNetwork:
        """The host with its live seeds as a plain `nn.Module`."""
        return self.row.export_host(0)

    def describe_observation(self, vector: Any) -> str:
        """An observation as a readable table."""
        return self.row.describe_observation(vector)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the future depends on, as nested dicts of tensors and plain values."""
        return self.row.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from `state_dict()` of an environment with the same arguments."""
        self.row.load_state_dict(saved)


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector's only row."""
    return {key: _first_value(value) for key, value in infos.items() if not key.startswith("_")}


def _first_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _first_value(one) for key, one in value.items()}
    one = value[0]
    return one.copy() if isinstance(one, np.ndarray) else one.item()
