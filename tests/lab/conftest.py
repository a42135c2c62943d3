"""Its place makes `synthetic_runs` and `data_server` importable from the tests below it."""
