"""Growing a neural network while it trains, as a Gymnasium environment.

`import esper_env` registers the environments with Gymnasium.
"""

from esper_env.blueprints.blends import Blend
from esper_env.env import EsperEnv
from esper_env.growing import GrowingModule
from esper_env.mdp.actions import HEADS, RELEVANT_HEADS, Op
from esper_env.mdp.masks import sample_action, sample_mask
from esper_env.mdp.state import Stage
from esper_env.registration import register_environments
from esper_env.vector_env import EsperVectorEnv

__version__ = "0.2.0.dev0"
__all__ = [
    "HEADS",
    "RELEVANT_HEADS",
    "Blend",
    "EsperEnv",
    "EsperVectorEnv",
    "GrowingModule",
    "Op",
    "Stage",
    "sample_action",
    "sample_mask",
]

register_environments()
