"""Data on disk: read exactly, verified whenever used, installed whole or not at all."""

import gzip
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from random import Random
from typing import BinaryIO

import numpy as np
import pytest
from data_tools import crafted, idx, installed, noise, packed
from esper_env.cli import main
from esper_env.files import replacing
from esper_env.tasks.data import DATASETS, DataError, DataFile, data_directory, install, writing
from esper_env.tasks.data.idx import read_idx
from esper_env.tasks.text import read_corpus
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

CONTENTS = {"images": noise(3000), "labels": noise(100, seed=1)}
FINE = "Grüße, 世界!\n"
LONG = FINE + "".join(Random(0).choices("ABCDEFG ,.\n1", k=60_000))


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))


# IDX


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)), st.booleans())
def test_idx_files_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, zip_it: bool
) -> None:
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(idx(array)) if zip_it else idx(array))
    np.testing.assert_array_equal(read_idx(path), array)


BAD_IDX = {
    "empty": (b"", "begins with ; allowed"),
    "floats": (bytes([0, 0, 13, 1, 0, 0, 0, 1]) + bytes(4), "begins with 00000d01; allowed"),
    "text": (b"%PDF-1.4", "begins with 25504446; allowed"),
    "no shape": (bytes([0, 0, 8, 3, 0, 0]), "has 6 bytes; its header announces"),
    "short": (idx(np.zeros((3, 4), np.uint8))[:-1], "has 23 bytes; its header announces 12 + 12"),
    "long": (idx(np.zeros((3, 4), np.uint8)) + b"x", "has 25 bytes; its header announces 12 + 12"),
    "cut gzip": (gzip.compress(idx(np.zeros(5000, np.uint8)))[:-9], "is truncated or is not a gzip file"),
    "bad gzip": (b"\x1f\x8b" + noise(50), "is truncated or is not a gzip file"),
}


@pytest.mark.parametrize("fault", BAD_IDX)
def test_a_bad_idx_file_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    contents, message = BAD_IDX[fault]
    (tmp_path / "array").write_bytes(contents)
    with pytest.raises(DataError, match=rf"array {re.escape(message)}"):
        read_idx(tmp_path / "array")


# Installing


@pytest.mark.parametrize("nested", ["", "usr/share/datasets"])
def test_files_are_imported_from_a_directory_plain_or_gzipped(tmp_path: Path, nested: str) -> None:
    source = packed({"labels": CONTENTS["labels"]}, tmp_path / "source" / nested)
    (source / "images").write_bytes(CONTENTS["images"])
    dataset = crafted(CONTENTS)
    install(dataset, tmp_path / "source")
    assert installed(dataset) == CONTENTS
    assert dataset.require() == dataset.directory == tmp_path / "data" / "crafted"


def test_files_are_imported_from_an_archive_or_by_naming_one_of_them(tmp_path: Path) -> None:
    source = packed(CONTENTS, tmp_path / "source")
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(source, "package")
    for path in (tmp_path / "all.tar", source / "images.gz"):
        dataset = crafted(CONTENTS, name=path.stem)
        install(dataset, path)
        assert installed(dataset) == CONTENTS


def test_an_archive_that_would_write_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(CONTENTS["images"])
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(tmp_path / "images", "../../escaped")
    with pytest.raises(DataError, match=r"evil\.tar cannot be unpacked"):
        install(crafted(CONTENTS), tmp_path / "evil.tar")
    assert not list(tmp_path.rglob("escaped"))


def bad_sources(folder: Path) -> dict[str, tuple[Path, str]]:
    wrong = packed(CONTENTS | {"labels": b"other"}, folder / "wrong")
    half = packed(CONTENTS, folder / "half")
    (half / "labels.gz").write_bytes((half / "labels.gz").read_bytes()[:-12])
    lacking = packed({"images": CONTENTS["images"]}, folder / "lacking")
    return {
        "wrong": (wrong, "labels is refused: 5 bytes with sha256 "),
        "half": (half, f"{half / 'labels.gz'} is truncated or is not a gzip file"),
        "lacking": (lacking, f"{lacking} does not hold labels; allowed: two files"),
        "absent": (folder / "absent", f"{folder / 'absent'} does not exist; allowed: two files"),
    }


