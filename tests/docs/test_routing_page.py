"""docs/routing.md says for known models what their parameters are taken for, and it is true."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import text_of
from tests.docs.routing_tables import SHOWN, routing_table
from tests.model.framework_models import MODELS, tiny_model

PAGE = "docs/routing.md"


def shown() -> dict[str, tuple[str, str]]:
    """The class and the table of each model on the page."""
    found = re.findall(r"^### (.+): `(\w+)`\n\n((?:\|.*\n?)+)", text_of(PAGE), re.M)
    return {name: (kind, table.rstrip("\n")) for name, kind, table in found}


def test_the_page_shows_these_models() -> None:
    assert {name: kind for name, (kind, _) in shown().items()} == {
        name: MODELS[name][0] for name in SHOWN
    }


@pytest.mark.parametrize("name", SHOWN)
def test_a_model_is_routed_as_the_page_says(name: str) -> None:
    model = tiny_model(name)
    _, table = shown()[name]
    assert routing_table(model) == table, "python -m tests.docs.routing_tables prints the tables"
