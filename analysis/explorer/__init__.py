"""Finished runs on a local page: search, alignments, what was generated and why."""
