"""The further fields of documents (url, date, author) as columns of Arrow, and filters on them.

A table of documents has them as one column of structs, so that no field's name collides with a
column that a run adds. pyarrow is imported by the functions that use it.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from gr_mvdr.options import show

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS_COLUMN = "fields"
# Texts that are numbers, or empty. "007" is a text.
_WHOLE = r"^(-?(0|[1-9]\d{0,17}))?$"
_NUMBER = r"^(-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?)?$"


def arrow_columns(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Returns the fields of rows as columns; {"a": {"b": 1}} is the column `a.b`.

    Values of several types become texts.
    """
    import pyarrow as pa

    names = dict.fromkeys(chain(*rows))
    table = pa.table({str(name): _column([row.get(name) for row in rows]) for name in names})
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _column(values: list[Any]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of several types
        return pa.array([v if v is None or isinstance(v, str) else _text(v) for v in values])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def common_types(types: Mapping[str, Any], table: "pa.Table") -> dict[str, Any]:
    """Returns the types that hold the columns of several tables, of which `types` holds the former.

    Texts that are all numbers, as in CSV files, become numbers. A field without any value has no
    type.
    """
    import pyarrow as pa

    joined = dict(types)
    for name in table.column_names:
        both = (pa.schema([(name, t)]) for t in (types.get(name, pa.null()), _narrow(table[name])))
        try:
            joined[name] = pa.unify_schemas(list(both), promote_options="permissive")[0].type
        except pa.ArrowTypeError:
            joined[name] = pa.string()
    return {name: kind for name, kind in joined.items() if not pa.types.is_null(kind)}


def _narrow(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.type
    if not pc.any(pc.not_equal(column, "")).as_py():
        return pa.null()
    for pattern, kind in ((_WHOLE, pa.int64()), (_NUMBER, pa.float64())):
        if pc.all(pc.match_substring_regex(column, pattern)).as_py():
            return kind
    return pa.string()


def field_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the fields of rows as columns, typed as `common_types` says."""
    table = arrow_columns(rows)
    return typed_columns(table, len(rows), common_types({}, table))


def typed_columns(table: "pa.Table", count: int, types: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of `types` for a table of `count` rows, which may lack some."""
    import pyarrow as pa

    return {
        name: _converted(table[name].combine_chunks(), kind)
        if name in table.column_names
        else pa.nulls(count, kind)
        for name, kind in types.items()
    }


def _converted(column: Any, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type) and not pa.types.is_string(kind):
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    try:
        return column.cast(kind)
    except pa.ArrowException:  # such as a list among texts
        return pa.array([v if v is None else _text(v) for v in column.to_pylist()], kind)


class Kept(list[str]):
    """The ids of the documents that a filter keeps.

    Attributes:
        values: field → values of which a document must have one, by which a database can filter on
            its own; None = only the ids tell.
    """

    def __init__(self, ids: Sequence[str], values: Mapping[str, Sequence[Any]] | None = None):
        super().__init__(ids)
        self.values = values


def document_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the further fields of a document's row that have a value."""
    fields = row.get(FIELDS_COLUMN) or {}
    return {name: value for name, value in fields.items() if value is not None}


def json_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields as values that JSON can hold: a date is its text."""
    return json.loads(json.dumps(fields, default=str))


def filter_table(documents: Any) -> "pa.Table":
    """Returns the columns of documents that a filter reads: their fields, `id` and `title`.

    Args:
        documents: a table of `datasets`, or a `TextTable`.
    """
    import pyarrow as pa

    names = [n for n in ("id", "title", FIELDS_COLUMN) if n in documents.column_names]
    if hasattr(documents, "with_format"):
        own = documents.select_columns(names).with_format("arrow")[:]
        fields = own[FIELDS_COLUMN].combine_chunks() if FIELDS_COLUMN in names else pa.array([{}])
        columns = dict(zip(fields.type.names, fields.flatten(), strict=True))
    else:
        own, rows = documents, documents[FIELDS_COLUMN] if FIELDS_COLUMN in names else []
        columns = field_columns(rows)
    return pa.table(columns | {n: own[n] for n in names if n != FIELDS_COLUMN})


def find_matching(table: "pa.Table", where: Any) -> Kept:
    """Returns the ids of the documents that a filter keeps.

    Args:
        table: what `filter_table` returned.
        where: field → a value or a list of values, of which a document has one in each field (of a
            field of lists: in its list); or a predicate of pyarrow.compute.

    Raises:
        ValueError: a field is unknown, or a value does not suit it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rule = "fields with their values, or a predicate of pyarrow.compute"
    if not isinstance(where, Mapping | pc.Expression):
        raise ValueError(f"where={show(where)}: must be {rule}")
    try:
        if isinstance(where, pc.Expression):
            return Kept(table.filter(where)["id"].to_pylist())
        kept, values = pa.array([True] * len(table)), {}
        for name, value in where.items():
            if name not in table.column_names:
                fields = ", ".join(table.column_names)
                raise ValueError(f"where: {name} must be a field of the documents: {fields}")
            column = table[name].combine_chunks()
            items = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            values[name] = pa.array(value if isinstance(value, list | tuple | set) else [value])
            values[name] = values[name].cast(items.type)
            found = pc.is_in(items, value_set=values[name])
            if items is not column:
                owners = pc.list_parent_indices(column).filter(found)
                found = pc.is_in(pa.array(range(len(column)), owners.type), value_set=owners)
            kept = pc.and_(kept, found)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"where={show(where)}: {' '.join(str(error).split())[:200]}") from None
    # A database compares whole numbers and texts alone, and has no titles.
    plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)
    is_plain = all(
        v.null_count == 0 and any(kind(v.type) for kind in plain) for v in values.values()
    )
    own = {name: v.to_pylist() for name, v in values.items()}
    return Kept(
        table["id"].filter(kept).to_pylist(), own if is_plain and "title" not in own else None
    )
