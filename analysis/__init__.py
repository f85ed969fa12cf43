"""Measures, draws and compares alignments, in the same way for every system of both paradigms."""
