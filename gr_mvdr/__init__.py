"""The equation as tensors: rel(d, q) = 1/Z · Σ S ⊙ A, and the searches that find the best d."""

import os

# oneDNN compiles its products for each shape, and with torch keeps the last 1,024 of them. Batches
# of text have ever new shapes: a training in bf16 came to hold half a gigabyte of code, in pieces
# between which nothing large fits. With 64 no step took longer (docs/results.md).
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")