@pytest.mark.parametrize("fault", ["wrong", "half", "lacking", "absent"])
def test_a_bad_source_is_refused_by_name_and_leaves_nothing_half(tmp_path: Path, fault: str) -> None:
    source, message = bad_sources(tmp_path)[fault]
    dataset = crafted(CONTENTS)
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        install(dataset, source)
    assert "labels" not in installed(dataset)
    assert not [name for name in installed(dataset) if name not in CONTENTS]
    with pytest.raises(DataError, match=r"^crafted: missing in "):
        dataset.require()


def test_a_good_file_survives_a_bad_import(tmp_path: Path) -> None:
    dataset = crafted(CONTENTS)
    install(dataset, packed(CONTENTS, tmp_path / "good"))
    with pytest.raises(DataError, match="labels is refused"):
        install(dataset, bad_sources(tmp_path)["wrong"][0])
    assert installed(dataset) == CONTENTS


def test_a_file_that_changed_on_the_disk_is_refused_by_name_until_it_is_replaced(tmp_path: Path) -> None:
    dataset, source = crafted(CONTENTS, urls=("http://x/y",)), packed(CONTENTS, tmp_path / "source")
    install(dataset, source)
    path = dataset.directory / "images"
    path.write_bytes(CONTENTS["images"][:-1])
    expected = f"crafted: damaged in {dataset.directory}: images; run `esper-env data fetch crafted` or "
    with pytest.raises(DataError, match=f"^{re.escape(expected)}"):
        dataset.require()
    install(dataset, source)
    assert dataset.require()


def test_what_is_missing_is_told_in_one_line_with_the_command_that_brings_it(tmp_path: Path) -> None:
    dataset = crafted(CONTENTS, urls=("http://x/y",))
    with pytest.raises(DataError) as raised:
        dataset.require()
    assert str(raised.value) == (
        f"crafted: missing in {tmp_path / 'data' / 'crafted'}: images, labels; run `esper-env data fetch crafted` "
        "or `esper-env data import crafted PATH` (PATH: two files)"
    )


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file is in the way", encoding="ascii")
    with pytest.raises(DataError, match=r"^cannot make the directory .*crafted: (Not a directory|File exists)"):
        install(crafted(CONTENTS), packed(CONTENTS, tmp_path / "source"))


FULL_DISK = """
import resource, sys
from esper_env.cli import main
from esper_env.files import replacing
from esper_env.tasks.data import writing
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the system refuses to write more, as on a full disk
sys.exit(main(["data", "import", "text", sys.argv[1]]))
"""


def test_a_full_disk_gives_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("words " * 1000, encoding="ascii")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "long.txt")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert result.returncode == 1
    corpus = tmp_path / "data" / "text" / "corpus.txt"
    assert result.stderr == f"esper-env: error: cannot write {corpus}: File too large\n"
    assert list(corpus.parent.iterdir()) == []


# Bombs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How large each file was when its writing ended, well or badly."""
    sizes: list[int] = []

    @contextmanager
    def watched(path: Path) -> Iterator[BinaryIO]:
        with replacing(path) as file:
            try:
                yield file
            finally:
                sizes.append(file.tell())

    monkeypatch.setattr(writing, "replacing", watched)
    return sizes


@pytest.mark.ledger("Y9")
def test_a_gzip_bomb_is_refused_before_more_than_the_declared_size_is_written(
    tmp_path: Path, written: list[int]
) -> None:
    dataset = crafted(CONTENTS)
    install(dataset, packed(CONTENTS, tmp_path / "good"))
    written.clear()
    bomb = packed(CONTENTS | {"images": bytes(8 << 20)}, tmp_path / "bomb")
    with pytest.raises(DataError, match=r"^images is refused: more than 3,000 bytes$"):
        install(dataset, bomb)
    assert written[0] <= 3000
    assert installed(dataset) == CONTENTS


@pytest.mark.ledger("Y9")
@pytest.mark.parametrize("members", [[8 << 20], [0] * 20, [2000] * 4])
def test_an_archive_that_unpacks_to_far_more_than_the_data_set_is_refused(tmp_path: Path, members: list[int]) -> None:
    dataset, path = crafted(CONTENTS), tmp_path / "bomb.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for number, size in enumerate(members):
            (member := tarfile.TarInfo(f"images{number}")).size = size
            archive.addfile(member, BytesIO(bytes(size)))
    with pytest.raises(DataError, match=rf"^{path} is refused: it unpacks to more than 6,200 bytes$"):
        install(dataset, path)
    assert installed(dataset) == {}


