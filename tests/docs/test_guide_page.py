"""The guide's table of arguments is the signature of DropMuon."""

from __future__ import annotations

import inspect
import re

from dropmuon import DropMuon
from tests.docs.pages import text_of


def test_the_table_of_arguments_is_the_signature() -> None:
    table = text_of("docs/guide.md").partition("\n## All arguments\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", table, re.M)
    signature = inspect.signature(DropMuon).parameters.values()
    assert [name for name, _ in rows] == [each.name for each in signature]
    for (name, default), parameter in zip(rows, signature, strict=True):
        empty = parameter.default is inspect.Parameter.empty
        assert default == ("" if empty else repr(parameter.default).replace("'", '"')), name
