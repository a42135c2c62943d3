"""A page over one or many runs, in one file that needs no network."""

from dropmuon.lab.report.page import write_report

__all__ = ["write_report"]
