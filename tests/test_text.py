"""Plain text."""

from __future__ import annotations

import pytest

from dropmuon import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0.0 s"),
        (5e-5, "50 µs"),
        (0.0123, "12.3 ms"),
        (12.34, "12.3 s"),
        (119.0, "119 s"),
        (600.0, "10.0 min"),
        (3 * 3600.0, "3.0 h"),
        (None, "–"),
    ],
)
def test_durations_are_short(value, expected):
    assert text.duration(value) == expected
