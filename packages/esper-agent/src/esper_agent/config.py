"""Every setting of the agent, in one validated place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Schedule = Callable[[float], float]
"""A function of the share of the training that remains (1 at the start, 0 at the end), as in SB3."""

Masks = Literal["exact", "marginal", "none"]

DEFAULT_GAMMA = 0.99
"""Discount for environments that declare none."""


@dataclass(frozen=True)
class DetectorConfig:
    """When a detector speaks.

    Upper limits are multiplied by `warmup_slack`, and lower limits divided by it, during the first
    `warmup_rollouts`: what is normal while the critic and the normalisers settle is an anomaly later.

    Attributes:
        entropy_floor: normalised entropy below which a head has collapsed.
        entropy_floors: floors of single heads, in place of `entropy_floor`.
        min_choice_share: a head with a choice on a smaller share of the steps is not judged.
        kl_limit: largest KL divergence that a minibatch may show.
        log_ratio_limit: largest absolute log-ratio, joint and of each head.
        value_std_share: smallest spread of the values, as a share of the returns' spread.
        gradient_high: largest smoothed gradient norm before clipping, in multiples of the clip norm.
        gradient_low: smallest smoothed gradient norm before clipping, in multiples of the clip norm.
        gradient_decay: decay of the smoothed gradient norm, per update.
        lstm_saturation_level: a hidden unit with a larger absolute value is saturated.
        lstm_saturation_share: largest share of saturated units.
        lstm_rms_floor: smallest root mean square of the hidden state.
        patience: updates in a row that a slow condition (entropy, values, LSTM) must last.
        recovery: an alarm ends when the value is better than its threshold by this factor.
        escalate_after: further updates after which a lasting alarm becomes critical.
        warmup_rollouts: rollouts with relaxed limits.
        warmup_slack: how much they are relaxed.
    """

    entropy_floor: float = 0.02
    entropy_floors: Mapping[str, float] = field(default_factory=dict)
    min_choice_share: float = 0.01
    kl_limit: float = 0.2
    log_ratio_limit: float = 5.0
    value_std_share: float = 0.01
    gradient_high: float = 20.0
    gradient_low: float = 1e-4
    gradient_decay: float = 0.9
    lstm_saturation_level: float = 0.95
    lstm_saturation_share: float = 0.5
    lstm_rms_floor: float = 1e-3
    patience: int = 3
    recovery: float = 2.0
    escalate_after: int = 10
    warmup_rollouts: int = 5
    warmup_slack: float = 4.0

    def __post_init__(self) -> None:
        _check_fields(self)
        for head, floor in self.entropy_floors.items():
            _check_range(f"entropy_floors[{head!r}]", floor, *_RANGES["entropy_floor"])

    def slack(self, rollouts: float) -> float:
        """How much limits are relaxed after this many rollouts."""
        return self.warmup_slack if rollouts <= self.warmup_rollouts else 1.0


@dataclass(frozen=True)
class PPOConfig:
    """Settings of `FactoredRecurrentPPO`; each is also one of its keyword arguments.

    The design is fixed: encoder, memory, then one hidden layer for the actor and one for the critic.
    LayerNorm stands on the encoder's output and on the memory's output; both can be switched off.

    Attributes:
        learning_rate: of AdamW; a number or a schedule over the environment steps that remain.
        n_steps: steps of each environment in one rollout.
        sequence_length: steps per sequence; each starts from its stored state. Divides `n_steps`.
        n_minibatches: minibatches per epoch, each made of whole sequences.
        n_epochs: passes over a rollout.
        gamma: discount. None takes the environment's own (0.99 if it declares none); another value than the
            environment's is refused.
        gae_lambda: decay of generalised advantage estimation.
        clip_range: allowed change of the probability ratio; a number or a schedule.
        clip_mode: "joint" clips one ratio of the joint action, "per_head" each head's ratio by itself.
        clip_range_vf: largest change of the value from the old policy's, in normalised units; None is off.
        target_kl: an update stops before a step whose minibatch shows a larger KL divergence of the joint distribution,
            computed exactly; None never stops.
        ent_coef: weight of the entropy in normalised units (1 is uniform over the legal values): a number or
            schedule for all heads, or a mapping that gives one for each head.
        entropy_unit: "share" of the largest possible entropy, whatever the number of legal values, or "nats".
        vf_coef: weight of the value loss.
        huber_delta: error, in normalised units, beyond which the value loss is linear.
        max_group_grad_norm: gradient limit of each part (trunk, every head, critic); None for none.
        max_grad_norm: limit of the total gradient norm after that.
        critic_weight_decay: weight decay of the critic; the actor and the trunk have none.
        adam_epsilon: of AdamW.
        advantage_floor: smallest divisor of the advantages, in standard deviations of the returns.
        normalize_values: the critic learns in units of the returns' running moments (PopArt); False in those of the
            rewards.
        value_window: rollouts that the running moments of the returns remember.
        normalize_observations: scale numeric observations by running moments, frozen during a rollout; one-hot ones
            are on scale already.
        observation_clip: largest absolute normalised observation.
        encoder_sizes: widths of the encoder's layers.
        encoder_norm: LayerNorm on the encoder's output.
        entity_size: width of the embedding of each entity, where the environment declares `observation_entities`;
            0 reads the observation as one flat vector.
        entity_neighbours: each entity is read together with the one before and the one after.
        memory: "lstm", "gru", or "none" for a feed-forward policy.
        memory_skip: a path around the memory: what follows reads its output plus its input, by a matrix if their widths
            differ. Without a memory there is nothing to go around.
        lstm_size: width of the LSTM or GRU.
        lstm_layers: number of its layers.
        recurrent_norm: LayerNorm on its output, the path around it included.
        forget_bias: initial bias of the forget gates, or of a GRU's update gates: above 0 the state mostly stays.
        head_hidden: width of the actor's and of the critic's hidden layer.
        condition_on_op: let the other heads see the sampled op; False makes them independent given the state.
        policy_gain: gain of the orthogonal initialisation of the policy's output layers.
        value_gain: the same for the value's output layer.
        idle_bias: first logit of the op head's value 0 over its others. Above 0 a new policy mostly idles, if that
            is what value 0 means; what one act brings then shows before acts crowd each other. 0 starts uniform.
        masks: which of the environment's masks are used. "exact" takes those that depend on the op where they are
            given, "marginal" those of each head by itself, "none" leaves illegal actions to the environment.
        precision: "float32", or "bfloat16" for autocast in acting, for the old policy and in learning alike.
        compile: compile the feed-forward parts with torch.compile; falls back with one warning.
        check_masks: verify at every step that each mask leaves a legal value.
        max_nonfinite: transitions with a non-finite reward or observation that a training may meet; each is left out of
            everything that is learnt, and one more stops the training with an error.
        stats_window_size: episodes in the averages `rollout/ep_rew_mean` and `rollout/ep_len_mean`.
        detectors: thresholds of the diagnostics.
    """

    learning_rate: float | Schedule = 1e-3
    n_steps: int = 128
    sequence_length: int = 32
    n_minibatches: int = 4
    n_epochs: int = 4
    gamma: float | None = None
    gae_lambda: float = 0.95
    clip_range: float | Schedule = 0.2
    clip_mode: Literal["joint", "per_head"] = "joint"
    clip_range_vf: float | None = None
    target_kl: float | None = 0.05
    ent_coef: float | Schedule | Mapping[str, float | Schedule] = 0.003
    entropy_unit: Literal["share", "nats"] = "share"
    vf_coef: float = 0.5
    huber_delta: float = 1.0
    max_group_grad_norm: float | None = 0.5
    max_grad_norm: float = 1.0
    critic_weight_decay: float = 1e-4
    adam_epsilon: float = 1e-5
    advantage_floor: float = 1e-4
    normalize_values: bool = True
    value_window: int = 8
    normalize_observations: bool = True
    observation_clip: float = 10.0
    encoder_sizes: tuple[int, ...] = (64, 64)
    encoder_norm: bool = True
    entity_size: int = 32
    entity_neighbours: bool = True
    memory: Literal["lstm", "gru", "none"] = "lstm"
    memory_skip: bool = False
    lstm_size: int = 64
    lstm_layers: int = 1
    recurrent_norm: bool = True
    forget_bias: float = 1.0
    head_hidden: int = 64
    condition_on_op: bool = True
    policy_gain: float = 0.01
    value_gain: float = 1.0
    idle_bias: float = 0.0
    masks: Masks = "exact"
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    check_masks: bool = False
    max_nonfinite: int = 100
    stats_window_size: int = 100
    detectors: DetectorConfig = field(default_factory=DetectorConfig)

    def __post_init__(self) -> None:
        _check_fields(self)
        right = isinstance(self.detectors, DetectorConfig)
        _require(right, "detectors", self.detectors, "a DetectorConfig, or a mapping of its fields")
        sizes, length = self.encoder_sizes, self.sequence_length
        right = len(sizes) > 0 and all(isinstance(size, int) and size >= 1 for size in sizes)
        _require(right, "encoder_sizes", sizes, "a non-empty tuple of integers of at least 1")
        _require(self.n_steps % length == 0, "sequence_length", length, f"a divisor of n_steps={self.n_steps}")


_COUNTS = {"entity_size": 0, "max_nonfinite": 0} | dict.fromkeys((
    "n_steps", "sequence_length", "n_minibatches", "n_epochs", "value_window", "lstm_size", "lstm_layers",
    "head_hidden", "stats_window_size",
), 1)  # fmt: skip
_TINY, _HUGE = 1e-30, 1e30
_NAMES_BY_RANGE: dict[tuple[float, float], tuple[str, ...]] = {
    (0.0, 1.0): (
        "learning_rate", "gamma", "gae_lambda", "critic_weight_decay", "entropy_floor", "value_std_share",
        "lstm_saturation_level", "lstm_saturation_share", "lstm_rms_floor",
    ),
    (_TINY, 1.0): ("adam_epsilon", "advantage_floor", "min_choice_share"),
    (_TINY, _HUGE): (
        "clip_range", "clip_range_vf", "target_kl", "huber_delta", "max_group_grad_norm", "max_grad_norm",
        "observation_clip", "policy_gain", "value_gain", "kl_limit", "log_ratio_limit", "gradient_high",
    ),
    (0.0, _HUGE): ("ent_coef", "vf_coef", "gradient_low", "warmup_rollouts"),
    (-_HUGE, _HUGE): ("forget_bias", "idle_bias"),
    (1.0, _HUGE): ("patience", "recovery", "escalate_after", "warmup_slack"),
    (0.0, 0.9999): ("gradient_decay",),
}  # fmt: skip
_RANGES = {name: bounds for bounds, names in _NAMES_BY_RANGE.items() for name in names}
_OPTIONAL = {"gamma", "clip_range_vf", "max_group_grad_norm", "target_kl"}
_CHOICES = {
    "clip_mode": ("joint", "per_head"),
    "entropy_unit": ("share", "nats"),
    "masks": ("exact", "marginal", "none"),
    "memory": ("lstm", "gru", "none"),
    "precision": ("float32", "bfloat16"),
}
FIELD_NAMES = tuple(entry.name for entry in fields(PPOConfig))


def _check_fields(config: "PPOConfig | DetectorConfig") -> None:
    """Counts, ranges, choices and flags hold what they may."""
    for entry in fields(config):
        name, value = entry.name, getattr(config, entry.name)
        if name in _COUNTS:
            least = _COUNTS[name]
            _require(isinstance(value, int) and value >= least, name, value, f"an integer of at least {least}")
        elif name in _RANGES and not (value is None and name in _OPTIONAL):
            _check_range(name, value, *_RANGES[name])
        elif name in _CHOICES or isinstance(entry.default, bool):
            allowed = _CHOICES.get(name, (True, False))
            _require(value in allowed, name, value, f"one of {allowed}")


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    """Numbers, also one for each head, lie in a range; a schedule is checked by nobody."""
    for part in value.values() if isinstance(value, Mapping) and name == "ent_coef" else (value,):
        in_range = callable(part) or (isinstance(part, int | float) and low <= part <= high)
        _require(in_range, name, value, _range_in_words(low, high))


def _range_in_words(low: float, high: float) -> str:
    """Ends that stand for "any" or "just above 0" are no use to a reader."""
    if high < _HUGE:
        return f"above 0, up to {high:g}" if low == _TINY else f"between {low:g} and {high:g}"
    words = {_TINY: "a positive finite number", -_HUGE: "a finite number"}
    return words.get(low, f"a finite number from {low:g} on")


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


def make_config(settings: dict[str, Any]) -> PPOConfig:
    """Settings as a config.

    Raises:
        TypeError: for a name that is not a setting.
    """
    unknown = sorted(set(settings) - set(FIELD_NAMES))
    if unknown:
        raise TypeError(f"unknown settings {unknown}; allowed: {', '.join(FIELD_NAMES)}")
    if isinstance(settings.get("detectors"), Mapping):
        settings = {**settings, "detectors": DetectorConfig(**settings["detectors"])}
    if "encoder_sizes" in settings:
        settings = {**settings, "encoder_sizes": tuple(settings["encoder_sizes"])}
    return PPOConfig(**settings)


def check_minibatches(config: PPOConfig, n_envs: int) -> None:
    """Every minibatch needs a sequence.

    Raises:
        ValueError: when there are fewer sequences than minibatches.
    """
    sequences = n_envs * config.n_steps // config.sequence_length
    if config.n_minibatches > sequences:
        raise ValueError(
            f"n_minibatches is {config.n_minibatches}; allowed: at most {sequences}, the number of sequences "
            f"(n_envs {n_envs} x n_steps {config.n_steps} / sequence_length {config.sequence_length})"
        )
