"""The measure `low_rank` under the address that other tools use."""

from analysis.questions.low_rank import low_rank

__all__ = ["low_rank"]
