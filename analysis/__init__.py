"""Alignments measured, drawn and compared: the same for every system of both paradigms."""
