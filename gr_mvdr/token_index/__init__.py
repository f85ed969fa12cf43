"""Search over token vectors on disk: a proposer of documents × a scorer (search.py's table).

`TokenIndex` holds the store and searches it as `SearchOptions` say. scorers.py scores documents
with all their tokens, or with the retrieved ones alone; costs.py counts.
"""
