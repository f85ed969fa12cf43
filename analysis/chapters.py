"""The chapters of pages: what each is called, in which order they come, how to read them."""

# The order of pages. Name in metrics, figures and tables → heading and how to read it.
CHAPTERS = {
    "exact_match": (
        "Exact match",
        "How often a token aligns to the same token on the other side (hard: its strongest partner "
        "is the same token; soft: the share of its alignment on equal tokens). “hard” and “soft” "
        "average over all occurrences of the aligning tokens, “matched” only over those with an "
        "equal token to match. Under an IDF range stands the average over the token types in it.",
    ),
    "low_rank": (
        "Low rank",
        "How far the last layer's alignment is from a matrix of rank one, relative to its norm: 0 "
        "is rank one. “relative error” is that of a matrix with equal rows, as in Lemma 5.1, "
        "“rank one” that of the best matrix of rank one; “without salience” measures the alignment "
        "before tokens are weighted.",
    ),
    "kernel": (
        "Kernelised relevance",
        "How well the relevance is approximated when softmax attention is replaced by a kernel "
        "(Lemma 5.2), by the number of features.",
    ),
    "framework": (
        "Does the framework hold?",
        "Which share of the decoder's own logits comes from cross-attention, which is all that the "
        "equation of relevance sees; the rest comes from self-attention, feed-forward layers and "
        "embeddings.",
    ),
    "gold": (
        "Gold alignments",
        "The alignment against the document tokens that answer the question. “random” is the "
        "precision of tokens in random order. AER is the alignment error rate, 0 at best, of each "
        "half of the pairs at the threshold that is best for the other half; “align all” is the "
        "error of aligning every token, which takes no alignment.",
    ),
    "token_retrieval": (
        "Token retrieval",
        "The probability that the document token at rank k of a query token's neighbours is of a "
        "relevant document (gold), and that it is the same token (lexical).",
    ),
    "shape": (
        "Sparsity and shape",
        "How an alignment is spread over its partners, in both directions and, as “own”, as the "
        "system itself uses it; and how often both directions agree on a partner.",
    ),
    "contribution": (
        "Relevance by token",
        "Which share the strongest tokens of the document, and its content tokens, have in the "
        "absolute contributions Σ|c| to a pair's relevance. It is no share of the relevance "
        "itself, in which contributions of both signs cancel.",
    ),
    "deletion": (
        "Deleting tokens",
        "How much the score falls, in standard deviations of the scores, when the most aligned "
        "tokens are taken out, beside as many random ones.",
    ),
    "curve": ("The alignment in training", "The alignment after every epoch of training."),
    "search": (
        "Search",
        "The beam's result beside the scores of all documents: a model error at k is a relevant "
        "document that these do not put among the first k, a search error one that they do and the "
        "beam does not, luck the reverse; recall = 1 − model error − search error + luck. “gold "
        "alive” is the share of queries whose gold document is still in the beam after a step, "
        "“lost rank” the median rank of its continuation at the step where it fell out.",
    ),
    "adaptation": ("Alignment adaptation", ""),
    "study": ("Study", ""),
}
# Figures whose name does not begin with their measurement's.
_FIGURES = {"alignment_curve": "curve"}


def of_metric(key: str) -> str:
    """What a metric belongs to: "analysis/low_rank/…" to "low_rank"."""
    return key.split("/")[1]


def of_figure(name: str) -> str:
    """What a figure belongs to: "exact_match_heads" to "exact_match", an unknown one to itself."""
    if name in _FIGURES:
        return _FIGURES[name]
    found = [known for known in CHAPTERS if name == known or name.startswith(f"{known}_")]
    return max(found, key=len, default=name)


def title(name: str) -> str:
    """A measurement's heading; one that is not known is called by its name."""
    words = name.replace("_", " ")
    return CHAPTERS[name][0] if name in CHAPTERS else words[:1].upper() + words[1:]


def reading(heading: str) -> str:
    """How to read what stands under a heading; nothing where that is not known."""
    return dict(CHAPTERS.values()).get(heading, "")


def place(name: str) -> int:
    """Where a measurement stands among the others; unknown ones come last."""
    return list(CHAPTERS).index(name) if name in CHAPTERS else len(CHAPTERS)
