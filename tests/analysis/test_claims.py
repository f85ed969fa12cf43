"""Claims: verdicts by hand from made-up runs; what is missing is named."""

import csv

import pytest
from pandas import concat

from analysis.claims import CLAIMS, Claim, Side, judge_claims
from analysis.compare.groups import compare_runs
from analysis.runs.numbers import make_frame, read_numbers, write_numbers
from analysis.runs.queries import keep_queries, tabulate_queries
from analysis.runs.settings import write_setting
from analysis.studies.study import study_rows
from gr_mvdr.evaluation.metrics import ranking_metric
from gr_mvdr.files import read_json, write_json
from tests.analysis.test_compare import judge_gold, write_run
from tests.runs import command, undrawn

N = 40
QUERIES = [f"q{n}" for n in range(N)]
BACK = "rerank-document_to_query"
FORWARD = Side("T5-ColBERT", "rerank")
BACKWARD = Side("T5-ColBERT", "rerank", "document_to_query")
THIRD = [
    Claim("ColBERT finds more than SEAL, too", "gr_as_mvdr", Side("T5-ColBERT"), Side("T5-SEAL"))
]
DIRECTION = Claim("Forward is better", "gr_as_mvdr Table 5", FORWARD, BACKWARD)


def made(folder, system, seed=1, queries=QUERIES, splits=("dev",), metrics=None, **ranks):
    """A run; ranks: file of a ranking → the relevant document's rank, of all queries or of each."""
    metrics = {"retrieve/mrr@10": 0.5} | (metrics or {})
    metrics |= {f"retrieve/{split}/mrr@10": 0.5 for split in splits[1:]}
    write_run(folder, system, seed, metrics, splits=list(splits))
    for file, found in ranks.items():
        places = [found] * len(queries) if isinstance(found, int) else found
        split = file.rpartition("-")[2] if file.rpartition("-")[2] in splits[1:] else ""
        group, _, place = file.removesuffix(f"-{split}").partition("-")
        judge_gold(folder, places, queries, group, place, split)
    return folder


PRUNED = (
    "ALIGNER keep_query=0.5, keep_document=0.4: no run has a pruning study with values of mrr@10"
)


def keep_study(folder, settings, name="mrr@10"):
    """Keeps a study of a metric under settings: a list of (setting, the value of all queries)."""
    rows, tables = read_numbers(folder), []
    metric = ranking_metric(name)
    measured = [row for s, value in settings for row in study_rows(s, [metric.row(value)])]
    write_numbers(folder, concat([rows, make_frame(measured)], ignore_index=True))
    for setting, value in settings:
        values = {query: {name: value} for query in QUERIES}
        tables.append(tabulate_queries("study", values, part=write_setting(setting)))
    keep_queries(folder, tables)


def judged(folder, claims=CLAIMS):
    """The rows by claim and place: "MVDR finds more than GR" → {"almanac dev": row}."""
    found = {}
    for row in judge_claims(compare_runs([folder]), claims).itertuples():
        found.setdefault(row.claim, {})[row.place] = row
    return found


def only(found, name):
    (finding,) = found[name].values()
    return finding


def test_verdicts_by_hand(tmp_path):
    made(tmp_path / "a", "T5-ColBERT", retrieve=1, rerank=1, **{BACK: 5})
    made(tmp_path / "b", "T5-SEAL", retrieve=[1] * 39 + [2], rerank=2)
    backward = Claim("Back is better", DIRECTION.source, BACKWARD, Side("T5-SEAL", "rerank"))
    found = judged(tmp_path, (*CLAIMS, DIRECTION, backward))
    forward = only(found, DIRECTION.name)
    assert forward.effect == pytest.approx(1 - 1 / 5) and forward.units == N
    assert forward.low == forward.high == pytest.approx(0.8)
    assert (forward.verdict, forward.systems) == ("confirmed", "T5-ColBERT − T5-ColBERT")
    assert only(found, "MVDR (q→d) reranks better than GR").verdict == "confirmed"
    back = only(found, backward.name)
    assert back.effect == pytest.approx(1 / 5 - 1 / 2) and back.verdict == "contradicted"
    # One query of forty differs: the interval holds 0.
    searched = only(found, "MVDR finds more than GR")
    assert searched.effect == pytest.approx(0.5 / 40) and searched.verdict == "undecided"
    # A mean of one standard error: the t of 39 degrees of freedom exceeds it in 32 of 100 samples.
    assert searched.p == searched.corrected == pytest.approx(0.3235, abs=1e-4)
    assert forward.corrected == back.corrected == 0  # all queries agree


