"""The almanac: a generated encyclopaedia with questions and gold alignments (docs/almanac.md)."""

from data_modules.almanac.tables import almanac

__all__ = ["almanac"]
