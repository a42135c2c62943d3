"""Races: the same methods at a ladder of budgets, for their speed at equal quality."""

from dropmuon.lab.race.conclusion import conclude_race
from dropmuon.lab.race.progress import Progress, RaceDisplay
from dropmuon.lab.race.runner import race, rung_config

__all__ = ["Progress", "RaceDisplay", "conclude_race", "race", "rung_config"]
