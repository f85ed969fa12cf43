"""Ranks, the batch of all ranks, the gradient cache."""
