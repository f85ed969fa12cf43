import gzip

import numpy as np
import pytest

from gr_mvdr.evaluation.ranking import Ranking, best_documents, read_qrels, write_qrels


def test_documents_come_by_score_and_ties_by_id_last_first():
    scores = {"a": 1.0, "c": 2.0, "b": 1.0, "d10": 1.0, "d9": 1.0}
    ranking = Ranking({"q": scores})
    assert ranking.documents("q") == ["c", "d9", "d10", "b", "a"]
    assert list(ranking.scores("q")) == ranking.documents("q")
    assert ranking.documents("unknown") == []
    for k in (0, 2, 3, 9):
        best = best_documents(list(scores), np.array(list(scores.values())), k)
        assert list(best.items()) == list(ranking.top(k).scores("q").items())


def test_a_run_is_written_in_six_columns_and_read_back(tmp_path):
    ranking = Ranking({"q": {"a": 1 / 3, "b": 1e-9}, "r": {"b": -5.0, "ü": float(2**60)}})
    ranking.write(tmp_path / "run.trec", tag="bm25")
    lines = (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "q Q0 a 1 0.3333333333333333 bm25"
    assert [line.split()[3] for line in lines] == ["1", "2", "1", "2"]
    assert Ranking.read(tmp_path / "run.trec") == ranking
    (tmp_path / "run.trec.gz").write_bytes(gzip.compress((tmp_path / "run.trec").read_bytes()))
    assert Ranking.read(tmp_path / "run.trec.gz") == ranking
    (tmp_path / "run.trec.gz").unlink()
    with pytest.raises(ValueError, match="'b c': a TREC column"):
        Ranking({"q": {"a": 1.0}, "r": {"b c": 1.0}}).write(tmp_path / "run.trec", tag="new")
    assert (tmp_path / "run.trec").read_text(encoding="utf-8").splitlines() == lines
    assert [file.name for file in tmp_path.iterdir()] == ["run.trec"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 a 2 0.5", "run.trec:2: expected 'query Q0 document rank score tag'"),
        ("q Q0 c 2 high x", "run.trec:2: .* with a number as score, got 'q Q0 c 2 high x"),
        ("q Q0 b 2 0.5 x", "run.trec:2: 'q' 'b' occurs twice"),
    ],
)
def test_a_broken_run_names_the_line(tmp_path, line, message):
    (tmp_path / "run.trec").write_text(f"q Q0 b 1 0.7 x\n{line}\n")
    with pytest.raises(ValueError, match=message):
        Ranking.read(tmp_path / "run.trec")


def test_qrels_are_written_and_read_back(tmp_path):
    qrels = {"q": {"a": 2, "b": 0}, "r": {"a": 1}}
    write_qrels(qrels, tmp_path / "qrels")
    assert (tmp_path / "qrels").read_text() == "q 0 a 2\nq 0 b 0\nr 0 a 1\n"
    assert read_qrels(tmp_path / "qrels") == qrels
    (tmp_path / "qrels").write_text("q 0 a 2.0\nq 0 b 0.0\nr 0 a +1\n")
    assert read_qrels(tmp_path / "qrels") == qrels
    beir = b"query-id\tcorpus-id\tscore\nq\ta\t2\nq\tb\t0\nr\ta\t1\n"
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(beir))
    assert read_qrels(tmp_path / "test.tsv.gz") == qrels
    for grade in ("1.5", "inf", "high"):
        (tmp_path / "qrels").write_text(f"q 0 a {grade}\n")
        with pytest.raises(ValueError, match="qrels:1: .* with an integer as grade"):
            read_qrels(tmp_path / "qrels")
