"""What the value of each key may be: the one table that `conf/checks.py` reads.

A key is written as the user types it; `*` is any part of it, dots included. The first line that
fits a key counts. A new key needs a line here, or a test says which one is missing.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gr_mvdr.evaluation.metrics import KNOWN, find_metric


def _at_least(number: int) -> Any:
    return Annotated[int, Field(ge=number)]


def _described(kind: Any, accepts: Any, words: str) -> Any:
    """A type with a test of its own, and what errors call it."""

    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(words)
        return value

    return Annotated[kind, AfterValidator(check), Field(description=words)]


def _counts_devices(text: str) -> bool:
    return all(part.strip().isdecimal() for part in text.strip(",").split(",")) and "," in text


def _are_different(texts: list[str]) -> bool:
    return len({*texts}) == len(texts)


def _is_pattern(text: str) -> bool:
    try:
        return bool(re.compile(text).pattern)
    except re.error:
        return False


def _is_shard(text: str) -> bool:
    first, _, number = text.partition("/")
    return first.isdecimal() and number.isdecimal() and int(first) < int(number)


Count, Size, Length = _at_least(0), _at_least(1), _at_least(2)
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
Splits = Text | list[Text]
Different = _described(list[Text], _are_different, "a list of different texts")
Group = dict
Metric = _described(str, find_metric, KNOWN)
Shard = _described(str, _is_shard, "a shard and the number of all, such as 0/4 or 3/4")
Pattern = _described(str, _is_pattern, "a regular expression")
Devices = _described(str, _counts_devices, "numbers of devices such as 0,1")
Direction = Literal["query_to_document", "document_to_query"]
Precision = Literal[
    *("auto", "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"),
    *("32", "16", "bf16", "64", 32, 16, 64),
]
Imputation = Literal["last", "zero", "mean", "none"] | float
Mode = Literal["exact", "gather", "impute", "fde", "rerank"]
Auto = Literal["auto"]

# A search option, as `model.search` has one value of it and `study.settings` a list.
_SEARCH: dict[str, Any] = {
    "mode": Mode,
    "dtype": Literal["float32", "float16", "pq", "residual"],
    "pq_bytes": Size | None,
    "recall": Share,
    "neighbours": Size | Auto,
    "probes": Size | Auto | None,
    "refine": Count | Auto | None,
    "lists": Size | None,
    "imputation": Imputation,
    "keep_query": Share,
    "keep_document": Share,
    "pool": Size,
    "pool_by": Literal["ward", "k_means", "salience"],
    "fde_repetitions": Size,
    "fde_planes": Size,
    "fde_projection": Size | None,
    "fde_size": Size | None,
    "fde_dtype": Literal["float32", "float16"],
    "seed": Seed,
}

RULES: dict[str, Any] = {
    "seed": Seed,
    "query_length": Length,
    "document_length": Length,
    "retrieval_depth": Size,
    "resume": bool,
    "output": Text | None,
    "experiments": Text,
    "name": Text | int | None,
    "run": Text | None,
    "system": Text,
    "weights": Text | None,
    "initial": Text | None,
    "collection": Text | None,
    "neighbours": Size,
    "beam_size": Size,
    "docid_beam": Size,
    # What experiments name and sweeps go through.
    "size": Text,
    "sizes": Text,
    "trained": Text,
    "trainings": Text,
    "collections": Text,
    "batches": Text,
    "k_trains": Text,
    "table4": Group,
    "table4.row": Text,
    "table4.rows*": Any,
    "multipass": Group,
    "multipass.lexical": Text,
    "multipass.depth": Size,
    "multipass.reranker": Text,
    # The other commands.
    "runs": Splits,
    "tasks": Splits,
    "languages": Splits | None,
    "peers": list[Text],
    "labels": list[Text | int] | None,
    "mixed": bool,
    "check": bool,
    "vectors": bool,
    "trust": bool,
    "port": Annotated[int, Field(ge=1024, le=65535)] | None,
    "open": bool,
    "paper": Text | None,
    "claims": bool,
    "block": Text | None,
    "document": Text,
    "method": Literal["rrf", "isr", "combsum", "combmnz", "combmax", "weighted", "merge"],
    "norm": Literal["min-max", "max", "sum", "zmuv", "rank", "borda"] | None,
    "k": Size,
    "part_weights": Annotated[list[Weight], Field(min_length=2)] | None,
    "tune": Text | None,
    "metric": Metric,
    "queries": Size,
    "others": _at_least(2),
    "metrics": Annotated[list[Metric], Field(min_length=1)] | None,
    "qrels": Text | None,
    #
    "tokenizer": Group,
    "tokenizer.vocab_size": _at_least(7),  # six are special tokens
    "tokenizer.unit": Literal["piece", "word"],
    "tokenizer.path": Text | None,
    "tokenizer.lowercase": bool,
    "tokenizer.prefix_space": bool | None,
    "tokenizer.markers": Group,
    "tokenizer.markers.*": Text | None,
    "tokenizer.expansion": Text | None,
    "tokenizer.skip": Literal["punctuation"] | list[Text] | None,
    "tokenizer.special_tokens": Group,
    "tokenizer.special_tokens.*": Text,
    #
    "backbone": Group,
    "backbone.name": Text | None,
    "backbone.dropout_rate": Rate | None,
    "backbone.template": Group | None,
    "backbone.attention": Literal["eager", "sdpa"],
    "backbone.gradient_checkpointing": bool,
    "backbone.initialisation": Literal["random", "mimetic"],
    "backbone.latent": Rate,
    "backbone.shape": Group | None,
    "backbone.shape.feed_forward_proj": Text,
    "backbone.shape.num_*": Size,
    "backbone.shape.d_*": Size,
    "backbone.shape.vocab_size": _at_least(7),
    "spans": Group,
    #
    "trainer": Group,
    "trainer.max_epochs": Size | Literal[-1] | None,
    "trainer.max_steps": Size | Literal[-1],
    "trainer.accelerator": Literal["auto", "cpu", "gpu", "cuda", "mps"],
    "trainer.devices": Size
    | Literal["auto", -1]
    | Annotated[list[Count], Field(min_length=1)]
    | Devices,
    "trainer.num_nodes": Size,
    "trainer.precision": Precision,
    "trainer.gradient_clip_val": Weight | None,
    "trainer.accumulate_grad_batches": Size,
    "trainer.reload_dataloaders_every_n_epochs": Count,
    "trainer.log_every_n_steps": Count,
    "trainer.check_val_every_n_epoch": Size | None,
    "trainer.limit_train_batches": Size | Share | None,
    "trainer.limit_*_batches": Count | Part | None,
    "trainer.use_distributed_sampler": bool,
    "trainer.enable_checkpointing": _described(bool, bool, "true, or no run could be opened again"),
    "trainer.enable_*": bool,
    "trainer.default_root_dir": Text,
    "trainer.callbacks": list[Group],
    "trainer.plugins": list[Group] | None,
    "trainer.callbacks.*.dirpath": Text,
    "trainer.callbacks.*.filename": Text,
    "trainer.callbacks.*.directory": Text,
    "trainer.callbacks.*.pairs": Count,
    "trainer.callbacks.*.save_on_train_epoch_end": bool,
    "trainer.callbacks.*.enable_version_counter": bool,
    "trainer.strategy": Group | Literal["auto", "ddp", "ddp_find_unused_parameters_true"],
    "trainer.strategy.*_size": Size,
    "trainer.strategy.save_distributed_checkpoint": bool,
    #
    "data": Group,
    "data.batch_size": Size,
    "data.mask_relevant": bool,
    "data.num_workers": Count,
    "data.seed": Seed,
    "data.query_length": Length,
    "data.document_length": Length,
    "data.training_length": Length | None,
    "data.candidates": Size,
    "data.candidates_run": Text | None,
    "data.identifiers": Text | None,
    "data.views": Group,
    "data.views.*": Text,
    "data.add_relevant": bool,
    "data.drop_identical": bool,
    "data.shard": Shard | None,
    "data.metrics": Annotated[list[Metric], Field(min_length=1)],
    "data.groups": Pattern | None,
    "data.max_*_queries": Size | None,
    "data.test_split": Text | Different | None,
    "data.train_split": Text | None,
    "data.validation_split": Text | None,
    "data.new_documents": Text | Different,
    "data.text_fields": Annotated[Different, Field(min_length=1)],
    "data.cleaning": list[Literal["html", "unicode", "punctuation"]],
    "data.empty_documents": Literal["refuse", "keep"],
    "data.store": Text | None,
    "data.path": Texts | Text | None,
    "data.name": Text,
    "data.format": Text | None,
    "data.fields": Annotated[list[Text | Size], Field(min_length=1)] | None,
    "data.text": Text | Texts,
    "data.first_tokens": Size | None,
    "data.title_vocabulary": Text | None,
    "data.document_ids": Text | None,
    "data.check_counts": bool,
    "data.n_documents": Size,
    "data.train_questions": Size,
    "data.relevant": Size,
    "data.attributes": Size | None,
    "data.collection_seed": Count,
    "data.tokenizer_options.backbone": Text | None,
    "data.tokenizer_options.vocab_size": _at_least(7),
    "data.tokenizer_options.unit": Literal["piece", "word"],
    "data.tokenizer_options.path": Text | None,
    "data.tokenizer_options.lowercase": bool,
    "data.tokenizer_options": Group,
    "data.tokenizer_options.special_tokens": Group,
    "data.tokenizer_options.prefix_space": bool | None,
    "data.tokenizer_options.markers": Group | None,
    "data.tokenizer_options.template": Group | None,
    "data.tokenizer_options.expansion": Text | None,
    "data.tokenizer_options.skip": Literal["punctuation"] | list[Text] | None,
    "data.examples": Group,
    "data.examples.negatives": Group | None,
    "*.negatives.n": Size,
    "*.negatives.depth": Size,
    "*.negatives.path": Text,
    "*.negatives.name": Text | None,
    "*.negatives.teacher": Text | None,
    "data.indexing": Group | None,
    "data.indexing.ratio": Weight,
    "data.indexing.inputs": Group,
    "data.indexing.inputs.inputs": list[Group],
    "data.indexing*.path": Text,
    "*.inputs.density": Annotated[float, Field(gt=0, lt=1)],
    "*.inputs.mean_span": Annotated[float, Field(ge=1)],
    "data.indexing*.unit": Literal["words", "tokens"],
    #
    "model": Group,
    "model.backbone": Group,
    "model.tokenizer": Text,
    "model.query_length": Length,
    "model.document_length": Length,
    "model.seed": Seed,
    "model.optimizer": Group,
    "model.optimizer.learning_rate": Positive,
    "model.optimizer.weight_decay": Weight,
    "model.optimizer.schedule": Literal["constant", "one_cycle"],
    "model.k1": Weight,
    "model.b": Part,
    "model.dimension": Size,
    "model.heads": Size,
    "model.projections": Literal["shared", "attention"],
    "model.normaliser": Literal["none", "alignment", "query_tokens", "non_zero"],
    "model.gradient_cache": Size | None,
    "model.keep": Group,
    "model.keep.*": Size,
    "model.regulariser": Group,
    "model.regulariser.*": Weight,
    "model.initial_bias": Annotated[float, Field(ge=-100, le=100)],
    "model.attend_expansion": bool,
    "model.expansion_length": Length | None,
    "model.loss": Group,
    "model.loss.temperature": Positive,
    "model.search": Group,
    **{f"model.search.{key}": rule for key, rule in _SEARCH.items()},
    "model.search.normalise": Literal["vocabulary", "reachable"],
    "model.search.plan": Group | None,
    "model.search.plan.scores": Text | None,
    "model.search.plan.weight": Weight,
    "model.search.plan.candidates": Size | None,
    "model.search.plan.terms": Size,
    "model.beam_size": Size,
    "model.length_penalty": Weight,
    "model.label_smoothing": Rate,
    "model.consistency": Weight,
    "model.decoder_layers": Size | None,
    "model.trained_rows": Literal["all", "new"],
    "model.key_length": Size,
    "model.query_ngrams": Count,
    "model.special_tokens": Group,
    "model.bonus": Group,
    "model.bonus.*": Weight,
    "model.n_queries": Count,
    "model.top_k": Size,
    "model.negatives_per_query": Size,
    "model.depth": Size,
    "model.stages": list[Group],
    "model.stages.*.run": Text,
    "model.stages.*.depth": Size | None,
    "model.evidence": Group,
    "model.evidence.alpha": Positive,
    "model.evidence.beta": Part,
    "model.evidence.smoothing": Weight,
    "model.evidence.add_best_unigrams_to_ngrams": bool,
    "model.evidence.special_ids": list[Count],
    "model.evidence.*": Count,
    "model.pooling": Group | Literal["mean", "first"],
    "model.alignment": Group,
    "model.training_alignment": Group | None,
    "*alignment*.direction": Direction,
    "*alignment*.k": Size,
    "*alignment*.p": Share,
    "*alignment*.epsilon": Positive,
    "alignments": Group,
    "alignments.*": Group,
    "*pooling.*.k": Size,
    "*pooling.*.factor": Size,
    "*pooling.*.protected": Count,
    "*pooling.*.by": Literal["ward", "k_means", "salience"],
    "*pooling.*": Group,
    "model.salience": Group | None,
    "model.salience.*.gate": Literal["lp", "relu", "hard", "l1"],
    "model.salience.*.sparsity": Share,
    "model.salience.*.epsilon": Positive,
    "model.salience.*.solver": Literal["exact", "iterative"],
    "model.salience.*.l1": Positive,
    "model.salience.*.k1": Weight,
    "model.salience.*.b": Part,
    "model.salience.*.iterations": Size,
    "model.salience.*": Group | None,
    "model.head": Group | None,
    "model.head.form": Literal["paper", "nci", "base", "async", "contrastive"],
    "model.head.clusters": Size,
    "model.head.rebuild_every": Size,
    "model.head.contrastive_epochs": Size,
    "model.head.layers": Size,
    "model.head.heads": Size,
    "model.head.dropout": Rate,
    "model.head.seed": Seed,
    "model.ranking": Group | None,
    "model.ranking.weight": Weight,
    "model.ranking.negatives": Size,
    "model.ranking.margin": Positive,
    "model.ranking.stages": Size,
    "model.ranking.logits": bool,
    "model.ranking.temperature": Positive,
    "model.ranking.beta": Positive,
    "model.identifiers": Group,
    "model.identifiers.k": Length,
    "model.identifiers.leaf_size": Size,
    "model.identifiers.balanced": bool,
    "model.identifiers.positional": bool,
    "model.identifiers.new_documents": Literal["number", "nearest", "skip"],
    "model.identifiers.missing": Literal["refuse", "first_tokens"],
    "model.identifiers.long": Literal["refuse", "cut"],
    "model.identifiers.first_tokens": Size,
    "model.identifiers.max_length": Length,
    "model.identifiers.levels": Size,
    "model.identifiers.codes": Length,
    "model.identifiers.quantiser": Literal["residual", "product"],
    "model.identifiers.collisions": Literal["number", "share"],
    "model.identifiers.embeddings": Group,
    "model.identifiers.embeddings.run": Text | None,
    "model.identifiers.embeddings.otherwise": Group,
    "model.identifiers.embeddings*.dimension": Size,
    "model.identifiers.seed": Seed,
    #
    "rerank": dict[str, Group],
    "rerank.*.pool": Literal["sum", "mean", "max"],
    "rerank.*.document_length": Length,
    "rerank.*.seed": Seed,
    "rerank.*.length": Size,
    "rerank.*.n_spans": Size,
    "rerank.*.temperature": Positive,
    "rerank.*.*": Group,
    #
    "analysis": Group,
    "analysis.precision": Literal["float32", "float16"],
    "analysis.questions": Group | None,
    "analysis.questions.*features": Annotated[list[Size], Field(min_length=1)],
    "analysis.questions.*.neighbours": Size,
    "analysis.questions.*.draws": Size,
    "analysis.questions.*.removed": list[Size],
    "analysis.questions.*.most_documents": Count,
    "analysis.questions.*.seed": Seed,
    "analysis.questions.*.pairs": Count,
    "analysis.questions.*.cases": Count,
    "analysis.questions.*.contexts": Count,
    "analysis.questions.*queries": Count,
    "analysis.questions.*.*": Any,  # what an analysis of your own takes
    "analysis.questions.*": Group | None,
    "analysis.*": Count,
    #
    "study": Group | None,
    "study.k": list[Size],
    "study.p": list[Share],
    "study.alignments": list[Group],
    "study.folds_of": Annotated[list[Size], Field(min_length=1)],
    "study.depth": Size,
    "study.max_queries": Size | None,
    "study.settings": Group | Annotated[list[Group], Field(min_length=1)],
    **{
        f"study.settings.{place}{key}": Annotated[list[rule], Field(min_length=1)]
        for key, rule in (_SEARCH | {"beam_size": Size, "plan_weight": Weight}).items()
        for place in ("", "*.")
    },
    "study.curves": Group | list[Group],
    "study.curves*.x": Text,
    "study.curves*.y": Text,
    "study.curves*.hue": Splits | None,
    "study.curves*.title": Text,
    "study.curves*.log": bool,
    "study.curves*where": Group,
    "study.curves*where.*": Any,
    "study.curves*labels": Group,
    "study.curves*labels.*": Text,
    #
    "logger": Group | None,
    "logger.offline": bool,
    "logger.settings": Group,
    "logger.settings.silent": bool,
    "logger.name": Text | int | None,
    "logger.project": Text,
    "logger.save_dir": Text | None,
    "logger.group": Text | None,
    "logger.job_type": Text | None,
    "logger.tags": list[Text] | None,
    # Of spans and windows, wherever they are drawn.
    "*.n_spans": Size,
    "*.separate": bool,
    "*.length": Size,
    "*.max_tokens": Size | None,
    "*.temperature": Positive,
}
