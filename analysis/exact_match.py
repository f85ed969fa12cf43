"""The measure `exact_match` under the address that other tools use."""

from analysis.questions.exact_match import exact_match

__all__ = ["exact_match"]
