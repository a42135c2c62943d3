"""Who watches a comparison: a progress display, loggers, or nobody."""
