"""Alignments on disk: written once, read as a stream."""
