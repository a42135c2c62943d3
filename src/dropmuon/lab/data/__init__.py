"""Real data: fetched once, checked every time, kept on the device as one tensor."""

from dropmuon.lab.data.augmenting import augment
from dropmuon.lab.data.cache import Check, Status, cache_directory, status, verify
from dropmuon.lab.data.catalogue import NAMES
from dropmuon.lab.data.examples import Data, Examples
from dropmuon.lab.data.fetching import Fetched, fetch
from dropmuon.lab.data.loading import load

__all__ = [
    "NAMES",
    "Check",
    "Data",
    "Examples",
    "Fetched",
    "Status",
    "augment",
    "cache_directory",
    "fetch",
    "load",
    "status",
    "verify",
]
