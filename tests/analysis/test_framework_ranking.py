import pytest
import torch

from analysis.framework import NAMES, FrameworkRanking, relevances
from gr_mvdr.batch import PairBatch, cut, pad
from gr_mvdr.evaluation.ranking import Ranking, evaluate
from gr_mvdr.heads.plain import real_places
from gr_mvdr.tokenizers import EOS_ID
from models.docid import Docid
from models.generative import target_states
from models.multi_vector import MultiVector
from models.t5_seal import T5SEAL
from tests.analysis.asking import asked

SHAPE = dict(vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
BACKBONE = dict(name=None, dropout_rate=0.0, attention="eager", shape=SHAPE)
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.01, "schedule": "constant"}
EVIDENCE = dict(alpha=2.0, beta=0.8, smoothing=0.1, max_occurrences_1=1500)
SIZES = dict(query_length=8, document_length=10, optimizer=OPTIMIZER)


def seal():
    torch.manual_seed(0)
    return sharpened(T5SEAL(BACKBONE, key_length=4, beam_size=3, evidence=EVIDENCE, **SIZES))


def sharpened(model):
    """A fresh T5 attends to everything alike."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "Attention" in name:
                weight.copy_(0.4 * torch.randn(weight.shape, generator=generator))
    return model


def docid(data, directory, known):
    torch.manual_seed(0)
    identifiers = {"_target_": "gr_mvdr.identifiers.docids.NaiveDocids"}
    head = {"_target_": "gr_mvdr.heads.plain.Head"}
    system = Docid(identifiers=identifiers, head=head, backbone=BACKBONE, beam_size=3, **SIZES)
    system.prepare(data.documents, known, directory)
    return sharpened(system)


def rows(measured):
    return {(row["score"], row["form"]): row for row in measured.tables["framework_ranking"]}


def pair(data, query, document):
    source = cut(query["tokens"], data.query_length, EOS_ID)
    target = cut(document["tokens"], data.document_length, EOS_ID)
    index = torch.tensor([int(document["id"][1:])])
    return PairBatch(*pad([source]), *pad([target]), index)


@torch.inference_mode()
def test_relevances_are_those_of_the_model(tiny_data):
    system = seal().eval()
    system.window = 99
    query, document = tiny_data.queries("test")[0], tiny_data.documents[3]
    batch = pair(tiny_data, query, document)
    explanation = system.explain(batch)
    found = relevances(explanation)
    assert tuple(found) == NAMES
    assert found["last_layer"].item() == pytest.approx(system.align(batch).relevance.item())
    both = sum(system.align(batch, layer).relevance.item() for layer in (0, 1))
    assert found["all_layers"].item() == pytest.approx(both, rel=1e-5)
    queries = system.encode(batch.query_ids, batch.query_mask)
    sides = batch.document_ids, batch.document_mask, batch.document_index
    log_probs = system.token_log_probs(queries, batch.query_mask, *sides)
    assert found["log_prob"].item() == pytest.approx(log_probs.sum().item(), rel=1e-5)
    states = target_states(system, queries, batch.query_mask, sides[0], real_places(sides[1]))
    logits = system.head.logits(*states)
    chosen = logits.gather(1, batch.document_ids[0][:, None])
    assert found["logits"].item() == pytest.approx(chosen.sum().item(), rel=1e-4)


@torch.inference_mode()
def test_every_candidate_is_ranked_as_on_its_own(tiny_data):
    """Sorted batches and padding change nothing."""
    system = seal()
    measured = rows(asked(FrameworkRanking, system, tiny_data, queries=4))
    chosen = tiny_data.rerank_queries("test").select([0, 3, 6, 9])
    candidates = tiny_data.list_candidates("test", chosen)
    grades = tiny_data.judgements("test", chosen)
    documents = {row["id"]: row for row in tiny_data.documents}
    results = {(name, form): {} for name in NAMES for form in ("sum", "mean")}
    results["score", "own"] = {}
    for query in chosen:
        for document in candidates[query["id"]]:
            explanation = system.explain(pair(tiny_data, query, documents[document]))
            values = {("score", "own"): explanation.layers[-1].score.item()}
            count = int(explanation.layers[-1].document_mask.sum())
            for name, value in relevances(explanation).items():
                values |= {(name, "sum"): value.item(), (name, "mean"): value.item() / count}
            for key, value in values.items():
                results[key].setdefault(query["id"], {})[document] = value
    assert measured.keys() == results.keys()
    for key, scores in results.items():
        quality = evaluate(Ranking(scores), grades)
        row = measured[key]
        assert {name: row[name] for name in ("mrr@10", "recall@1", "recall@10")} == pytest.approx(
            {name: quality[name] for name in ("mrr@10", "recall@1", "recall@10")}
        )
        assert row["queries"] == 4
        assert row["pairs"] == sum(map(len, candidates.values()))
    every = torch.tensor(
        [
            [results[name, "sum"][q][d] for name in ("last_layer", "log_prob")]
            for q in results["logits", "sum"]
            for d in results["logits", "sum"][q]
        ]
    )
    pearson = torch.corrcoef(every.T)[0, 1].item()
    assert measured["last_layer", "sum"]["correlation"] == pytest.approx(pearson, abs=1e-4)


def test_log_p_agrees_with_itself(tiny_data):
    measured = rows(asked(FrameworkRanking, seal(), tiny_data, queries=10))
    for form in ("sum", "mean"):
        assert measured["log_prob", form]["correlation"] == pytest.approx(1)
        assert measured["log_prob", form]["rank_correlation"] == pytest.approx(1)
    assert all(abs(row["rank_correlation"]) <= 1 for row in measured.values())
    assert len({row["rank_correlation"] for row in measured.values()}) > 4


def test_metrics_are_of_both_forms_with_intervals(tiny_data):
    measured = asked(FrameworkRanking, seal(), tiny_data, queries=4)
    table = rows(measured)
    for name, form in table:
        key, row = f"analysis/framework/{name}/{form}", table[name, form]
        assert measured.metrics[f"{key}/mrr@10"] == row["mrr@10"]
        low, high = (measured.metrics[f"{key}/mrr@10_{end}"] for end in ("low", "high"))
        assert 0 <= low <= row["mrr@10"] + 1e-6 and row["mrr@10"] <= high + 1e-6 <= 1 + 1e-5
        assert (f"{key}/rank_correlation" in measured.metrics) == (name != "log_prob")
    assert len(measured.metrics) == 3 * 9 + 7


def test_a_framework_that_is_exact_agrees_in_everything(tiny_data):
    """Where the last layer's cross-attention is all there is of log p, it ranks the same."""

    class Exact:
        paradigm, generates, device = "generative", "document", torch.device("cpu")

        def __init__(self):
            self.system = seal().eval()

        def eval(self):
            return self

        def covers(self, document):
            return True

        def explain(self, batch):
            explanation = self.system.explain(batch)
            for pairs in explanation.layers:
                pairs.relevance = explanation.decoder.log_probs.sum(1) / 2
            return explanation

    measured = rows(asked(FrameworkRanking, Exact(), tiny_data, queries=6))
    for form in ("sum", "mean"):
        for name in ("last_layer", "all_layers"):
            row = measured[name, form]
            assert row["rank_correlation"] == pytest.approx(1)
            assert row["mrr@10"] == measured["log_prob", form]["mrr@10"]


