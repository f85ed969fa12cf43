"""Search over token vectors on disk: a proposer of documents × a scorer (see search.py's table).

`TokenIndex` holds the store and searches it according to `SearchOptions`. scorers.py scores
documents by all their tokens or only by the retrieved tokens; costs.py counts operations and time.
"""
