"""The cache is where the user says, and only files with the right checksum enter it."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from dropmuon.lab import data
from dropmuon.lab.data.cache import fetch_set
from dropmuon.lab.data.catalogue import find
from dropmuon.lab.data.download import Downloader
from dropmuon.lab.data.sources import Unpacker, Web, as_is, gunzip, untar
from tests.lab.data_server import Server, serving
from tests.lab.small_set import FIRST, NOWHERE, SECOND, assert_complete, small_set, tar_of


def test_the_argument_goes_before_the_variable_before_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DROPMUON_DATA", str(tmp_path / "variable"))
    assert data.cache_directory(tmp_path / "argument") == tmp_path / "argument"
    assert data.cache_directory() == tmp_path / "variable"
    monkeypatch.setenv("DROPMUON_DATA", "")
    assert data.cache_directory() == Path(pooch.os_cache("dropmuon"))
    monkeypatch.delenv("DROPMUON_DATA")
    assert data.cache_directory() == Path(pooch.os_cache("dropmuon"))


def test_a_file_is_no_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("DROPMUON_DATA", str(file))
    for call in (data.status, data.verify, lambda: data.fetch("mnist"), lambda: data.load("mnist")):
        with pytest.raises(ValueError, match=r"^DROPMUON_DATA must be a directory, got .*file"):
            call()
    with pytest.raises(ValueError, match=r"^cache must be a directory"):
        data.status(file)


def test_an_empty_cache_has_what_needs_no_fetching(tmp_path: Path):
    states = {each.name: each.state for each in data.status(tmp_path)}
    assert tuple(states) == data.NAMES
    assert states.pop("fashion-mini") == states.pop("digits") == "included"
    assert set(states.values()) == {"absent"}
    assert list(tmp_path.iterdir()) == []


def test_status_looks_at_sizes(tmp_path: Path):
    (tmp_path / "shakespeare").mkdir()
    path = tmp_path / "shakespeare/input.txt"
    for size, state in ((10, "incomplete"), (1_115_394, "cached")):
        path.write_bytes(bytes(size))
        found = {each.name: each for each in data.status(tmp_path)}["shakespeare"]
        assert found.state == state
        assert found.ready == (state == "cached")


def test_verify_reads_every_file(tmp_path: Path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-labels-idx1-ubyte").write_bytes(bytes(60_008))
    checks = data.verify(tmp_path)
    assert {each.name for each in checks} == set(data.NAMES) - {"digits"}
    assert [each.state for each in checks if each.name == "mnist"] == [
        *("missing", "wrong", "missing", "missing"),
    ]
    assert all((each.found is None) == (each.state == "missing") for each in checks)


def test_verify_takes_names(tmp_path: Path):
    (check,) = data.verify(tmp_path, ["fashion-mini"])
    assert (check.state, check.found) == ("ok", find("fashion-mini").files[0].checksum)
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        data.verify(tmp_path, ["cifar"])


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.content = {
            "/plain/first": FIRST,
            "/plain/second": SECOND,
            "/gz/first.gz": gzip.compress(FIRST),
            "/gz/second.gz": gzip.compress(SECOND),
            "/archive.tgz": tar_of(first=FIRST, second=SECOND, other=b"other"),
            "/wrong/first": FIRST[:-1] + b"!",
            "/wrong/second": SECOND,
        }
        yield running


@pytest.mark.parametrize(
    ("path", "unpack"),
    [("/plain/{file}", as_is), ("/gz/{file}.gz", gunzip), ("/archive.tgz", untar)],
)
def test_files_come_from_the_web_in_any_wrapping(
    server: Server, tmp_path: Path, path: str, unpack: Unpacker
):
    source = Web(server.url(path), unpack)
    fetched = fetch_set(small_set(source), tmp_path)
    assert_complete(tmp_path)
    assert fetched == data.Fetched(
        "small", tmp_path / "small", ("first", "second"), (str(source),), ()
    )


def test_what_is_there_and_right_is_not_fetched_again(server: Server, tmp_path: Path):
    chosen = small_set(Web(server.url("/plain/{file}"), as_is))
    fetch_set(chosen, tmp_path)
    before = len(server.asked)
    assert fetch_set(chosen, tmp_path).files == ()
    (tmp_path / "small/second").unlink()
    assert fetch_set(chosen, tmp_path).files == ("second",)
    assert server.asked[before:] == [("/plain/second", None)]


def test_a_failed_source_falls_through_to_the_next(server: Server, tmp_path: Path):
    good = Web(server.url("/plain/{file}"), as_is)
    absent = Web(server.url("/absent/{file}"), as_is)
    fetched = fetch_set(small_set(NOWHERE, absent, good), tmp_path)
    assert_complete(tmp_path)
    assert fetched.sources == (str(good),)
    assert fetched.failures == (
        "http://127.0.0.1:1/: cannot be reached",
        f"{absent}: HTTP 404 Not Found",
    )


def test_a_wrong_file_stays_outside_and_the_right_ones_come_in(server: Server, tmp_path: Path):
    wrong = Web(server.url("/wrong/{file}"), as_is)
    with pytest.raises(OSError, match=r"first has checksum sha256:\w+, not sha256:\w+$"):
        fetch_set(small_set(wrong), tmp_path)
    assert not (tmp_path / "small/first").exists()
    assert (tmp_path / "small/second").read_bytes() == SECOND
    fetched = fetch_set(small_set(wrong, Web(server.url("/plain/{file}"), as_is)), tmp_path)
    assert fetched.files == ("first",)
    assert_complete(tmp_path)


def test_a_failed_fetch_leaves_good_files_bit_for_bit(server: Server, tmp_path: Path):
    fetch_set(small_set(Web(server.url("/plain/{file}"), as_is)), tmp_path)
    (tmp_path / "small/second").write_bytes(b"spoilt")
    before = (tmp_path / "small/first").stat()
    with pytest.raises(OSError, match="could not be fetched"):
        fetch_set(small_set(NOWHERE), tmp_path)
    after = (tmp_path / "small/first").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (tmp_path / "small/second").read_bytes() == b"spoilt"


def test_when_all_sources_fail_each_is_named_with_its_reason_in_one_line(
    server: Server, tmp_path: Path
):
    server.content |= {"/cut.tgz": server.content["/archive.tgz"][:-100], "/bad.tgz": b"not a tar"}
    server.content |= {"/lean.tgz": tar_of(first=b"x")}
    sources = [
        NOWHERE,
        Web(server.url("/absent/{file}"), as_is),
        Web(server.url("/cut.tgz"), untar),
        Web(server.url("/bad.tgz"), untar),
        Web(server.url("/lean.tgz"), untar),
        Web(server.url("/archive.tgz"), untar, "md5:00000000000000000000000000000000"),
    ]
    with pytest.raises(OSError, match=r"^small could not be fetched: ") as caught:
        fetch_set(small_set(*sources), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for source in sources:
        assert f"{source}: " in message
    assert "HTTP 404 Not Found" in message
    assert "end-of-stream" in message
    assert "MD5 hash of downloaded file" in message


def test_an_archive_without_the_file_is_named(server: Server, tmp_path: Path):
    server.content["/lean.tgz"] = tar_of(first=FIRST)
    with pytest.raises(OSError, match=r"lean\.tgz: has no second$"):
        fetch_set(small_set(Web(server.url("/lean.tgz"), untar)), tmp_path)
    assert (tmp_path / "small/first").read_bytes() == FIRST


def test_a_fetch_that_was_cut_off_is_resumed_by_the_next(server: Server, tmp_path: Path):
    chosen = small_set(Web(server.url("/plain/{file}"), as_is))
    server.ranges, server.cuts = False, [1000, 500]
    with pytest.raises(OSError, match="will resume there"):
        fetch_set(chosen, tmp_path)
    server.ranges = True
    fetch_set(chosen, tmp_path)
    assert ("/plain/first", "bytes=500-") in server.asked
    assert_complete(tmp_path)


def test_a_corrupt_beginning_costs_one_more_download_from_the_start(server: Server, tmp_path: Path):
    source = Web(server.url("/plain/{file}"), as_is)
    parts = tmp_path / ".fetching/small/parts"
    parts.mkdir(parents=True)
    Downloader(parts).part(server.url("/plain/first")).write_bytes(b"garbage")
    fetch_set(small_set(source), tmp_path)
    assert server.asked[0] == ("/plain/first", "bytes=7-")
    assert ("/plain/first", None) in server.asked
    assert_complete(tmp_path)


def test_what_a_killed_fetch_left_behind_is_cleared(server: Server, tmp_path: Path):
    left = tmp_path / ".fetching/small/draft-old"
    left.mkdir(parents=True)
    (left / "first").write_bytes(b"half")
    fetch_set(small_set(Web(server.url("/plain/{file}"), as_is)), tmp_path)
    assert_complete(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_who_fetches_at_the_same_time_waits_and_finds_it_done(server: Server, tmp_path: Path):
    chosen = small_set(Web(server.url("/plain/{file}"), as_is))
    results: list[data.Fetched] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_set(chosen, tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_complete(tmp_path)
    assert len(server.asked) == 2
    assert sorted(len(each.files) for each in results) == [0, 0, 0, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason=f"{sys.platform} has no full device")
def test_a_full_disk_is_said_at_once_and_no_other_source_is_tried(server: Server, tmp_path: Path):
    parts = tmp_path / ".fetching/small/parts"
    parts.mkdir(parents=True)
    Downloader(parts).part(server.url("/plain/first")).symlink_to("/dev/full")
    sources = [Web(server.url(f"/{path}/{{file}}"), as_is) for path in ("plain", "wrong")]
    with pytest.raises(OSError, match=r"^no space left for small in .* set DROPMUON_DATA"):
        fetch_set(small_set(*sources), tmp_path)
    assert all(path.startswith("/plain") for path, _ in server.asked)


def test_a_cache_below_a_file_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written \(Not a directory\); set DROPMUON_DATA"):
        fetch_set(small_set(NOWHERE), tmp_path / "file/cache")


@pytest.mark.skipif(sys.platform != "linux", reason="/sys is a place nobody may write to on Linux")
def test_a_cache_where_nobody_may_write_is_named():
    with pytest.raises(OSError, match=r"^the cache directory /sys/kernel cannot be written"):
        fetch_set(small_set(NOWHERE), Path("/sys/kernel"))


def test_fetching_what_is_included_does_nothing(tmp_path: Path):
    assert data.fetch("fashion-mini", tmp_path) == data.Fetched("fashion-mini", None)
    assert list(tmp_path.iterdir()) == []
