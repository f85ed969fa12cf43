"""`weights=` a model of others: searched, reranked, analysed and reported without training."""

import json
import shutil

import pytest
import sentence_transformers
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BartForConditionalGeneration

from conf.composition import take_settings
from gr_mvdr.evaluation.ranking import Ranking
from models.retriever import Retriever
from tests.families import save_family
from tests.published_folders import make_classifier, make_pylate, make_single
from tests.runs import NO_ANALYSIS, beir
from train import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return beir(tmp_path_factory.mktemp("data") / "fruits")


@pytest.fixture(scope="module")
def pylate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "tiny-colbert"
    make_pylate(folder)
    return folder


@pytest.fixture
def run(data, tmp_path):
    def made(weights, *overrides):
        asked = ["data=files", f"data.path={data}", "data.test_split=test", "logger=none"]
        asked += ["trainer.accelerator=cpu", f"output={tmp_path}", f"weights={weights}"]
        return train([*asked, *overrides])

    return made


def rows(data):
    lines = (data / "corpus.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_published_model_is_run_without_training(run, data, pylate, tmp_path):
    small = ["analysis=none", "analysis.pairs=4", "analysis.curve_pairs=0", "document_length=10"]
    found = run(pylate, "model=t5_colbert", "name=run", *small)
    assert "cost/train_seconds" not in found.metrics and found.system == "tiny-colbert"
    assert (found.path / "alignments").is_dir()
    assert (found.path / "report.html").is_file() and "rerank/mrr@10" in found.metrics
    config = found.config
    assert config["query_length"] == 8 and config["model"]["dimension"] == 6
    assert config["document_length"] == 10  # it was typed
    again, alone = Retriever.load(found), Retriever.load(pylate)
    alone.system.hparams.document_length = 10
    alone.index(rows(data))
    ranking = Ranking.read(found.path / "retrieve.trec")
    for query in again.data.evaluation.test_queries("test"):
        hits = alone.search(query["text"], k=12)
        expected = {hit.id: pytest.approx(hit.score, abs=1e-4) for hit in hits}
        assert ranking.scores(query["id"]) == expected
        assert {hit.id: hit.score for hit in again.search(query["text"], k=12)} == expected
    own = ["backbone=pretrained", f"backbone.name={config['backbone']['name']}"]
    with pytest.raises(
        ValueError, match=r"^weights=.*: tokenizer.markers.query must be this run's$"
    ):
        run(found.path, "model=t5_colbert", "name=other", "query_length=8", *own, *small)
    with pytest.raises(ValueError, match=r"data.new_documents=\[\], must be with test"):
        run(found.path, "model=t5_colbert", "data.new_documents=test", "study=growing", *own)
    pair = alone.align("pear?", "pear")
    assert float(pair.relevance) == pytest.approx(float(pair.score), abs=1e-5)
    assert pair.query_tokens[:2] == ["[CLS]", "[Q] "] and pair.query_tokens[-1] == "[MASK]"


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "tiny-sentence-encoder"
    make_single(folder)
    return folder


def test_single_vectors_are_run_as_they_are_and_by_maxsim_over_the_states(run, data, single):
    model = sentence_transformers.SentenceTransformer(str(single), device="cpu")
    texts = {row["_id"]: f"{row['title']} | {row['text']}" for row in rows(data)}
    the, states = model.tokenizer.convert_tokens_to_ids("the"), {}
    for name, text in texts.items():  # the states of all tokens but one, which is to be skipped
        kept = torch.tensor(model.tokenizer(text, truncation=True)["input_ids"]) != the
        states[name] = F.normalize(model.encode(text, output_value="token_embeddings"), dim=-1)[
            kept
        ]
    one = run(single, "model=sentence_t5", "name=one", "analysis=none", "analysis.pairs=4")
    every = run(single, "model=t5_colbert", "name=every", "tokenizer.skip=[the]", *NO_ANALYSIS)
    assert one.config["document_length"] == 11 and every.config["model"]["dimension"] == 16
    vectors = dict(zip(texts, model.encode([*texts.values()], convert_to_tensor=True), strict=True))
    alone = Retriever.load(single)
    alone.index(rows(data))
    for query in Retriever.load(one).data.evaluation.test_queries("test"):
        asked = model.encode(query["text"], convert_to_tensor=True)
        tokens = F.normalize(model.encode(query["text"], output_value="token_embeddings"), dim=-1)
        expected = {name: float(vector @ asked) for name, vector in vectors.items()}
        maxsim = {n: float((rows @ tokens.T).amax(0).sum()) for n, rows in states.items()}
        for found, scores in ((one, expected), (every, maxsim)):
            ranking = Ranking.read(found.path / "retrieve.trec").scores(query["id"])
            assert ranking and ranking == {n: pytest.approx(scores[n], abs=1e-4) for n in ranking}
        hits = alone.search(query["text"], k=12)
        assert {h.id: h.score for h in hits} == {
            h.id: pytest.approx(expected[h.id], abs=1e-4) for h in hits
        }
    pair = alone.align("pear?", "pear plum")
    assert torch.allclose(pair.alignment, torch.tensor(1 / pair.alignment[0, 0].numel()))
    assert float(pair.relevance) == pytest.approx(float(pair.score), abs=1e-5)


def test_weights_that_do_not_suit_the_model_are_named(run, data, pylate, single, tmp_path):
    encoder_decoder = save_family("t5", tmp_path / "t5", [row["text"] for row in rows(data)])
    mean, first = (rf"pooling.query=.*{name}Tokens: must be" for name in ("Mean", "First"))
    for weights, model, message in (
        (pylate, "genre", r"weights=.*: has model.dimension=6, the chosen model has not"),
        (pylate, "aligner", r"weights=.*: must be taken over by a model that learns an encoder"),
        (single, "dpr", rf"weights=.*: .*{first} gr_mvdr.pooling.MeanTokens, the published"),
        (encoder_decoder, "sentence_t5", rf"weights=.*: .*{mean} AllTokens$"),
        (encoder_decoder, "cross_encoder", r"weights=.*: holds a T5\w+, must have a classifier"),
        (encoder_decoder, "dsi_atomic", r"weights=.*: lacks weights for tokens of its"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
            run(weights, f"model={model}", "name=run", *NO_ANALYSIS)
        assert "\n" not in str(raised.value)


SHORT = ("query_length=30", "document_length=30")


def test_what_a_folder_lacks_or_holds_besides_is_named_by_the_typed_key(run, single, tmp_path):
    classifier = make_classifier(tmp_path / "classifier")
    half = make_classifier(tmp_path / "half")
    weights = load_file(half / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layer.0" not in name}
    save_file(kept, half / "model.safetensors", {"format": "pt"})
    (flag := shutil.copytree(single, tmp_path / "flag") / "sparse_linear.pt").touch()
    for weights, message in (
        (classifier, "holds classifier.bias, classifier.weight, which MultiVector does not read"),
        (flag.parent, "holds sparse_linear.pt, which"),
        (half, "lacks the weights encoder.layer.0.*, .*, .* and 13 more"),
    ):
        with pytest.raises(ValueError, match=rf"^weights={weights}: {message}"):
            run(weights, "model=t5_colbert", "name=run", *SHORT, *NO_ANALYSIS)
    run(flag.parent, "model=sentence_t5", "name=run", *NO_ANALYSIS)  # its vector needs no head


def test_training_says_what_it_leaves_out(data, tmp_path, capsys):
    folder = make_classifier(tmp_path / "classifier")
    asked = ["model=dpr", "backbone=pretrained", f"backbone.name={folder}", "trainer.max_steps=1"]
    asked += ["data=beir", f"data.path={data}", "logger=none", f"output={tmp_path}", "name=run"]
    train([*asked, "trainer.log_every_n_steps=1", *SHORT, *NO_ANALYSIS])
    said = f"backbone.name={folder}: trained without its classifier.bias, classifier.weight\n"
    assert said in capsys.readouterr().out


def test_a_typed_marker_is_read_as_text_before_the_published_models_texts(run, single, data):
    model = sentence_transformers.SentenceTransformer(str(single), device="cpu")
    asked = ["model=sentence_t5", "name=run", "tokenizer.markers.query='what is: '", *NO_ANALYSIS]
    found = Retriever.load(run(single, *asked))
    document = "The plum is a fruit."
    expected, plain = (
        float(model.encode("who eats", prompt=prompt) @ model.encode(document))
        for prompt in ("what is: ", None)
    )
    score = found.score("who eats", document).iloc[0, 0]
    assert score == pytest.approx(expected, abs=1e-5) and abs(expected - plain) > 0.01
    assert found.system.encoder.vocabulary_size == len(model.tokenizer)  # no row without a vector


@torch.no_grad()
def test_genre_scores_identifiers_of_a_file_as_transformers_does(run, data, tmp_path):
    names = {row["_id"]: f"The {row['title']}, a fruit" for row in rows(data)}
    query, file = "which fruit is plum?", tmp_path / "identifiers.tsv"
    checkpoint = save_family("bart", tmp_path / "bart", [query, *names.values()])
    file.write_text("".join(f"{name}\t{text}\n" for name, text in names.items()))
    asked = ["model=genre", f"data.identifiers={file}", "name=run", *NO_ANALYSIS]
    few = ["data.max_test_queries=2", "data.max_rerank_queries=2"]
    hits = Retriever.load(run(checkpoint, *asked, *few)).search(query, k=12)
    assert len(hits) == 12
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = BartForConditionalGeneration.from_pretrained(checkpoint).eval()
    for hit in hits:
        labels = tokenizer(names[hit.id], return_tensors="pt")["input_ids"]  # <s> text </s>
        source = tokenizer(query, return_tensors="pt")
        log_probs = model(**source, labels=labels).logits.log_softmax(-1)
        expected = log_probs.gather(2, labels.unsqueeze(2)).sum()
        assert hit.score == pytest.approx(float(expected), abs=1e-3)


def test_a_key_whose_whole_group_the_chosen_model_lacks_is_named_too():
    config = OmegaConf.create({"weights": "W", "model": {"dimension": 8}})
    take_settings(config, {"model.dimension": 6}, ["+model.dimension=8"])
    assert config.model.dimension == 8, "the user typed it"
    with pytest.raises(ValueError, match="weights=W: has tokenizer.markers.query=null, the chosen"):
        take_settings(config, {"tokenizer.markers.query": None}, [])


def test_a_name_of_the_hub_is_fetched_as_data(monkeypatch, pylate):
    import huggingface_hub

    asked = []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(pylate)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr("gr_mvdr.files.find_hub_failure", lambda: None)
    retriever = Retriever.load("owner/tiny-colbert")
    assert retriever.label == "tiny-colbert" and retriever.system.encoder.dimension == 6
    ((name, patterns),) = asked
    assert name == "owner/tiny-colbert" and not [p for p in patterns if "py" in p or p == "*"]
