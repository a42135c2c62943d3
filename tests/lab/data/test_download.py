"""A download resumes where it was cut off, and says in a few words why it cannot."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dropmuon.lab.data.download import Downloader
from tests.lab.data_server import Server, serving

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.content["/file"] = CONTENT
        yield running


@pytest.fixture
def downloader(tmp_path: Path) -> Downloader:
    return Downloader(tmp_path / "parts", patience=300.0)


def got(downloader: Downloader, server: Server, path: str = "/file") -> bytes:
    output = downloader.parts.parent / "out"
    downloader(server.url(path), output, None)
    return output.read_bytes()


def test_a_whole_download_is_one_request(server: Server, downloader: Downloader):
    assert got(downloader, server) == CONTENT
    assert server.asked == [("/file", None)]
    assert not downloader.was_resumed
    assert list(downloader.parts.iterdir()) == []


def test_a_cut_connection_is_resumed_where_it_broke(server: Server, downloader: Downloader):
    server.cuts = [100_000, 50_000]
    assert got(downloader, server) == CONTENT
    assert server.asked == [
        ("/file", None),
        ("/file", "bytes=100000-"),
        ("/file", "bytes=150000-"),
    ]
    assert downloader.was_resumed


def test_a_silent_connection_is_resumed_too(
    server: Server, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
):
    """The socket's time runs out once all that was sent has arrived, however slow the machine."""
    receive, resumed = socket.socket.recv_into, threading.Event()

    def impatient(self: socket.socket, *arguments: Any) -> int:
        if self.getpeername()[1] == server.server_port and not resumed.is_set():
            server.stalled.wait()
            self.settimeout(0.01)
        try:
            return receive(self, *arguments)
        except TimeoutError:
            resumed.set()
            raise

    monkeypatch.setattr(socket.socket, "recv_into", impatient)
    server.cuts, server.stalls = [1000], True
    assert got(downloader, server) == CONTENT
    assert server.asked == [("/file", None), ("/file", "bytes=1000-")]


def test_a_part_of_an_earlier_process_is_continued(server: Server, downloader: Downloader):
    part = downloader.part(server.url("/file"))
    part.parent.mkdir()
    part.write_bytes(CONTENT[:1000])
    assert got(downloader, server) == CONTENT
    assert server.asked == [("/file", "bytes=1000-")]


def test_a_part_that_is_complete_needs_no_more_bytes(server: Server, downloader: Downloader):
    part = downloader.part(server.url("/file"))
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert got(downloader, server) == CONTENT
    assert downloader.was_resumed


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, downloader: Downloader):
    part = downloader.part(server.url("/file"))
    part.parent.mkdir()
    part.write_bytes(CONTENT + b"more")
    assert got(downloader, server) == CONTENT
    assert server.asked[-1] == ("/file", None)


def test_a_server_without_ranges_is_asked_for_the_whole_again(
    server: Server, downloader: Downloader
):
    server.ranges, server.cuts = False, [100_000]
    assert got(downloader, server) == CONTENT
    assert not downloader.was_resumed


def test_a_server_that_always_breaks_at_the_same_place_is_given_up(
    server: Server, downloader: Downloader
):
    server.ranges, server.cuts = False, [1000] * 50
    with pytest.raises(OSError, match="connection broke"):
        got(downloader, server)
    assert len(server.asked) == 2
    assert downloader.part(server.url("/file")).stat().st_size == 1000


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.integers(1, 60_000), max_size=5), ranges=st.booleans())
def test_any_cuts_leave_the_file_whole_or_unwritten(
    server: Server, downloader: Downloader, cuts: list[int], ranges: bool
):
    server.cuts, server.ranges = list(cuts), ranges
    output = downloader.parts.parent / "out"
    output.unlink(missing_ok=True)
    downloader.part(server.url("/file")).unlink(missing_ok=True)
    try:
        assert got(downloader, server) == CONTENT
    except OSError:
        assert not ranges
        assert not output.exists()


def test_http_errors_are_named(server: Server, downloader: Downloader):
    with pytest.raises(OSError, match=r"^HTTP 404 Not Found$"):
        got(downloader, server, "/absent")


def test_a_closed_port_cannot_be_reached(downloader: Downloader, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match=r"^cannot be reached$"):
        downloader(f"http://127.0.0.1:{port}/file", tmp_path / "out", None)


def test_a_host_that_never_answers_is_left_after_a_while(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(OSError, match=r"^no response within 0.2 s$"):
            Downloader(tmp_path / "parts", patience=0.2)(url, tmp_path / "out", None)


def test_progress_is_shown_only_if_asked_for(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    got(Downloader(tmp_path / "a"), server)
    assert capsys.readouterr().err == ""
    got(Downloader(tmp_path / "b", show_progress=True), server)
    assert "file: 100%" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason=f"{sys.platform} has no full device")
def test_a_full_disk_is_not_mistaken_for_a_bad_connection(server: Server, downloader: Downloader):
    part = downloader.part(server.url("/file"))
    part.parent.mkdir()
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        got(downloader, server)
    assert caught.value.errno == errno.ENOSPC