def test_two_settings_of_the_same_models_are_compared_seed_by_seed(tmp_path):
    """Forward is better by a half in every training, however good the training is."""
    for seed, ranks in ((1, (1, 2)), (2, (2, 99)), (3, (1, 2))):
        made(
            tmp_path / str(seed),
            "T5-ColBERT",
            seed,
            retrieve=1,
            rerank=ranks[0],
            **{BACK: ranks[1]},
        )
    finding = only(judged(tmp_path, [DIRECTION]), DIRECTION.name)
    assert [finding.low, finding.effect, finding.high] == pytest.approx([0.5] * 3)


def test_an_interval_that_leaves_out_zero_is_not_enough(tmp_path):
    """Five queries of forty differ, all in one direction: t = 2.36, and there are two tests."""
    worse = [1] * 35 + [2] * 5
    for system, rank in (("T5-ColBERT", 1), ("T5-SEAL", worse), ("BM25", worse)):
        made(tmp_path / system, system, retrieve=rank)
    finding = only(judged(tmp_path), "MVDR finds more than GR")
    assert finding.low > 0 and finding.p == pytest.approx(0.0233, abs=1e-4)
    assert finding.corrected == pytest.approx(2 * finding.p)
    finding = only(judged(tmp_path, [*CLAIMS, *THIRD]), "MVDR finds more than GR")
    assert finding.corrected > 0.05 and finding.verdict == "undecided"


def test_every_split_is_judged_and_both_collections_apart(tmp_path):
    splits = ("dev", "unseen")
    for system, known, new in (("T5-ColBERT", 1, 5), ("BM25", 2, 2)):
        ranks = {"retrieve": known, "retrieve-unseen": new}
        made(tmp_path / system, system, splits=splits, **ranks)
        other = write_run(tmp_path / f"other-{system}", system, 1, {}, collection="wtq")
        assert not (other / "queries.parquet").exists()
    found = judged(tmp_path)["MVDR finds more than BM25"]
    verdicts = {place: finding.verdict for place, finding in found.items()}
    assert verdicts == {
        "almanac dev": "confirmed",
        "almanac unseen": "contradicted",
        "wtq": "undecided",
    }
    assert found["wtq"].missing.startswith("T5-ColBERT: a run has no retrieve in")


def test_systems_of_one_name_are_judged_one_by_one(tmp_path):
    for name, alignment, rank in (("a", "top_k", 1), ("b", "softmax", 5)):
        folder = made(tmp_path / name, "T5-ColBERT", retrieve=rank)
        (folder / "config.yaml").write_text(f"{{seed: 1, alignment: {alignment}}}")
        record = read_json(folder / "provenance.json") | {"overrides": [f"alignment={alignment}"]}
        write_json(folder / "provenance.json", record)
    made(tmp_path / "c", "BM25", retrieve=2)
    table = judge_claims(compare_runs([tmp_path]))
    own = table[table["claim"] == "MVDR finds more than BM25"]
    assert list(zip(own["systems"], own["verdict"], strict=True)) == [
        ("T5-ColBERT (alignment=top_k) − BM25", "confirmed"),
        ("T5-ColBERT (alignment=softmax) − BM25", "contradicted"),
    ]


def test_what_is_missing_is_named(tmp_path):
    made(tmp_path / "a", "T5-ColBERT", retrieve=1, rerank=1)
    made(tmp_path / "b", "BM25", queries=QUERIES[:30], retrieve=2)
    made(tmp_path / "c", "ALIGNER", retrieve=2)
    found = judged(tmp_path)
    assert only(found, "MVDR finds more than GR").missing == "no run of T5-SEAL"
    other = only(found, "MVDR finds more than BM25")
    assert other.missing == "its sides were measured on different queries"
    pruned = only(found, "50 % of query and 40 % of document tokens keep MRR@10").missing
    assert pruned == PRUNED
    missing = [finding for one in found.values() for finding in one.values() if finding.missing]
    assert {finding.verdict for finding in missing} == {"undecided"}
    assert len(found) == len(CLAIMS)


