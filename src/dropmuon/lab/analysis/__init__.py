"""The paper's metrics, intervals and verdicts, from the files of a run."""