@pytest.mark.ledger("Y9")
def test_every_file_of_every_data_set_declares_its_size() -> None:
    for dataset in (DATASETS[name] for name in DATASETS):
        for file in dataset.files:
            there = dataset.directory / file.name
            assert 0 < file.most_bytes <= 100_000_000
            assert file.sha256 is None or not there.exists() or there.stat().st_size == file.most_bytes
    with pytest.raises(TypeError, match="most_bytes"):
        DataFile("unlimited")  # type: ignore[call-arg]


# The data directory


def test_the_data_directory_is_the_chosen_one_or_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_directory() == tmp_path / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ESPER_DATA", "~/mine")
    assert data_directory() == tmp_path / "mine"
    monkeypatch.setenv("ESPER_DATA", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for platform, expected in (("linux", ".cache/esper"), ("darwin", "Library/Caches/esper")):
        monkeypatch.setattr("sys.platform", platform)
        assert data_directory() == tmp_path / expected
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_directory() == tmp_path / "xdg" / "esper"


# Text


def test_any_utf8_file_is_the_corpus_once_imported(tmp_path: Path) -> None:
    assert read_corpus() is None
    (tmp_path / "story.md").write_bytes(LONG.encode())
    assert main(["data", "import", "text", str(tmp_path / "story.md")]) == 0
    assert read_corpus() == LONG
    assert (tmp_path / "data" / "text" / "corpus.txt").read_bytes() == LONG.encode()


@pytest.mark.ledger("Y9")
def test_a_text_that_is_too_short_is_refused_before_it_replaces_a_good_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, contents in (("long", LONG), ("short", FINE * 20)):
        (tmp_path / name).write_text(contents, encoding="utf-8")
    assert main(["data", "import", "text", str(tmp_path / "long")]) == 0
    assert main(["data", "import", "text", str(tmp_path / "short")]) == 1
    assert re.fullmatch(r"esper-env: error: .* different pieces .* allowed: from 2304 on\n", capsys.readouterr().err)
    assert read_corpus() == LONG
    assert [path.name for path in (tmp_path / "data" / "text").iterdir()] == ["corpus.txt"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b"abc\xff", "is not UTF-8 text: invalid start byte near byte 3"),
        (FINE.encode()[:3], "is not UTF-8 text: unexpected end of data"),
        (FINE.encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_what_is_no_text_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: bytes, message: str
) -> None:
    (tmp_path / "story").write_bytes(contents)
    assert main(["data", "import", "text", str(tmp_path / "story")]) == 1
    assert f"esper-env: error: {tmp_path / 'story'} {message}" in capsys.readouterr().err
    assert read_corpus() is None


# The command


def test_list_tells_missing_damaged_and_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATASETS, "_items", {"crafted": crafted(CONTENTS)})
    states = []
    for prepare in (
        lambda: None,
        lambda: main(["data", "import", "crafted", str(packed(CONTENTS, tmp_path / "source"))]),
        lambda: (DATASETS["crafted"].directory / "labels").write_bytes(b"other"),
    ):
        prepare()
        capsys.readouterr()
        assert main(["data", "list"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first == f"data directory: {tmp_path / 'data'}"
        states.append(second.split()[:2])
    assert states == [["crafted", "missing"], ["crafted", "complete"], ["crafted", "damaged"]]


def test_path_prints_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'data'}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "fetch", "nonesuch"], "invalid choice: 'nonesuch'"),
        (["data", "import", "text"], "the following arguments are required: PATH"),
        (["data"], "required"),
        ([], "required"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "esper_env", "data", "path"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout == f"{tmp_path / 'data'}\n"


def test_fetch_of_complete_data_asks_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = crafted(CONTENTS, urls=("http://127.0.0.1:9/none",))
    monkeypatch.setattr(DATASETS, "_items", {"crafted": dataset})
    install(dataset, packed(CONTENTS, tmp_path / "source"))
    assert main(["data", "fetch", "crafted"]) == 0
    assert capsys.readouterr().out == f"crafted is complete in {dataset.directory}\n"


def test_an_interruption_by_hand_is_told_and_has_the_shells_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("esper_env.cli.install", stop)
    assert main(["data", "import", "text", "x"]) == 130
    assert capsys.readouterr().err == "\nstopped; run the same command again to go on\n"
