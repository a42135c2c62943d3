"""Real data: fetched once, verified whenever it is loaded, kept on the device as one tensor."""

from dropmuon.lab.data.cache import Check, Status, cache_directory, status, verify
from dropmuon.lab.data.catalogue import NAMES
from dropmuon.lab.data.fetch import Fetched, fetch
from dropmuon.lab.data.load import load
from dropmuon.lab.data.tensors import Data, Examples, augment

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
