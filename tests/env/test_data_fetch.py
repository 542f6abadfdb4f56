"""Fetching: complete and verified, or refused by name; interruptions cost nothing but time."""

import gzip
import io
import socket
import tarfile
from pathlib import Path

import pytest
from data_tools import Server, crafted, installed, noise, serving
from esper_env.tasks.data import DataError, Dataset, fetch
from esper_env.tasks.data.fetching import CHUNK
from esper_env.tasks.data.progress import Progress

CONTENTS = {"images": noise(2 * CHUNK + 321), "labels": noise(100, seed=1)}
PACKED = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in CONTENTS.items()}


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)


def dataset_at(server: Server) -> Dataset:
    return crafted(CONTENTS, urls=server.urls())


def archive(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"inner/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def test_gzipped_files_are_fetched_unpacked_and_verified() -> None:
    names: list[str] = []
    with serving(PACKED) as server:
        dataset = dataset_at(server)
        fetch(dataset, names.append)
    assert names == list(CONTENTS)
    assert installed(dataset) == CONTENTS  # and no download is left
    assert dataset.require() == dataset.directory


def test_an_archive_is_fetched_and_unpacked() -> None:
    with serving({"all.tar.gz": archive(CONTENTS)}) as server:
        dataset = dataset_at(server)
        fetch(dataset)
    assert installed(dataset) == CONTENTS


def test_an_interrupted_download_goes_on_where_it_stopped() -> None:
    sizes = list(map(len, PACKED.values()))
    with serving(PACKED, break_after=CHUNK + 7) as server:
        dataset = dataset_at(server)
        with pytest.raises(DataError, match=rf"images\.gz broke off after {CHUNK + 7} of {sizes[0]} bytes; .* again"):
            fetch(dataset)
        assert dataset.missing() == list(CONTENTS)  # nothing half is ever in place
        server.break_after = None
        fetch(dataset)
    assert server.asked == [("images.gz", None), ("images.gz", f"bytes={CHUNK + 7}-"), ("labels.gz", None)]
    assert installed(dataset) == CONTENTS


def test_a_whole_file_is_not_downloaded_again_when_a_later_one_was_missing() -> None:
    with serving({"images.gz": PACKED["images.gz"]}) as server:
        dataset = crafted(CONTENTS, urls=tuple(f"{server.address}/{name}" for name in PACKED))
        with pytest.raises(DataError, match=r"cannot fetch http://.*/labels\.gz: 404 Not Found"):
            fetch(dataset)
        server.files = PACKED
        fetch(dataset)
    assert [name for name, _ in server.asked] == ["images.gz", "labels.gz", "labels.gz"]
    assert installed(dataset) == CONTENTS


def test_a_server_that_ignores_ranges_makes_the_download_start_again() -> None:
    with serving(PACKED, break_after=1000, ranges=False) as server:
        dataset = dataset_at(server)
        with pytest.raises(DataError, match="broke off after 1000"):
            fetch(dataset)
        server.break_after = None
        fetch(dataset)
    assert installed(dataset) == CONTENTS


def test_a_rest_longer_than_the_file_makes_the_download_start_again() -> None:
    with serving(PACKED) as server:
        dataset = dataset_at(server)
        rest = dataset.directory / "downloads" / "images.gz.partial"
        rest.parent.mkdir(parents=True)
        rest.write_bytes(PACKED["images.gz"])
        fetch(dataset)
    assert [wanted for _, wanted in server.asked] == [f"bytes={len(PACKED['images.gz'])}-", None, None]
    assert installed(dataset) == CONTENTS


def test_wrong_contents_are_refused_by_name_and_the_next_attempt_starts_afresh() -> None:
    with serving(PACKED | {"labels.gz": gzip.compress(b"something else")}) as server:
        dataset = dataset_at(server)
        with pytest.raises(DataError, match=r"^labels is refused: 14 bytes with sha256 .*, expected sha256"):
            fetch(dataset)
        assert dataset.missing() == ["labels"]
        assert installed(dataset) == {"images": CONTENTS["images"]}
        server.files = PACKED
        fetch(dataset)
    assert installed(dataset) == CONTENTS


def test_a_rest_of_another_file_is_refused_and_does_no_lasting_harm() -> None:
    with serving(PACKED) as server:
        dataset = dataset_at(server)
        rest = dataset.directory / "downloads" / "images.gz.partial"
        rest.parent.mkdir(parents=True)
        rest.write_bytes(PACKED["images.gz"][:20] + noise(500, seed=2))
        with pytest.raises(DataError, match=r"images\.gz is truncated or is not a gzip file|images is refused"):
            fetch(dataset)
        assert installed(dataset) == {}
        fetch(dataset)
    assert installed(dataset) == CONTENTS


def test_a_damaged_archive_is_refused_by_name() -> None:
    whole = archive(CONTENTS)
    with serving({"all.tar.gz": whole[: len(whole) // 2]}) as server:
        dataset = dataset_at(server)
        with pytest.raises(DataError, match=r"all\.tar\.gz cannot be unpacked"):
            fetch(dataset)
    assert installed(dataset) == {}


def test_a_server_that_is_not_there_is_named_and_so_is_the_other_way_to_the_data() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/images.gz"
        with pytest.raises(
            DataError, match=rf"^cannot fetch {url}: .*refused.* run `esper-env data import crafted PATH`"
        ):
            fetch(crafted(CONTENTS, urls=(url,)))


def test_data_without_a_canonical_place_are_imported() -> None:
    with pytest.raises(DataError, match=r"^crafted has no canonical place .* run `esper-env data import crafted PATH`"):
        fetch(crafted(CONTENTS))


def test_progress_shows_how_much_of_the_whole_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress("images.gz", 1_000_000, 4_000_000)
    progress.advance(1_000_000)
    progress.close()
    shown = f"images.gz [{'#' * 15}{' ' * 15}] 2.0 of 4.0 MB"
    assert capsys.readouterr().err == f"\r{shown}\n"
    assert str(Progress("images.gz", 1_500_000, None)) == "1.5 MB"


def test_progress_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("images.gz", 0, 10)
    progress.advance(5)
    progress.close()
    assert capsys.readouterr().err == ""
