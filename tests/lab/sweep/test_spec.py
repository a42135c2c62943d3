"""Grids by their laws, and refusals before anything runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dropmuon.lab.sweep import SweepSpec, read_spec
from tests.lab.small_sweeps import BASE, spec_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "sweeps"
AXES = st.fixed_dictionaries(
    {},
    optional={
        "lr": st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=3, unique=True),
        "batch_size": st.lists(st.integers(1, 10**5), min_size=1, max_size=3, unique=True),
        "channels": st.lists(
            st.lists(st.integers(1, 64), min_size=1, max_size=3),
            min_size=1,
            max_size=3,
            unique_by=tuple,
        ),
        "seeds": st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True),
        "method": st.lists(
            st.sampled_from(["muon", "drop-muon:uniform", "drop-muon:nice-2", "adamw"]),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        "augment": st.just([False, True]),
    },
)


@settings(max_examples=30)
@given(AXES)
def test_a_grid_has_as_many_cells_as_the_product_of_its_axes_each_with_its_own_name(grid):
    cells = spec_of(grid).cells()
    assert len(cells) == math.prod(len(axis) for axis in grid.values())
    assert len({cell.name.lower() for cell in cells}) == len(cells)
    assert all(cell.name.replace("-", "").replace("_", "").isascii() for cell in cells)
    assert not any(set(cell.name) & set('/\\:*?"<>| ') for cell in cells)


@settings(max_examples=30)
@given(AXES, st.sampled_from(["test_accuracy", {"metric": "seconds_to_target", "target": 70}]))
def test_a_sweep_reads_back_what_it_writes(grid, objective):
    spec = spec_of(grid, objective=objective)
    assert SweepSpec.of(spec.to_json()) == spec
    assert SweepSpec.of(yaml.safe_load(yaml.safe_dump(spec.to_json()))) == spec
    assert SweepSpec.of(spec.to_json()).study_name == spec.study_name


def test_options_of_several_methods_can_be_one_axis() -> None:
    base = {**BASE, "methods": ["muon", "sgd"], "options": {"sgd": {"momentum": 0.5}}}
    pairs = [{"muon": {"lr": a}, "sgd": {"lr": b}} for a, b in ((0.1, 0.01), (0.2, 0.02))]
    cells = SweepSpec.of({"base": base, "grid": {"options": pairs}}).cells()
    assert [dict(c.config.options) for c in cells] == [
        {"sgd": {"momentum": 0.5, "lr": b}, "muon": {"lr": a}}
        for a, b in ((0.1, 0.01), (0.2, 0.02))
    ]
    assert len({c.name for c in cells}) == 2


def test_a_cell_has_the_settings_of_its_place_on_every_axis():
    spec = spec_of({"method": ["sgd", "muon"], "seeds": [3, 5], "options.sgd.lr": [0.1, 0.2]})
    configs = [cell.config for cell in spec.cells()]
    assert [(c.methods[0], c.seeds[0], dict(c.options)) for c in configs] == [
        ("sgd", 3, {"sgd": {"lr": 0.1}}),
        ("sgd", 3, {"sgd": {"lr": 0.2}}),
        ("sgd", 5, {"sgd": {"lr": 0.1}}),
        ("sgd", 5, {"sgd": {"lr": 0.2}}),
        ("muon", 3, {}),
        ("muon", 5, {}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"gird": {}}, "did you mean 'grid'"),
        ({"grid": {"batchsize": [1]}}, "did you mean 'batch_size'"),
        ({"base": {"epoch": 1}}, "did you mean 'epochs'"),
        ({"grid": {"method": ["adamv"]}}, "did you mean 'adamw'"),
        ({"grid": {"lr": [0.1, -1.0]}}, "lr=-1.0: lr must be a positive number"),
        ({"grid": {"lr": 0.1}}, "must be a list"),
        ({"grid": {"lr": [0.1, 0.1]}}, "twice"),
        ({"grid": {"options.muon": [1]}}, "options.METHOD.KEY"),
        ({"grid": {"method": ["muon"], "options.mun.lr": [1]}}, "did you mean 'muon'"),
        ({"grid": {"options.muon.lrr": [1]}, "base": BASE}, "did you mean 'lr'"),
        ({"grid": {"lr": {"low": 0.1, "high": 1.0}}}, "goes with search: tpe"),
        ({"grid": {"epochs": list(range(1, 400)), "seeds": list(range(400))}}, "at most 100000"),
        ({"trials": 3}, "goes with search: tpe"),
        ({"search": "tpe", "grid": {"lr": [0.1]}}, "trials must say"),
        ({"search": "tpi"}, "did you mean 'tpe'"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 1, "hihg": 2}}}, "'high'"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 2, "high": 1}}}, "below high"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": -1, "high": 1}}}, "lr=-1"),
        ({"search": "tpe", "trials": 2, "grid": {"lr": {"low": 0, "high": 1, "log": True}}}, "log"),
        ({"objective": {"metric": "test_acuracy"}}, "did you mean 'test_accuracy'"),
        ({"objective": {"metric": "seconds_to_target", "target": 900}}, "in (0, 100]"),
        ({"objective": {"method": "adam"}, "base": {"methods": ["adamw"]}}, "'adamw'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(content, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SweepSpec.of(content)
    assert message in str(error.value)


def test_the_paper_s_grid_has_180_configurations_of_six_methods_on_each_of_its_data_sets():
    cells = read_spec(EXAMPLES / "paper.yaml").cells()
    assert len(cells) == 3 * 5 * 3 * 6 * 2
    assert {(cell.config.budget, cell.config.schedule) for cell in cells} == {
        ("epochs", "constant")
    }
    assert {len(cell.config.methods) for cell in cells} == {6}
    assert {len(cell.config.seeds) for cell in cells} == {5}
