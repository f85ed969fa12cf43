"""Self-contained HTML: the report of a run, browsable cases."""
