"""Files that were made to harm, or were harmed, are refused before anything of them is used, and without gigabytes."""

import json
import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from esper_agent.algorithm.archive import FORMAT, CheckpointError
from esper_agent.algorithm.checkpoint import OLDEST_VERSION, SCHEMA_VERSION, load_checkpoint, save_checkpoint

WEIGHTS = {"policy": {"w": torch.arange(4096.0), "b": torch.arange(3)}}
LIMIT = 200 << 20

MEASURE = """
import resource, sys
from esper_agent.algorithm.archive import CheckpointError
from esper_agent.algorithm.checkpoint import load_checkpoint
load_checkpoint(sys.argv[1])  # whatever a first time costs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    state = load_checkpoint(sys.argv[2])
    print("loaded", [tensor.clone() for tensor in state.get("policy", {}).values()])
except CheckpointError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, error)
"""


def document(tree: str = "{}", version: int = SCHEMA_VERSION, tensors: Any = ()) -> dict[str, Any]:
    return {"format": FORMAT, "version": version, "tree": tree, "tensors": list(tensors)}


class Filler:
    """A gigabyte, by means that torch thinks harmless."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return bytearray, (1 << 30,)


def expanded(path: Path) -> None:
    tree = json.dumps({"policy": {"w": {"$tensor": 0}}})
    torch.save(document(tree, tensors=[torch.zeros(1).expand(3_500_000_000)]), path)


def overlapping_rows(path: Path) -> None:
    tree = json.dumps({"policy": {"w": {"$tensor": 0}}})
    torch.save(document(tree, tensors=[torch.zeros(8).as_strided((1000, 4), (0, 1))]), path)


def filling(path: Path) -> None:
    torch.save({**document(), "more": Filler()}, path)
    rewrite(path, "data.pkl", lambda content: content.replace(b"c__builtin__\n", b"cbuiltins\n"))


def rewrite(path: Path, suffix: str, edit: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Change one record of an archive, with the right checksum."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            chosen = name.endswith(suffix)
            archive.writestr(name, edit(content) if chosen else content, compression if chosen else zipfile.ZIP_STORED)


def short(path: Path) -> None:
    save_checkpoint(path, WEIGHTS)
    rewrite(path, "data/0", lambda content: content[:100])


def swapped(path: Path) -> None:
    save_checkpoint(path, WEIGHTS)
    rewrite(path, "byteorder", lambda _: b"big")


def deflated(path: Path) -> None:
    save_checkpoint(path, WEIGHTS)
    rewrite(path, "data/0", lambda content: content, zipfile.ZIP_DEFLATED)


def bomb(path: Path) -> None:
    save_checkpoint(path, WEIGHTS)
    rewrite(path, "version", lambda _: bytes(1 << 28), zipfile.ZIP_DEFLATED)


def deep(path: Path) -> None:
    torch.save(document("[" * 200_000 + "]" * 200_000), path)


CRAFTED: dict[Callable[[Path], None], str] = {
    expanded: "storage of 4",
    overlapping_rows: "storage of 32",
    filling: "foreign objects",
    short: "checksums|damaged",
    swapped: "checksums",
    deflated: "compressed",
    bomb: "compressed",
    deep: "malformed",
}


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize("craft", CRAFTED, ids=lambda craft: craft.__name__)
def test_a_crafted_file_is_refused_before_it_takes_memory(tmp_path: Path, craft: Callable[[Path], None]) -> None:
    save_checkpoint(tmp_path / "good.ckpt", WEIGHTS)
    craft(tmp_path / "bad.ckpt")
    with pytest.raises(CheckpointError, match=CRAFTED[craft]) as raised:
        load_checkpoint(tmp_path / "bad.ckpt")
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 500
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "good.ckpt"), str(tmp_path / "bad.ckpt")]
    output = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert int(output.stdout.split()[0]) < LIMIT, output


def test_a_rewritten_file_with_nothing_changed_is_the_same(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.ckpt", WEIGHTS)
    rewrite(tmp_path / "a.ckpt", "data/0", lambda content: content)
    assert torch.equal(load_checkpoint(tmp_path / "a.ckpt")["policy"]["w"], WEIGHTS["policy"]["w"])


@pytest.mark.ledger("Y12")
@pytest.mark.parametrize("version", [OLDEST_VERSION, SCHEMA_VERSION])
@pytest.mark.parametrize("tree", ["[]", "[1]", "5", "null", '"text"', '{"config": 5}', "[[[["])
def test_a_state_that_is_no_dictionary_is_one_error(tmp_path: Path, version: int, tree: str) -> None:
    torch.save(document(tree, version), tmp_path / "a.ckpt")
    if (version, tree) == (SCHEMA_VERSION, '{"config": 5}'):
        assert load_checkpoint(tmp_path / "a.ckpt") == {"config": 5}
    else:
        with pytest.raises(CheckpointError, match="malformed"):
            load_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.ledger("Y12")
def test_junk_instead_of_a_pickle_is_one_error(tmp_path: Path) -> None:
    generator = random.Random(0)
    whole = pickle.dumps({"format": FORMAT, "version": SCHEMA_VERSION, "tree": "{}", "tensors": []}, protocol=2)
    for number in range(200):
        junk = bytearray(whole if number % 2 else generator.randbytes(60))
        for _ in range(generator.randint(1, 5)):
            junk[generator.randrange(len(junk))] = generator.randrange(256)
        file = tmp_path / "junk.ckpt"
        save_checkpoint(file, WEIGHTS)
        rewrite(file, "data.pkl", lambda _, content=bytes(junk): content)  # type: ignore[misc]
        with pytest.raises(CheckpointError):
            load_checkpoint(file)


@pytest.mark.ledger("Y2")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["policy", "optimizer"])
def test_weights_that_are_not_finite_are_never_written_over_good_ones(tmp_path: Path, part: str, bad: float) -> None:
    good = {part: {"0": {"w": torch.ones(3)}}, "env": {"best": torch.tensor(float("inf"))}}
    poisoned = {**good, part: {"0": {"w": torch.tensor([1.0, bad, 1.0])}}}
    save_checkpoint(tmp_path / "a.ckpt", good)
    with pytest.raises(CheckpointError, match=rf"{part}\.0\.w holds numbers that are not finite; nothing was written"):
        save_checkpoint(tmp_path / "a.ckpt", poisoned)
    assert torch.equal(load_checkpoint(tmp_path / "a.ckpt")[part]["0"]["w"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [tmp_path / "a.ckpt"]


@pytest.mark.ledger("Y2")
def test_weights_that_are_not_finite_are_refused_on_load(tmp_path: Path) -> None:
    tree = json.dumps({"policy": {"w": {"$tensor": 0}}})
    torch.save(document(tree, tensors=[torch.tensor([1.0, float("nan")])]), tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"policy\.w holds numbers that are not finite; .*a\.ckpt is refused"):
        load_checkpoint(tmp_path / "a.ckpt")
