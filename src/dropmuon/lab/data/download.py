"""Downloads that resume where they were cut off."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
from requests.exceptions import ProxyError, RequestException, SSLError
from tqdm import tqdm
from urllib3.exceptions import HTTPError

__all__ = ["Downloader"]

_CHUNK = 1 << 16
_CUTS = 20  # how often a connection may break before the download fails
_BROKEN = (requests.ConnectionError, requests.Timeout)


class Downloader:
    """A downloader for pooch that keeps what has arrived in a `.part` file and requests the rest.

    Args:
        parts: directory of the `.part` files, which is kept after a failed download.
        show_progress: whether to show a progress bar.
        patience: seconds to wait for a response, including name resolution.
    """

    def __init__(self, parts: Path, *, show_progress: bool = False, patience: float = 15.0) -> None:
        self.parts = parts
        self.show_progress = show_progress
        self.patience = patience
        self.was_resumed = False  # whether any finished download was assembled from pieces
        self._resumed = False

    def __call__(
        self, url: str, output_file: str | os.PathLike[str], pooch: object, check_only: bool = False
    ) -> None:
        """Download the URL to the file; called by pooch."""
        part = self.part(url)
        part.parent.mkdir(parents=True, exist_ok=True)
        self._resumed = False
        try:
            self._receive_all(url, part)
        except RequestException as error:
            raise OSError(_reason(error, self.patience)) from error
        part.replace(output_file)
        self.was_resumed |= self._resumed

    def part(self, url: str) -> Path:
        """Return where the beginning of this download is kept."""
        digest = hashlib.sha256(url.encode()).hexdigest()[:12]
        return self.parts / f"{digest}-{url.rpartition('/')[2]}.part"

    def _receive_all(self, url: str, part: Path) -> None:
        """Resume after each cut, as long as every attempt makes progress."""
        for _ in range(_CUTS):
            before = _size(part)
            try:
                return self._receive(url, part)
            except _BROKEN:
                if _size(part) <= before:
                    raise
        raise OSError(f"the connection broke {_CUTS} times; the next attempt will resume there")

    def _receive(self, url: str, part: Path) -> None:
        have = _size(part)
        with self._response(url, have) as response:
            if response.status_code == 416 and _total(response) == have > 0:
                self._resumed = True
                return None
            if have and not _resumes(response, have) and response.status_code in {206, 416}:
                part.unlink()
                return self._receive(url, part)
            response.raise_for_status()
            start = have if _resumes(response, have) else 0
            self._resumed = start > 0
            return self._write(response, part, start)

    def _write(self, response: requests.Response, part: Path, start: int) -> None:
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        name = part.name.partition("-")[2].removesuffix(".part")
        bar = tqdm(
            desc=name,
            total=total,
            initial=start,
            unit="B",
            unit_scale=True,
            disable=not self.show_progress,
        )
        with bar, part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) < total:
            raise _CutOffError

    def _response(self, url: str, have: int) -> requests.Response:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})

        def ask() -> requests.Response:
            return requests.get(url, headers=headers, stream=True, timeout=self.patience)

        return _within(self.patience, ask)


class _CutOffError(requests.ConnectionError):
    """The connection ended before the download did."""


def _within(seconds: float, ask: Callable[[], requests.Response]) -> requests.Response:
    """Return the response if it comes in time, including name resolution."""
    responses: list[requests.Response | Exception] = []
    late = threading.Event()

    def run() -> None:
        try:
            response = ask()
        except Exception as error:  # raised below, where it is waited for
            responses.append(error)
        else:
            responses.append(response)
            if late.is_set():
                response.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    late.set()
    if not responses:
        raise requests.Timeout
    if isinstance(responses[0], Exception):
        raise responses[0]
    return responses[0]


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """Yield what arrives as it arrives, so that nothing before a cut is lost."""
    try:
        while chunk := response.raw.read1(_CHUNK, decode_content=False):
            yield chunk
    except HTTPError as error:
        raise _CutOffError from error


def _resumes(response: requests.Response, have: int) -> bool:
    """Return whether the response begins where the part ends."""
    begins = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    return have > 0 and response.status_code == 206 and begins


def _total(response: requests.Response) -> int | None:
    with contextlib.suppress(ValueError):
        return int(response.headers.get("Content-Range", "").rpartition("/")[2])
    return None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: RequestException, patience: float) -> str:
    """Return what went wrong, in a few words."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no response within {patience:g} s"
    if isinstance(error, _CutOffError):
        return "the connection broke; the next attempt will resume there"
    if isinstance(error, SSLError):
        return "no secure connection could be made"
    if isinstance(error, ProxyError):
        return "the proxy refused the request"
    return "cannot be reached"
