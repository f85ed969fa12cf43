"""The words of the pages: each with an explanation, which is one hover away wherever it is shown.

`glossary` returns them for any page; `mark_terms` marks them in a text. An analysis explains its
chapter and its metrics itself (`analysis.tables.metric_names`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from markupsafe import Markup, escape

from analysis.tables.metric_names import WORDS, all_chapters, all_metrics

# Forms of a term, the first of which names it, and its explanation. "#" is any number, a space and
# a hyphen are one, the first letter may be of either case, and a plural's s may follow.
TERMS = {
    # The equation
    "relevance | Relevance (Eq. 1)": "rel(d, q) = 1/Z · Σ S ⊙ A (Eq. 1): the similarities of all "
    "pairs of tokens, weighted by their alignment. It is the whole score of a multi-vector system; "
    "of a generative one it is what a layer's cross-attention adds to the logits, a part of it.",
    "alignment | A": "A: which query token belongs to which document token, and how strongly; a "
    "weight for each pair. ColBERT takes the most similar token, a generative system its "
    "cross-attention.",
    "similarity | similarities | S": "S = Dᵀ Q: the inner products of the vectors of document and "
    "query tokens.",
    "S·A | S ⊙ A | S·A / Z": "What a pair of tokens adds to the relevance: its similarity times "
    "its alignment, divided by Z. All of them sum to the relevance.",
    "normaliser | Z": "Z: what the sum of S·A is divided by; 1 in most systems, the sum of the "
    "alignment in ALIGNER and XTR, the number of query tokens in MVA.",
    "share": "What one query token, word, n-gram or identifier token gives to a document's score. "
    "The shares of a document sum to its score.",
    "salience": "How much a token counts, whatever it is aligned with (ALIGNER, XTR's pruning, "
    "IDF).",
    "MaxSim": "ColBERT's alignment: every query token is aligned with the most similar document "
    "token, with weight 1, and with no other.",
    "token": "A piece of text as the model reads it: a word or a part of one.",
    "special token": "A token that is no text: the end of a text, padding, a marker.",
    "content token": "A token that is neither special, nor punctuation, nor a stopword.",
    "stopword": "A frequent word that says little: “the”, “of”, “is”.",
    "softmax": "Weights that are positive and sum to one, larger for larger values.",
    "cross-attention": "Where the decoder looks in the query while it predicts a token: A of a "
    "generative system. Over the query it sums to one for each predicted token.",
    "self-attention": "Where a decoder looks in what it has generated so far.",
    "feed-forward": "The layers of a transformer that look at one token alone.",
    "head": "One of several attentions that a layer computes next to each other. (An output table "
    "of a generative system is called its head, too.)",
    "layer": "One of the blocks that a transformer stacks; the last is nearest to the output.",
    "logit": "A model's score of a possible next token, before it becomes a probability.",
    "log-probability | log-probabilities | log p | log prob": "The logarithm of a probability: 0 "
    "is certain, −2.3 is one in ten, −4.6 one in a hundred.",
    "teacher-forced | teacher forcing": "The model is given the tokens of the document and says "
    "how probable each is, instead of generating its own.",
    # Systems
    "paradigm": "The family of a system: lexical (equal words), multi-vector (a vector for each "
    "token), generative (writes a document's name), cross-encoder (reads both texts together).",
    "multi-vector": "Query and document are a vector for each token; their similarities and an "
    "alignment make the score.",
    "generative": "A language model writes an identifier of the document, or n-grams of it; how "
    "probable these are is the score.",
    "lexical": "Only equal words count, as in BM25.",
    "vocabulary term": "A token that SPLADE gives a weight in a text, whether the text holds it or "
    "not; the weights of the terms that query and document share make the score.",
    "cross-encoder": "A model that reads query and document together and gives a score; it has no "
    "alignment and no index.",
    "pipeline": "Several systems in turn, each reranking the best documents of the one before.",
    "docid | identifier": "What a generative system writes for a document: a token of its own, "
    "digits, a path in a tree of clusters, or its title.",
    "n-gram key | n-gram": "A sequence of tokens that occurs in the corpus. T5-SEAL generates such "
    "keys; each weighs the more, the more probable the query makes it than the corpus does.",
    "evidence": "T5-SEAL's score in a search: the sum of the weights of the generated n-grams that "
    "a document holds, without overlaps.",
    "query likelihood": "How probable the query is as one that is written for the document.",
    "leak-free score | leak-free": "T5-SEAL's score of a given pair: the mean log-probability of "
    "all of the document's tokens, in windows that are chosen without looking at the query. It is "
    "another number than the search's evidence.",
    "beam search": "A search that keeps the most probable beginnings at every step.",
    "beam": "The beginnings that a beam search keeps.",
    "constraint": "What a generative search may write: only what leads to documents.",
    "BM25": "The lexical baseline: rare words that query and document share, weighted by how often "
    "the document has them.",
    "IDF": "Inverse document frequency: how rare a token is in the corpus. 0: in every document.",
    # Searches and their metrics
    "retrieve": "Search: the best documents of the whole collection.",
    "rerank": "The order of given candidates, for the most part BM25's best.",
    "rank": "A document's place in a ranking; 1 is the best.",
    "score": "The number that documents are ordered by. Scores of two systems cannot be compared.",
    "score in the search | search score": "The number in the run's file retrieve.trec, by which "
    "the search ordered the document.",
    "score of the pair": "What the system gives these two texts on their own, without a search. Of "
    "T5-SEAL this is the leak-free score, not the evidence that its search adds up.",
    "gold": "What is known to be right: a document that is judged relevant to the query; where "
    "tokens are meant, those that answer the question.",
    "macro": "A mean over groups of queries (relations, domains) of each group's mean.",
    "reciprocal rank": "1 divided by the rank of the document; 0 where it was not found.",
    "leak_free_mean | leak_free_max": "A form of T5-SEAL's reranking: the mean or the best "
    "log-probability of segments that are chosen without looking at the query.",
    "test split | split": "The part of the queries that systems are measured on.",
    "seed": "The number that random choices follow; runs with several seeds show how much chance "
    "decides.",
    "95 % interval | interval | bracket": "If the test were repeated with other queries or pairs, "
    "the mean would lie in it 95 times out of 100.",
    "standard deviation | ±": "How far values of single seeds lie from their mean.",
    "p": "How probable so large a difference is if the two systems were equally good; below 0.05 "
    "it is hardly chance.",
    "paired randomisation test": "Exchanges the two systems' results of random queries, many "
    "times: how often is the difference as large as the real one?",
    "Holm": "A correction of p for several comparisons at once.",
    # The analysis
    "d→q | document to query | document → query": "Read from the document: every document token "
    "spreads a weight of one over the query's tokens. In reranking: MaxSim of every document "
    "token.",
    "q→d | query to document | query → document": "Read from the query: every query token spreads "
    "a weight of one over the document's tokens.",
    # The explorer
    "continuation": "A token that can come next in what a generative system writes.",
    "docid token": "One token of a document's identifier, which a generative system writes.",
    "document token": "A token of the document, as far as the system reads the document.",
    "probability": "How likely the model finds a token, or a whole sequence of them, given the "
    "query. A beam keeps the most probable sequences.",
    "query token": "A token of the query as the system reads it, with the tokens that it adds, "
    "such as the end.",
    "restored": "The part of a score's fall that comes back when one part of the model reads what "
    "it read of the query itself: (patched − other) / (own − other).",
    "stage": "A system of a pipeline: the first one searches, each further one reranks.",
    "word": "A term as BM25 counts it.",
}


def glossary(names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every term of the pages and its explanation, in alphabetical order.

    Args:
        names: further ones, such as the names of test splits.
    """
    known = {_name(forms): text for forms, text in (TERMS | _labels() | _chapters()).items()}
    known |= names or {}
    return dict(sorted(known.items(), key=lambda entry: (entry[0].lower(), entry[0])))


