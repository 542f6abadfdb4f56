"""Which colour means what, the same in every chart; those of stages, operations and the agent are the pictures' own."""

from esper_env.mdp.rewards import TERMS

SLOTS = ("#7c2d12", "#4f46e5", "#be185d", "#0369a1", "#4d7c0f", "#86198f", "#57534e", "#b7791f")
HEADS = ("#1e1b4b", "#c2410c", "#0e7490", "#c026d3", "#65a30d", "#9f1239", "#78716c", "#854d0e")
VALUES = ("#312e81", "#ea580c", "#06b6d4", "#e879f9", "#84cc16", "#f43f5e", "#a8a29e", "#eab308")  # of an unknown head
TERM_PALETTE = (
    "#334155", "#22d3ee", "#db2777", "#0284c7", "#f97316", "#991b1b", "#16a34a", "#a21caf", "#a16207", "#7e22ce",
    "#f472b6", "#0d9488",
)  # fmt: skip
CRITIC, KL, WARNED = "#1d4ed8", "#9a3412", "#b45309"


def term_color(name: str) -> str:
    """Of a term of the reward, whichever others an episode has."""
    return TERM_PALETTE[list(TERMS).index(name) % len(TERM_PALETTE)]
