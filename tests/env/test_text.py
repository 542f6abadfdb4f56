"""The text task: a language that needs context, disjoint windows, bits as metric, and no look into the future."""

from collections import Counter
from math import log2
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from engine_tools import TINY_TEXT, Place, Stage, build, grow, logits, some_lesions, unsilence, validation
from env_tools import play
from esper_env import EsperVectorEnv
from esper_env.population.export import export_host
from esper_env.population.population import Blend, Population
from esper_env.tasks import Split
from esper_env.tasks.data import DataError
from esper_env.tasks.grammar import BRACKETS, DEEPEST, NESTING_PROBABILITY, NOUNS, VERBS, generate
from esper_env.tasks.text import ALPHABET, LENGTH, TEST, TRAIN, VAL, decode, encode, fold, load_text, split_text

CLOSING = dict(BRACKETS)
VERB_OF = {noun: verb for group, verb in zip(NOUNS, VERBS, strict=True) for noun in group}


def bits_with_memory(text: str) -> float:
    """Bits per character for a reader who remembers everything that was opened; fails if the text breaks a rule."""
    bits, nouns, closers, before = 0.0, [], [], "."
    for character in text:
        if before == "." or before in CLOSING:  # a clause begins
            nouns.append(character)
            bits += log2(len(VERB_OF))
            assert character in VERB_OF
        elif before in VERB_OF:  # the verb, or a nested clause
            nests = character in CLOSING
            if len(nouns) <= DEEPEST:
                bits -= log2(NESTING_PROBABILITY if nests else 1 - NESTING_PROBABILITY)
            if nests:
                bits += log2(len(BRACKETS))
                closers.append(CLOSING[character])
            else:
                assert character == VERB_OF[nouns.pop()]
        elif before in VERBS:  # the clause is over
            assert character == (closers.pop() if closers else ".")
        else:  # the nested clause is over
            assert character == VERB_OF[nouns.pop()]
        before = character
    assert before == "."
    assert not nouns
    return bits / len(text)


def bits_of_last(text: str, width: int) -> float:
    """Bits per character for a reader who looks at the last few only, and knows the text's own statistics."""
    places = range(width, len(text))
    seen = Counter(text[place - width : place] for place in places)
    followed = Counter(text[place - width : place + 1] for place in places)
    return sum(-count * log2(count / seen[gram[:-1]]) for gram, count in followed.items()) / len(places)


def test_the_language_needs_context() -> None:
    """A reader of the last one to four characters pays at least 0.4 bits more than one who remembers all."""
    text = generate(200_000, key=3)
    remembered = bits_with_memory(text)
    assert min(bits_of_last(text, width) for width in range(1, 5)) > remembered + 0.4
    assert remembered > 1.0


def test_the_language_is_always_the_same_and_differs_by_seed() -> None:
    assert generate(500, key=1) == generate(500, key=1) == generate(5000, key=1)[: len(generate(500, key=1))]
    assert generate(500, key=1) != generate(500, key=2)


def windows(split: Split) -> list[str]:
    """Whole windows as text."""
    return [decode(torch.cat([x, y[-1:]])) for x, y in zip(split.inputs, split.labels, strict=True)]


def test_splits_are_disjoint_and_labels_are_the_next_characters() -> None:
    data = load_text()
    splits = [windows(split) for split in (data.train, data.val, data.test)]
    assert [len(split) for split in splits] == [TRAIN, VAL, TEST]
    assert len(set().union(*splits)) == TRAIN + VAL + TEST  # so no window occurs twice, in one split or in two
    for split in (data.train, data.val, data.test):
        assert torch.equal(split.inputs[:, 1:], split.labels[:, :-1])
        assert split.inputs.shape[1] == LENGTH
    assert data.classes == len(ALPHABET)


def test_any_text_is_folded_into_the_alphabet() -> None:
    assert fold("Änn had 12 Cats;\tand\n~") == "_nn had 00 cats;_and\n_"
    assert len(set(ALPHABET)) == len(ALPHABET)
    assert decode(encode(ALPHABET)) == fold(ALPHABET) == ALPHABET


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    (tmp_path / "text").mkdir()
    return tmp_path / "text" / "corpus.txt"


def test_an_imported_corpus_takes_the_place_of_the_language(corpus: Path) -> None:
    ours = load_text()
    text = "".join(Random(0).choices("ABCDEFG ,.\n1", k=2 * (TRAIN + VAL + TEST) * (LENGTH + 1)))
    corpus.write_text(text, encoding="utf-8")
    imported = load_text()
    assert not torch.equal(imported.train.inputs, ours.train.inputs)
    assert all(window in fold(text) for window in windows(imported.val))
    env = EsperVectorEnv(1, task="text", learning_rate=(0.01, 0.01), live_units=(1, 2), horizon=1)
    assert torch.equal(env.simulation.data.train.inputs, imported.train.inputs)


def test_windows_that_occur_twice_count_once_and_too_few_are_refused(corpus: Path) -> None:
    corpus.write_text("all work and no play makes Jack a dull boy. " * 5000, encoding="utf-8")
    with pytest.raises(DataError, match=rf"has 44 different pieces of {LENGTH + 1} .* allowed: from 2304 on"):
        load_text()
    with pytest.raises(DataError, match="has 0 different pieces"):
        split_text("short")


def grown_everywhere(dtype: torch.dtype = torch.float64) -> Population:
    """Every blueprint under every blend, acting."""
    population = build(TINY_TEXT, 15, dtype=dtype, live_units=some_lesions(TINY_TEXT, 15))
    grow(population, [Place(row, row % 3, row % 5, Blend(row // 5), Stage.HOLDING) for row in range(15)])
    unsilence(population)
    return population


def test_no_seed_and_no_gate_looks_into_the_future() -> None:
    population = grown_everywhere()
    inputs, _ = validation(TINY_TEXT, population, 4)
    length = inputs.shape[1]
    whole = logits(population, inputs)
    for place in range(1, length):
        changed = inputs.clone()
        changed[:, place] = (inputs[:, place] + 1) % len(ALPHABET)
        moved = (logits(population, changed) - whole).abs().amax(dim=(1, 3))  # [row, position]
        assert moved[:, :place].max() < 1e-12
        assert moved[:, place].min() > 1e-9


def test_an_exported_host_reads_shorter_texts() -> None:
    population = grown_everywhere()
    inputs, _ = validation(TINY_TEXT, population, 4)
    whole = logits(population, inputs)
    for row in range(15):
        network = export_host(population, row)
        for length in (1, 4):
            torch.testing.assert_close(network(inputs[:, :length]), whole[row, :, :length], rtol=0.0, atol=1e-11)


def test_the_metric_is_the_share_of_bits_saved() -> None:
    env = EsperVectorEnv(2, task="text", learning_rate=(0.01, 0.02), live_units=(1, 2))
    for _ in play(env, 4, seed=2):
        pass
    val = env.simulation.data.val
    for row in range(2):
        shares = env.export_host(row)(val.inputs).softmax(dim=-1)
        bits = -shares.gather(2, val.labels.unsqueeze(2)).log2().mean().item()
        assert bits < log2(len(ALPHABET))
        metric = env.simulation.state.metric[row].item()
        assert metric == pytest.approx(1 - bits / log2(len(ALPHABET)), abs=1e-5)
    assert np.isfinite(env.evaluate_test().metric.numpy()).all()
