"""The environment ids, and what each fixes."""

from typing import Any

import gymnasium

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    # Two lesioned blocks at once are left to Esper-Deep-v0, where they are twice as frequent.
    "Esper-v0": {"task": "digits_mlp", "lesion_weights": (0.3, 0.6, 0.1)},
    "Esper-Deep-v0": {
        "task": "digits_deep",
        "lesion_weights": (0.1, 0.7, 0.2),
        "live_units": (1, 1),
        # A seed that random play prunes soon teaches nothing: with 6, seeds in right and wrong places earn the same.
        "prune_age": 9,
        "embargo_steps": 8,
        "rent": 0.04,
        "slot_rent": 0.02,
    },
    # Measurements cost. The loss of 16 samples may jump fivefold by chance.
    "Esper-Partial-v0": {
        "task": "digits_mlp",
        "lesion_weights": (0.3, 0.6, 0.1),
        "measurements": "partial",
        "validation_samples": 16,
        "spike_loss": 1000.0,
    },
    # Hosts that are simply small somewhere. A fee per seed would cost what seeds everywhere bring; prices and a budget
    # that differ by episode make both sparing and choosing worth while.
    "Esper-Shapes-v0": {
        "task": "digits_mlp",
        "shapes": "widths",
        "live_units": (2, 24),
        "rent": (0.02, 1.5),
        "slot_rent": 0.0,
        "budget": (1, 3),
    },
    # Classes come and go: what a host needs differs by phase. A new class is no collapse.
    "Esper-Stream-v0": {
        "task": "digits_mlp",
        "horizon": 60,
        "phases": (2, 4),
        "phase_classes": (2, 10),
        "phase_steps": 10,
        "reward": "stream",
        "collapse_loss": 100.0,
        "spike_loss": 1000.0,
    },
    "Esper-CNN-v0": {
        "task": "digits_cnn",
        "lesion_weights": (0.2, 0.5, 0.3),
        "learning_rate": (0.08, 0.18),
        "live_units": (1, 1),
    },
    "Esper-FashionMNIST-v0": {
        "task": "fashion_mnist_cnn",
        "learning_rate": (0.005, 0.015),
        "live_units": (1, 2),
        "rent": 0.03,
        "slot_rent": 0.02,
    },
    "Esper-CIFAR10-v0": {
        "task": "cifar10_cnn",
        "learning_rate": (0.002, 0.005),
        "live_units": (1, 2),
        "rent": 0.02,
        "slot_rent": 0.01,
    },
    "Esper-Text-v0": {
        "task": "text",
        "learning_rate": (0.008, 0.02),
        "live_units": (1, 2),
        "rent": 0.1,
        "slot_rent": 0.02,
    },
}


def register_environments() -> None:
    """Register every id that is not registered yet, so that importing twice is harmless."""
    for name, kwargs in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="esper_env.env:EsperEnv",
                vector_entry_point="esper_env.vector_env:EsperVectorEnv",
                kwargs=kwargs,
            )
