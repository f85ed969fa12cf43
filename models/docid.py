"""DSI, DSI-PAWA, GENRE and GENRE-NP: one identifier a document, generated within a trie.

What the identifier is (a new token, digits, the path through a cluster tree, the title) is the
scheme's choice (`gr_mvdr.identifiers.docids`, `gr_mvdr.identifiers.titles`), what the output table
is is the head's
(`gr_mvdr.heads.plain`): the systems of gr_as_mvdr Table 6 differ by their YAML only.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.batch import PairBatch
from gr_mvdr.decoding.beam_search import Hypotheses, SearchResult
from gr_mvdr.decoding.trie import Trie
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.identifiers.scheme import collection_hash
from gr_mvdr.parts import build, part
from gr_mvdr.progress import track
from models.base import Table
from models.decoding import sequence_scores
from models.generative import check_least, index_folder
from models.identified import IdentifiedSystem

# Identifiers scored at once.
_DECODE_BATCH = 512


@part("model")
class Docid(IdentifiedSystem):
    """Generates the document's identifier token by token (DSI, GENRE; gr_as_mvdr §5.1, §7.3)."""

    def __init__(
        self,
        backbone: dict[str, Any],
        identifiers: dict[str, Any],
        query_length: int,
        document_length: int,
        beam_size: int,
        optimizer: dict[str, Any],
        head: dict[str, Any] | None = None,
        trained_rows: str = "all",
        length_penalty: float = 0.0,
        label_smoothing: float = 0.0,
        decoder_layers: int | None = None,
        consistency: float = 0.0,
    ):
        """
        Args:
            backbone: arguments of `load_encoder_decoder`; its tables grow by the new tokens.
            identifiers: the scheme, `_target_` and options.
            query_length: tokens kept of a query, the end token included.
            document_length: tokens kept of a document where it is encoded (the model's own
                encoder as source of docids, the contextual table of NP decoding).
            beam_size: hypotheses a query.
            optimizer: see `System`.
            head: see `GenerativeSystem`.
            trained_rows: of the embedding table: "all", or "new", the docid tokens' alone.
            length_penalty: documents are ranked by log p / length^penalty (0.8 in NCI).
            label_smoothing: of the training loss.
            decoder_layers: a new decoder of this depth; None = the backbone's.
            consistency: weight of the divergence between two dropout passes (an extra of NCI).

        Raises:
            ValueError: an unknown `trained_rows`, a number that is too small.
        """
        check_least(beam_size=(beam_size, 1), consistency=(consistency, 0))
        if trained_rows not in ("all", "new"):
            raise ValueError(f"model.trained_rows={trained_rows}: must be all or new")
        super().__init__(backbone, optimizer, head, decoder_layers)
        self.save_hyperparameters()
        self.scheme = build("identifiers", identifiers)

    @torch.no_grad()
    def score(self, batch: PairBatch) -> Tensor:
        """(B,) log p(identifier | query) / length^penalty, what the search ranks by."""
        batch = self.targets(batch)
        step = self.decoding_step(batch.query_ids, batch.query_mask)
        scores = sequence_scores(step, batch.document_ids, batch.document_mask)
        return scores / batch.document_mask.sum(1) ** self.hparams.length_penalty

    # Search ---------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> Trie:
        """The trie of all identifiers; documents that arrived after training get theirs now."""
        directory = index_folder(directory, "trie", "identifiers")
        self.assign_new(documents)
        collection = collection_hash(self.identifiers.document_ids)
        Trie.build(self.identifiers.sequences).save(directory / "trie", collection)
        self.save_identifiers(directory / "identifiers")
        self.searcher = Trie.load(directory / "trie", collection)
        self.document_ids = self.identifiers.document_ids
        return self.searcher

    @property
    def search_length(self) -> int:
        return self.searcher.depth

    def documents_of(self, found: SearchResult, number: int) -> dict[int, float]:
        """Every document of a generated identifier; those that share it have one score."""
        mine = found.final[found.final.query == number]
        pairs = documents_found(self.searcher, mine, self.hparams.length_penalty)
        return {document: score for documents, score in pairs for document in documents.tolist()}

    def is_identifier(self, tokens: Sequence[int]) -> bool:
        """Whether a sequence is a document's identifier."""
        node = int(self.searcher.find(torch.tensor([list(tokens)])))
        return node >= 0 and len(self.searcher.documents_at(node)) > 0

    def gold_prefixes(self, document: int) -> set[tuple[int, ...]]:
        """The prefixes of the document's identifier."""
        sequence = tuple(self.identifiers.of(document))
        return {sequence[:length] for length in range(1, len(sequence) + 1)}

    @torch.inference_mode()
    def rerank(
        self, queries: Table, documents: Table, candidates: dict[str, Sequence[str]]
    ) -> Ranking:
        """log p(identifier | query) of each candidate; one without an identifier is left out."""
        self.eval()
        row = {identifier: number for number, identifier in enumerate(self.document_ids)}
        results = {}
        for query in track(queries, "reranking", total=len(queries)):
            rows = [row[document] for document in candidates[query["id"]]]
            rows = [number for number in rows if self.identifiers.of(number)]
            scores = self._identifier_scores(query["tokens"], rows).tolist()
            results[query["id"]] = {
                self.document_ids[number]: score for number, score in zip(rows, scores, strict=True)
            }
        return Ranking(results)

    def _identifier_scores(self, query: Sequence[int], rows: list[int]) -> Tensor:
        """(n,) fp64 on the CPU: what `score` gives for one query and some documents.

        A search that keeps everything: identifiers of one beginning share its decoding.
        """
        source = [self.prepare_query(query)]
        scores = torch.full((len(rows),), -torch.inf, dtype=torch.float64)
        order = sorted(range(len(rows)), key=lambda number: self.identifiers.of(rows[number]))
        for start in range(0, len(order), _DECODE_BATCH):
            chunk = torch.tensor(order[start : start + _DECODE_BATCH])
            trie = Trie.build([self.identifiers.of(rows[number]) for number in chunk])
            found = self.beam(source, trie, trie.depth, beam_size=len(chunk))
            for place, score in documents_found(trie, found.final, self.hparams.length_penalty):
                scores[chunk[place]] = score
        return scores

    @torch.inference_mode()
    def score_all(self, queries: Sequence[Sequence[int]]) -> Tensor:
        """(documents, queries) fp64, `score` of every pair; −inf without an identifier.

        Exact: a search that loses no prefix, whose log-probabilities depend on the prefix alone.
        """
        self.eval()
        rows = [row for row in range(len(self.document_ids)) if self.identifiers.of(row)]
        # Documents that share an identifier are scored once, and tie exactly.
        distinct = {tuple(self.identifiers.of(row)): row for row in rows}
        place = {sequence: number for number, sequence in enumerate(distinct)}
        shared = [place[tuple(self.identifiers.of(row))] for row in rows]
        shape = len(self.document_ids), len(queries)
        scores = torch.full(shape, -torch.inf, dtype=torch.float64)
        for number, query in enumerate(track(queries, "scoring all", total=len(queries))):
            found = self._identifier_scores(query, list(distinct.values()))
            scores[rows, number] = found[shared]
        return scores


def documents_found(
    trie: Trie, hypotheses: Hypotheses, length_penalty: float
) -> Iterator[tuple[np.ndarray, float]]:
    """The documents of each hypothesis that is an identifier, and its log p / length^penalty."""
    scores = hypotheses.log_probs.double() / hypotheses.lengths**length_penalty
    nodes = trie.find(hypotheses.tokens)
    for node, score in zip(nodes.tolist(), scores.tolist(), strict=True):
        if node >= 0:
            yield trie.documents_at(node), score