def test_the_measures_of_alignments(tmp_path):
    folder = made(tmp_path / "a", "T5-SEAL")
    made(tmp_path / "b", "T5-SEAL", seed=2)  # not analysed: the other seed speaks alone
    values = {
        query: {"relative_error": 0.7, "norm_ratio": 0.4 + 0.01 * (n % 2)}
        for n, query in enumerate(QUERIES)
    }
    keep_queries(folder, [tabulate_queries("low_rank", values)])
    found = judged(tmp_path)
    finding = only(found, "GR's alignment is nearly of rank one")
    assert finding.effect == pytest.approx(0.7) and finding.verdict == "contradicted"
    assert finding.units == N
    norms = only(found, "‖A − R‖ is below ‖W‖ (GR)")
    assert norms.effect == pytest.approx(0.405) and norms.verdict == "confirmed"


def test_a_claim_on_trained_systems_needs_three_seeds(tmp_path):
    """Two trainings find every document first, the third one fourth: queries say nothing."""
    made(tmp_path / "bm25", "BM25", retrieve=2)
    costs = {"cost/train_seconds": 9}
    for seed, rank in ((1, 1), (2, 1), (3, 4)):
        made(tmp_path / str(seed), "T5-ColBERT", seed, metrics=costs, retrieve=rank)
        finding = only(judged(tmp_path), "MVDR finds more than BM25")
        assert finding.trainings == seed
        if seed < 3:
            assert finding.low == 0.5 and finding.verdict == "undecided"
    # Student's interval of the seeds' differences 0.5, 0.5 and −0.25.
    assert finding.effect == pytest.approx(0.25) and finding.verdict == "undecided"
    assert finding.high - finding.effect == pytest.approx(4.303 * 0.433 / 3**0.5, abs=1e-3)


def test_two_seeds_are_enough_to_contradict_a_claim(tmp_path):
    made(tmp_path / "bm25", "BM25", retrieve=1)
    costs = {"cost/train_seconds": 9}
    for seed in (1, 2):
        made(tmp_path / str(seed), "T5-ColBERT", seed, metrics=costs, retrieve=2)
    assert only(judged(tmp_path), "MVDR finds more than BM25").verdict == "contradicted"


def test_reranking_is_judged_in_its_best_form(tmp_path):
    ranks = {"rerank": 5, "rerank-leak_free_max": 2, "rerank-leak_free_mean": 4}
    made(tmp_path / "a", "T5-SEAL", **ranks)
    made(tmp_path / "b", "T5-ColBERT", rerank=1)
    finding = only(judged(tmp_path), "MVDR (q→d) reranks better than GR")
    assert finding.effect == 0.5 and "T5-SEAL rerank/leak_free_max, MRR@10" in finding.compared


def test_two_searches_of_a_study_at_the_most_neighbours(tmp_path):
    loss = 0.005
    folder = made(tmp_path / "a", "XTR")
    gather, impute = {"search": "gather"}, {"search": "impute", "imputation": "last"}
    settings = [(gather | {"neighbours": n}, 0.5) for n in (100, 10)]
    settings += [(impute | {"neighbours": n}, v) for n, v in ((100, 0.5 - loss), (10, 0.1))]
    settings += [(impute | {"imputation": "zero", "neighbours": 1000}, 0.1)]
    settings += [(impute, 0.1)]
    keep_study(folder, settings)
    finding = only(judged(tmp_path), "XTR loses little without gathering")
    assert finding.effect == pytest.approx(-loss) and finding.verdict == "confirmed"
    assert only(judged(tmp_path), "ColBERT loses much without gathering").missing
    # Without a training alignment it is T5-ColBERT (experiment=xtr_k).
    (folder / "config.yaml").write_text("{seed: 1, model: {training_alignment: null}}")
    other = only(judged(tmp_path), "ColBERT loses much without gathering")
    assert other.verdict == "contradicted"


def test_the_command_writes_tables_and_a_forest_plot(tmp_path, capsys):
    made(tmp_path / "a", "T5-ColBERT", retrieve=1, rerank=1, **{BACK: 2})
    made(tmp_path / "b", "T5-SEAL", retrieve=5, rerank=5)
    out = tmp_path / "out"
    with undrawn():
        assert command("-m", "analysis.claims", f"runs=[{tmp_path}]", f"output={out}") == 0
    said = capsys.readouterr().out
    assert "| MVDR finds more than GR | ✓ +0.80 [0.80, 0.80] |" in said
    assert "missing (almanac dev): MVDR finds more than BM25: no run of BM25" in said
    rows = {row["claim"]: row for row in csv.DictReader((out / "claims.csv").open())}
    assert float(rows["MVDR finds more than GR"]["effect"]) == pytest.approx(0.8)
    assert (out / "claims.png").is_file() and str(out / "claims.md") in said
