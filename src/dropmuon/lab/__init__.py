"""Comparisons on real data: data sets, models, training, metrics, sweeps and reports."""
