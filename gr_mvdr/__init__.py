"""The equation as tensors: rel(d, q) = 1/Z · Σ S ⊙ A, and the searches that find the best d."""

import os

# oneDNN compiles a matrix product for each shape, and torch keeps the last 1,024 of them. Batches
# of text keep bringing new shapes: a training in bf16 held half a gigabyte of such code, scattered
# so that no large tensor fitted in between. With 64, no step took longer.
for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, "64")
