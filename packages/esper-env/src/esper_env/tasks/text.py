"""Characters of a text, each to be predicted from those before it: an imported corpus, or else a generated language.

The metric is the share of bits that the host saves: 1 - bits per character / log2(alphabet), or zero if it saves none.
"""

import re
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from esper_env.fused.layers import compression
from esper_env.fused.optimizers import AdamW
from esper_env.hosts.transformer import TransformerHost
from esper_env.tasks.base import TASKS, Data, Split, Task, kept
from esper_env.tasks.data import DATASETS, DataError, DataFile, Dataset
from esper_env.tasks.data.text import read_text, utf8
from esper_env.tasks.grammar import generate

DIGIT, OTHER = "0", "_"  # what every digit, and every character that the alphabet lacks, is read as
ALPHABET = f"\n !\"&'()*,-./:;?[]{{}}{DIGIT}{OTHER}abcdefghijklmnopqrstuvwxyz"
LENGTH = 24  # characters that a host reads at once
TRAIN, VAL, TEST = 2000, 48, 256  # windows of the text
KEY = 0
CORPUS, MOST_BYTES = "corpus.txt", 100_000_000


def fold(text: str) -> str:
    """The text in the alphabet: without case, and without telling apart digits or strange characters."""
    return re.sub(f"[^{re.escape(ALPHABET)}]", OTHER, re.sub(r"\d", DIGIT, text.lower()))


def encode(text: str) -> Tensor:
    """Characters of the alphabet as their places in it."""
    places = {character: place for place, character in enumerate(ALPHABET)}
    return torch.tensor([places[character] for character in text])


def decode(tokens: Tensor) -> str:
    """Places in the alphabet as characters."""
    return "".join(ALPHABET[place] for place in tokens.tolist())


def split_text(text: str) -> Data:
    """Windows that share no place in the text and are all different, drawn at random into three splits."""
    text, size = fold(text), LENGTH + 1  # one character more than a host reads, so that each has a successor
    windows = list(dict.fromkeys(text[start : start + size] for start in range(0, len(text) - LENGTH, size)))
    needed = TRAIN + VAL + TEST
    if len(windows) < needed:
        found = f"{len(windows)} different pieces of {size} characters"
        raise DataError(f"the text corpus has {found}; allowed: from {needed} on")
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(KEY))[:needed]
    tokens = torch.stack([encode(windows[place]) for place in order.tolist()])
    train, val, test = (Split(part[:, :-1], part[:, 1:]) for part in tokens.split([TRAIN, VAL, TEST]))
    return Data(train, val, test, len(ALPHABET))


_split_once = kept(split_text)


def _check(path: Path) -> None:
    split_text(read_text(path))


TEXT = DATASETS.register(
    "text",
    Dataset(
        name="text",
        summary="a text corpus of your own",
        files=(DataFile(CORPUS, MOST_BYTES, check=_check),),
        importable=f"any UTF-8 text file with {(TRAIN + VAL + TEST) * (LENGTH + 1):,} characters or more",
        recipes=(utf8,),
    ),
)


def read_corpus() -> str | None:
    """The imported corpus; None if there is none."""
    return None if TEXT.missing() else read_text(TEXT.directory / CORPUS)


def load_text() -> Data:
    """The splits of the imported corpus; without one, of the generated language."""
    corpus = read_corpus()
    return _split_once(_generated() if corpus is None else corpus)


@cache
def _generated() -> str:
    return generate(2 * (TRAIN + VAL + TEST) * (LENGTH + 1), KEY)


TASKS.register(
    "text",
    Task(
        host=TransformerHost(len(ALPHABET), LENGTH, width=24, heads=2, hidden=48, depth=3),
        blueprints=("affine_norm", "low_rank_adapter", "gated_mlp", "attention_head", "wide_token_mlp"),
        load=load_text,
        # With an epsilon of 1e-8, gradients that are nothing but rounding would move weights.
        optimizer=AdamW(epsilon=1e-5, weight_decay=0.0),
        batch_size=12,
        minibatches_per_step=4,
        max_grad_norm=1.0,
        metric=compression,
    ),
)
