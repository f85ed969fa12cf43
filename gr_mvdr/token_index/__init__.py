"""From query vectors to documents: token vectors on disk, and four ways to search them.

`TokenStore` holds the vectors (writer.py makes and changes it), `TokenNeighbours` finds the nearest
tokens, and `TokenIndex` puts both together and searches as `SearchOptions` say. max_sim.py scores
documents with all their tokens, imputation.py with the retrieved ones alone; costs.py counts.
"""
