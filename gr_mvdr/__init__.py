"""The equation as tensors: rel(d, q) = 1/Z · Σ S ⊙ A, and the searches that find the best d."""
