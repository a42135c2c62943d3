"""Prove it: data, models, training, metrics, sweeps and reports."""
