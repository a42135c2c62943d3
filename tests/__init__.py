"""Tests, in the tree of `src/dropmuon`; helpers are imported as `tests.models` and so on."""
