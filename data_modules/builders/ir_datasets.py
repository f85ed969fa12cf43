"""Collections of the library ir_datasets, by their ids: beir/scifact, msmarco-passage, vaswani, …

An id is the documents; its splits are the ids below it that have queries and judgements. What is
downloaded goes where ir_datasets keeps its files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from data_modules.formats.layout import Document, Judgement, Layout, Query
from gr_mvdr.options import check_choice

OWN = "test"  # what the split of an id is called that has judgements itself


def ir_dataset(
    name: str,
    splits: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    own: str = OWN,
) -> Layout:
    """The documents of an id, with the queries and judgements of those of its splits that are used.

    Args:
        name: the id.
        splits: that are read: "train" is the id NAME/train, "dev-small" is
            NAME/dev/small; "test" is the id itself where there is no NAME/test. None =
            those of train, dev and test that there are.
        fields: of a document, that make its text, in this order; "title" is its title. None = the
            title, and the default text of ir_datasets without it; all texts where it has none.
        own: the name of the split that is the id itself.

    Raises:
        ValueError: an unknown id, split or field; an id without documents or judgements; (on
            reading) files that cannot be fetched.
    """
    data = _load(name)
    if not data.has_docs():
        raise ValueError(f"data.name={name}: must be an id with documents, it has none")
    wanted = _find_splits(name, splits, own)
    titled, texts = _choose_fields(name, data.docs_cls(), fields)

    def documents() -> Iterator[Document]:
        for where, row in _rows(name, "docs", data.docs_iter):
            title = (row.title or "") if titled else ""
            if texts is None:
                text = row.default_text().removeprefix(title).strip()
            else:
                text = " ".join(filter(None, (getattr(row, field) for field in texts)))
            yield Document(where, row.doc_id, title, text)

    def queries() -> Iterator[Query]:
        for id in wanted.values():
            for where, row in _rows(id, "queries", _load(id).queries_iter):
                text = row.default_text() if hasattr(row, "default_text") else row[1]
                yield Query(where, row.query_id, text)

    def judgements(id: str) -> Iterator[Judgement]:
        for where, row in _rows(id, "qrels", _load(id).qrels_iter):
            yield Judgement(where, row.query_id, row.doc_id, int(row.relevance))

    return Layout(
        name=name.replace("/", "-"),
        files=(),
        options={"reader": "ir_datasets/1", "id": name, "splits": wanted, "fields": fields},
        documents=documents,
        queries=queries,
        judgements={split: partial(judgements, id) for split, id in wanted.items()},
    )


def _load(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError:
        raise ValueError(
            f"data.name={name}: needs ir_datasets: pip install 'gr-mvdr[ir_datasets]'"
        ) from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise ValueError(
            f"data.name={name}: must be an id of ir_datasets, see ir-datasets.com"
        ) from None


def _find_splits(name: str, asked: Sequence[str] | None, own: str) -> dict[str, str]:
    """Split → id, of the splits that are asked for."""
    import ir_datasets

    below = [id for id in ir_datasets.registry if id.startswith(f"{name}/")]
    known = {id[len(name) + 1 :].replace("/", "-"): id for id in below}
    known = {s: id for s, id in ({own: name} | known).items() if _is_judged(_load(id))}
    if not known:
        raise ValueError(f"data.name={name}: must be an id with judged queries, it has none")
    if asked is None:
        return {split: known[split] for split in ("train", "dev", "test") if split in known}
    for split in asked:
        check_choice(f"data.name={name}: the split", split, known)
    return {split: known[split] for split in asked}


def _is_judged(data: Any) -> bool:
    return data.has_queries() and data.has_qrels()


def _choose_fields(
    name: str, kind: Any, fields: Sequence[str] | None
) -> tuple[bool, list[str] | None]:
    """Whether documents have a title, and their other fields; None = the default text."""
    texts = [n for n in kind._fields if n != "doc_id" and kind.__annotations__.get(n) is str]
    if fields is None and hasattr(kind, "default_text"):
        return "title" in texts, None
    chosen = texts if fields is None else fields
    if unknown := [field for field in chosen if field not in texts]:
        raise ValueError(
            f"data.fields={list(chosen)}: {unknown[0]} must be one of {', '.join(texts)}, the "
            f"texts of {name}"
        )
    return "title" in chosen, [field for field in chosen if field != "title"]


def _rows(id: str, kind: str, rows: Callable[[], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """(``id/kind:number``, row) of what ir_datasets iterates over."""
    try:
        for number, row in enumerate(rows(), start=1):
            yield f"{id}/{kind}:{number}", row
    except Exception as error:  # of ir_datasets, of the network, or of a file's format
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        # No OSError: it would be taken for one of the collection that is being written.
        raise ValueError(
            f"data.name={id}: ir_datasets cannot read its {kind} ({reason})"
        ) from error
