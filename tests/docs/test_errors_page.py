"""Every misuse gets a sentence with the argument and the remedy, and docs/errors.md lists them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

import pytest

from tests.docs.misuses import MISUSES, Misuse
from tests.docs.pages import text_of

cases = pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.name)


def message_of(misuse: Misuse) -> str:
    """What a user reads."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            misuse.call()
        except misuse.kind as error:
            return str(error)
    return "\n".join(str(each.message) for each in caught if each.category is misuse.kind)


@cases
def test_a_misuse_is_named_with_its_remedy(misuse: Misuse) -> None:
    if issubclass(misuse.kind, Warning):
        with pytest.warns(misuse.kind, match=misuse.says):
            misuse.call()
    else:
        with pytest.raises(misuse.kind, match=misuse.says) as caught:
            misuse.call()
        assert caught.type is misuse.kind


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Misuse, kind, message and test of each row of the tables on the page."""
    for line in text_of("docs/errors.md").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if line.startswith("|") and len(cells) == 4 and cells[3].startswith("`"):
            yield cells[0], cells[1], cells[2].strip("`"), cells[3].strip("`")


def test_the_page_lists_every_misuse_once_and_no_other() -> None:
    listed = [test for *_, test in rows()]
    assert sorted(listed) == sorted(misuse.name for misuse in MISUSES)
    assert len({misuse.name for misuse in MISUSES}) == len(MISUSES)


@cases
def test_the_page_quotes_the_message(misuse: Misuse) -> None:
    quoted = {test: (kind, message) for _, kind, message, test in rows()}
    kind, message = quoted[misuse.name]
    assert kind == misuse.kind.__name__
    parts = [re.escape(part) for part in message.replace("\\|", "|").split("…")]
    assert re.fullmatch(".*".join(parts), message_of(misuse), re.DOTALL), message_of(misuse)
