"""The words of the explorer's page: those of all pages, and what only this one names."""

from analysis.tables.glossary import glossary

_OWN = {
    "continuation": "A token that can come next in what a generative system writes. The page shows "
    "the most probable ones; a search chooses only among those that lead to documents.",
    "direction": "From which side an alignment is read: as the system itself aligns (A), or as "
    "weights that sum to one over the document for every query token (columns), or over the query "
    "for every document token (rows).",
    "docid token": "One token of a document's identifier, which a generative system writes.",
    "document token": "A token of the document, as the system reads it: what it cuts off is not "
    "there.",
    "n-gram": "A sequence of tokens of the collection. T5-SEAL generates some and adds up what "
    "they weigh in each document.",
    "probability": "How likely the model finds a token, or a whole sequence of them, given the "
    "query. A beam keeps the sequences with the largest ones.",
    "query token": "A token of the query, as the system reads it: with the tokens that it adds, "
    "such as the end.",
    "restored": "What of a score's fall comes back when one part of the model reads what it read "
    "of the query itself: (patched − other) / (own − other). Shares of parts do not sum to 1.",
    "stage": "A system of a pipeline: the first one searches, each further one reranks.",
    "word": "A term as BM25 counts it.",
}


def page_words() -> dict[str, str]:
    """Every term of the page and its explanation."""
    return glossary(_OWN)
