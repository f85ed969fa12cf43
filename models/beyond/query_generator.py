"""A query generator (doc2query, DSI-QG): a decoder that generates queries for a document.

As a retrieval system it is doc2query: BM25 over documents with their generated queries appended.
Its file of pseudo-queries can serve as indexing inputs of any other system.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gr_mvdr.analyzer import Language
from gr_mvdr.backbones import check_length, find_start_token
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.decoders import push_right
from gr_mvdr.evaluation.ranking import Ranking
from gr_mvdr.files import temporary_folder, write_text
from gr_mvdr.options import Count, Rate, Seed, Size, Text, part
from gr_mvdr.progress import track
from gr_mvdr.relevance import Explanation, Factors, PairAlignment
from gr_mvdr.texts import TextTable
from gr_mvdr.tokenizers import load_tokenizer
from models.base import Table
from models.bm25 import BM25
from models.generative import GenerativeSystem, continues_prompts
from models.training import OptimizerOptions

PSEUDO_QUERIES = "pseudo_queries.jsonl"
# Documents whose queries are sampled at once.
_BATCH = 32
# Overrides a checkpoint's own `generation_config.json`, which may be for summaries
# (bart-large-cnn).
_PLAIN = dict(num_beams=1, min_length=0, no_repeat_ngram_size=0)


@part("model")
class QueryGenerator(GenerativeSystem):
    """Generates queries from documents; in training a batch's queries are documents, its targets
    queries."""

    share_of = "word"
    score_is = "mean log-probability of the query's tokens, given the document"

    generates = "query"

    def __init__(
        self,
        backbone: dict[str, Any],
        tokenizer: Text,
        document_length: Size,
        query_length: Size,
        n_queries: Count,
        top_k: Size,
        optimizer: OptimizerOptions,
        label_smoothing: Rate = 0.0,
        seed: Seed = 0,
        language: Language = "none",
    ):
        """
        Args:
            backbone: arguments of `load_backbone`.
            tokenizer: folder of the run's tokeniser, to write queries as text.
            document_length: tokens kept of a document, special tokens included.
            query_length: tokens of a generated query, special tokens included.
            n_queries: pseudo-queries per document; 0 = none, so that the search is plain BM25.
            top_k: each token is sampled from the k most probable ones.
            optimizer: options of `make_optimizer`.
            label_smoothing: label smoothing of the training loss.
            seed: random seed of the sampling.
            language: of the documents and queries, for BM25.
        """
        super().__init__(backbone, optimizer)
        self.save_hyperparameters()
        self.search_length = query_length
        check_length(self.backbone, query_length=query_length, document_length=document_length)
        if continues_prompts(self) and self.template.suffix != (self.template.stop,):
            raise ValueError("tokenizer.prompt: must be null, since queries are targets here")

    # Given pairs: the document is read, the query is generated --------------------------------

    def forced(self, batch: PairBatch) -> PairBatch:
        """The batch with the documents as the source and the queries as the targets."""
        sides = batch.document_ids, batch.document_mask, batch.query_ids, batch.query_mask
        return PairBatch(*sides, batch.document_index)

    def align(self, batch: PairBatch) -> PairAlignment:
        """Cross-attention from query tokens to document tokens; every column of A sums to one."""
        return _turned(super().align(batch), batch)

    def explain(self, batch: PairBatch) -> Explanation:
        """Returns S and A of every decoder layer, without the paths of logits."""
        return Explanation([_turned(layer, batch) for layer in super().explain(batch).layers])

    def factors(self, batch: PairBatch) -> Factors:
        """The vectors behind S and A, whose softmax runs over the document's tokens here."""
        swapped = super().factors(batch)
        values = swapped.query_values, swapped.document_values
        keys = swapped.query_keys, swapped.document_keys
        return Factors(*values, *keys, swapped.query_mask, swapped.document_mask)

    # Search -----------------------------------------------------------------------------------

    def index(self, documents: Table, directory: str | Path | None = None) -> None:
        """Writes every document's pseudo-queries and indexes the documents with them."""
        directory = Path(directory or temporary_folder("doc2query"))
        directory.mkdir(parents=True, exist_ok=True)
        queries = list(self.generate(documents))
        rows = zip(documents["id"][:], queries, strict=True)
        lines = (json.dumps({"document_id": d, "queries": q}, ensure_ascii=False) for d, q in rows)
        write_text(directory / PSEUDO_QUERIES, "".join(f"{line}\n" for line in lines))
        texts = zip(documents["text"][:], queries, strict=True)
        whole = [" ".join([text, *own]) for text, own in texts]
        columns = {name: documents[name][:] for name in ("id", "tokens")}
        self.bm25 = BM25(language=self.hparams.language, reads="texts")
        self.bm25.index(TextTable({**columns, "text": whole}), directory / "bm25")

    def open_index(self, documents: Table, directory: str | Path) -> None:
        """Opens the words that `index` counted; see `System.open_index`."""
        self.bm25 = BM25(language=self.hparams.language, reads="texts")
        self.bm25.open_index(documents, Path(directory) / "bm25")

    @torch.inference_mode()
    def generate(self, documents: Table) -> Iterator[list[str]]:
        """`n_queries` texts for each document, sampled from the `top_k` best tokens of a step."""
        if not self.hparams.n_queries:
            yield from ([] for _ in range(len(documents)))
            return
        self.eval()
        torch.manual_seed(self.hparams.seed)
        tokenizer = load_tokenizer(self.hparams.tokenizer)
        starts = range(0, len(documents), _BATCH)
        for start in track(starts, "generating queries", total=len(starts)):
            tokens = documents[start : start + _BATCH]["tokens"]
            ids, mask = pad([*map(self.cut_document, tokens)])
            if continues_prompts(self):
                ids, mask = push_right(ids, mask), mask.flip(1)
            sampled = self.backbone.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                do_sample=True,
                top_k=self.hparams.top_k,
                num_return_sequences=self.hparams.n_queries,
                max_new_tokens=self.hparams.query_length,
                decoder_start_token_id=find_start_token(self.backbone),
                eos_token_id=self.template.stop,
                pad_token_id=self.template.pad,
                **_PLAIN,
            )
            if continues_prompts(self):  # the output begins with the prompt
                sampled = sampled[:, ids.shape[1] :]
            texts = tokenizer.batch_decode(sampled, skip_special_tokens=True)
            for first in range(0, len(texts), self.hparams.n_queries):
                yield texts[first : first + self.hparams.n_queries]

    def _retrieve(self, *asked: Any) -> Ranking:
        """BM25 over the documents and their pseudo-queries (doc2query)."""
        return self.bm25.retrieve(*asked)


def _turned(pairs: PairAlignment, batch: PairBatch) -> PairAlignment:
    """Swaps the axes and sides of an alignment back to those of the batch itself."""
    matrices = {"similarity": pairs.similarity.mT, "alignment": pairs.alignment.mT}
    return replace(pairs, **matrices, **batch.sides)