def find_terms(
    text: str, label: bool = False, names: Collection[str] = ()
) -> Iterator[tuple[int, int, str]]:
    """Start, end and term of each term in a text, from left to right, the longest where several
    begin.

    Args:
        label: whether the text is a heading, or the name of a metric, a column or a row.
        names: see `glossary`.
    """
    pattern, terms = _pattern(label, tuple(names))
    for match in pattern.finditer(text):
        yield *match.span(), terms[match.lastindex - 1]


def mark_terms(text: str, label: bool = False, names: Collection[str] = ()) -> Markup:
    """A text for a page, in which the glossary's terms can be pointed at.

    Args:
        label, names: see `find_terms`; in a sentence the first occurrence of each is marked.
    """
    marked, last, seen = Markup(), 0, set()
    for start, end, term in find_terms(text, label, names):
        if label or term not in seen:
            seen.add(term)
            span = Markup('<span class="term" tabindex="0" data-term="{}">{}</span>')
            marked += escape(text[last:start]) + span.format(term, text[start:end])
            last = end
    return marked + escape(text[last:])


def _name(forms: str) -> str:
    return forms.split(" | ")[0].replace("#", "k")


def _chapters() -> dict[str, str]:
    chapters = all_chapters().items()
    return {f"{c.title} | {name.replace('_', ' ')}": c.reading for name, c in chapters if c.reading}


@cache
def _labels() -> dict[str, str]:
    """The names of metrics: in headings and tables they mean this, in a sentence much else."""
    declared = {metric.form: metric.meaning for metric in all_metrics()}
    for chapter in all_chapters().values():
        declared |= chapter.words
    return declared | WORDS


@cache
def _pattern(label: bool, names: tuple[str, ...]) -> tuple[re.Pattern, list[str]]:
    """A group for each form, and the terms of the groups.

    In a sentence, single letters, names of metrics and chapters of one word mean other things.
    """
    forms = {name: name for name in names if name}
    for entry in (*TERMS, *(_labels() if label else ()), *_chapters()):
        for form in entry.split(" | "):
            if label or (entry in TERMS and len(form) > 1) or " " in form:
                forms.setdefault(form, _name(entry))
    ordered = sorted(forms, key=len, reverse=True)
    patterns = (re.escape(form) if form in names else _as_pattern(form) for form in ordered)
    groups = "|".join(f"({pattern})" for pattern in patterns)
    return re.compile(rf"(?<![\w@·])(?:{groups})(?![\w@·])"), [forms[form] for form in ordered]


def _as_pattern(form: str) -> str:
    escaped = re.escape(form).replace(r"\#", r"\d+").replace(r"\ ", "[ -]").replace(r"\-", "[ -]")
    if form[0].islower():
        escaped = f"[{form[0]}{form[0].upper()}]{escaped[1:]}"
    return escaped + ("s?" if form[-1].isalpha() and len(form) > 1 else "")
