"""Identifiers of a system: refused, extended; the rows that they train."""

import pytest

from gr_mvdr.texts import TextTable


def test_a_checkpoint_of_other_identifiers_is_refused(tools):
    first = tools.make_docid("semantic")
    other = tools.make_docid("semantic", identifiers=tools.SEMANTIC | {"leaf_size": 1})
    checkpoint = {"state_dict": first.state_dict()}
    first.on_save_checkpoint(checkpoint)
    with pytest.raises(ValueError, match=f"{first.identifiers.hash}.*{other.identifiers.hash}"):
        other.on_load_checkpoint(checkpoint)


@pytest.mark.parametrize("kind", ["naive", "semantic", "atomic"])
def test_docids_come_back_from_their_table(tools, kind, tmp_path):
    """The codes of `docids.tsv` make the same trie, up to the numbers of its tokens."""
    first = tools.make_docid(kind, directory=tmp_path / "made")
    lines = (tmp_path / "made/docids.tsv").read_text().splitlines()
    table = dict(line.split("\t") for line in lines)
    documents, again = tools.named_documents(), "gr_mvdr.identifiers.docids.TableDocids"
    options = dict(identifiers={"_target_": again}, known=range(7))
    with pytest.raises(
        ValueError, match="data.identifiers=null: must be a file of lines docid<TAB"
    ):
        tools.make_docid(kind, documents=documents, **options)
    codes = [table[name].split() for name in documents["id"]]
    named = TextTable({**documents.columns, "codes": codes})
    system = tools.make_docid(kind, documents=named, **options)
    pairs = {
        pair
        for made, back in zip(
            *(one.identifiers.sequences[:7] for one in (first, system)), strict=True
        )
        for pair in zip([t for t in made if t >= 60], [t for t in back if t >= 60], strict=True)
    }
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    assert system.scheme.spell(system.identifiers.sequences[0]) == " ".join(codes[0])
    is_known = {*codes[7]} <= {code for name in codes[:7] for code in name}
    assert bool(system.scheme.assign(named).sequences[7]) == is_known
    assert system.scheme.assign(documents).sequences[7] == [], "a document without codes"


# Documents that arrive after training ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["naive", "semantic-pawa", "titles-np"])
def test_new_documents_are_named_and_found(tools, queries, kind, tmp_path):
    documents, known = tools.named_documents(), [0, 1, 3, 5, 6, 7]
    system = tools.make_docid(kind, documents=documents, known=known)
    before = {row: system.identifiers.sequences[row] for row in known}
    assert system.identifiers.sequences[2] == system.identifiers.sequences[4] == []
    with pytest.raises(ValueError, match="document 'd2' has no identifier: it came after training"):
        system.score(tools.pairs_of(system, [5], [0, 2]))
    system.index(documents, tmp_path)
    assert {row: system.identifiers.sequences[row] for row in known} == before
    assert all(system.identifiers.sequences)
    assert '"assigned": 8' in (tmp_path / "identifiers/statistics.json").read_text()
    found = system.retrieve(queries, 100)
    for number, query in enumerate(queries["id"]):
        assert len(found.documents(query)) == 8, "beam 20 finds all"
        scores = system.score(tools.pairs_of(system, queries["tokens"][number], [2, 4]))
        mine = [found.scores(query)[document] for document in ("d2", "d4")]
        assert scores.isfinite().all() and mine == pytest.approx(scores.tolist(), abs=1e-4)


def test_a_new_document_without_an_atomic_docid_is_left_out(tools, queries, tmp_path):
    documents = tools.named_documents()
    system = tools.make_docid("atomic", documents=documents, known=range(6))
    assert system.vocabulary_size == 60 + 6
    system.index(documents, tmp_path)
    everything = {query: documents["id"] for query in queries["id"]}
    for ranking in (system.retrieve(queries, 100), system.rerank(queries, documents, everything)):
        assert {len(ranking.documents(query)) for query in queries["id"]} == {6}
        assert not {"d6", "d7"} & set(ranking.documents("q1"))
    none = system.rerank(queries, documents, {query: ["d7"] for query in queries["id"]})
    assert len(none) == 3 and none.documents("q0") == []