def test_documents_without_an_identifier_are_left_out(tiny_data, tmp_path):
    known = [row for row in range(30) if row % 3]
    system = docid(tiny_data, tmp_path / "identifiers", known)
    measured = rows(asked(FrameworkRanking, system, tiny_data, queries=10))
    candidates = tiny_data.list_candidates("test", tiny_data.rerank_queries("test"))
    covered = sum(int(name[1:]) % 3 > 0 for names in candidates.values() for name in names)
    row = measured["logits", "mean"]
    assert row["pairs"] == covered < sum(map(len, candidates.values()))
    # The uncovered ones are misses: of q10 … q19, d12, d15 and d18 cannot be found.
    assert row["recall@10"] <= 0.7 and row["queries"] == 10


def test_other_systems_and_no_queries_have_nothing_to_compare(tiny_data):
    torch.manual_seed(0)
    system = MultiVector(
        BACKBONE,
        dimension=8,
        alignment={"_target_": "gr_mvdr.alignment.MaxSim"},
        loss={"_target_": "gr_mvdr.losses.InBatchCrossEntropy"},
        search=dict(mode="exact"),
        **SIZES,
    )
    for found in (
        asked(FrameworkRanking, system, tiny_data, queries=4),
        asked(FrameworkRanking, seal(), tiny_data, queries=0),
    ):
        assert (found.metrics, found.tables, found.figures) == ({}, {}, [])


def test_the_figure_has_a_bar_for_every_score_and_form(tiny_data):
    ((figure, entry),) = asked(FrameworkRanking, seal(), tiny_data, queries=3).figures
    assert entry.name == "framework_ranking"
    assert [len(axes.patches) for axes in figure.axes] == [
        9,
        9,
    ]  # four scores in two forms, and the own
