"""Activation patching: its laws for systems and families of backbones, and numbers by hand."""

from itertools import chain

import pytest
import torch
import transformers
from pandas import DataFrame, concat

from analysis.beyond import patching
from analysis.beyond.patching import (
    PLACES,
    Exchange,
    Patch,
    PatchedPair,
    Patching,
    find_sites,
    patching_table,
    summarise,
)
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import build_word_tokenizer
from models.saved_model import restore_run
from tests.analysis.asking import asked
from tests.analysis.viewer.tiny import make_docid, make_retriever
from tests.families import ENCODERS, FAMILIES
from tests.models.conftest import BACKBONE, make_multi_vector, make_seal
from tests.runs import TINY

QUERIES = [[11, 12, 13, 14, 1], [11, 21, 13, 14, 1]]
DOCUMENT = [31, 12, 33, 34, 35, 36, 11, 1]


@pytest.fixture(autouse=True, scope="module")
def _float64(float64):
    """Models and data are float64."""


@pytest.fixture(autouse=True)
def _any_change(monkeypatch):
    """In float64 a small change of the score can be divided by, too."""
    monkeypatch.setattr(patching, "LEAST", 1e-4)


def varied(model):
    """Weights in which every part counts: fresh ones of a T5 attend to everything alike."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            size = 1.0 if weight.shape[0] >= 60 else 0.3  # tables
            weight.copy_(size * noise if weight.dim() > 1 else 0.3 * noise + ("bias" not in name))
    return model.double().eval()


def backbone(family, folder):
    """The arguments of a tiny saved model of a family; None = the house's own T5."""
    if family is None:
        return BACKBONE
    kind, shape, *_ = FAMILIES[family]
    known = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = getattr(transformers, kind)
    model(model.config_class(**shape, vocab_size=60, **known)).save_pretrained(folder)
    return {"name": str(folder), "dropout_rate": 0.0, "attention": "eager"}


def multi_vector(family, folder, **options):
    return varied(make_multi_vector(backbone=backbone(family, folder), **options))


def seal(family, folder):
    return varied(make_seal(backbone(family, folder)))


def docid(_, folder):
    system = make_docid()
    make_retriever(system, "DSI", folder / "made")
    return varied(system)


def me_bert(family, folder):
    learned = {"_target_": "gr_mvdr.pooling.LearnedTokens", "k": 3}
    return multi_vector(family, folder, pooling={"query": learned, "document": None})


SYSTEMS = {
    **{f"colbert-{family}": (multi_vector, family) for family in (None, *ENCODERS)},
    "me_bert": (me_bert, None),
    "seal": (seal, None),
    "seal-bart": (seal, "bart"),
    "seal-mbart": (seal, "mbart"),
    "dsi": (docid, None),
    "colbert-llama": (multi_vector, "llama"),
    "seal-gemma3": (seal, "gemma3"),
    "seal-gpt2": (seal, "gpt2"),
}


def make_pair(system):
    batch = PairBatch(*pad(QUERIES), *pad([DOCUMENT] * 2), torch.zeros(2).long())
    return PatchedPair(system, batch)


@pytest.mark.parametrize("name", SYSTEMS)
@torch.no_grad()
def test_laws(name, tmp_path, monkeypatch):
    make, family = SYSTEMS[name]
    system = make(family, tmp_path)
    pair = make_pair(system)
    close = {"abs": 1e-9, "rel": 1e-9}
    expected = system.score(pair.pairs).tolist()
    assert [pair.clean, pair.perturbed] == pytest.approx(expected, **close)
    assert abs(pair.clean - pair.perturbed) > 1e-3
    # All parts of a stack give the clean score, none of them the perturbed one.
    for sites in pair.sites.values():
        found = pair.run([Patch(sites), Patch([]), Patch(sites, []), Patch(sites, [])])
        assert found.tolist() == pytest.approx([pair.clean, *[pair.perturbed] * 3], **close)
    stack, sites = next(iter(pair.sites.items()))
    entry, groups = next(site for site in sites if site.part == "residual"), pair.groups(stack)
    found = pair.restored([Patch([entry]), Patch([entry], groups["exchanged"])])
    assert found.tolist() == pytest.approx([1.0, 1.0], **close)
    # One at a time is as many at once.
    patches = [
        *(Patch([site], [1]) for site in chain(*pair.sites.values())),
        *(Patch([site], head=0) for site in chain(*pair.sites.values()) if site.heads > 1),
    ]
    found = pair.run(patches)
    monkeypatch.setattr(patching, "_TOKENS", 1)
    assert pair.run(patches[:4]).tolist() == pytest.approx(found[:4].tolist(), **close)
    monkeypatch.undo()
    assert len({round(score, 9) for score in found.tolist()}) > len(patches) / 2
    assert not any(module._forward_pre_hooks for module in system.modules())


@torch.no_grad()
def test_a_head_is_its_part_of_the_attention(tmp_path):
    """Where the output map reads nothing of head 0, that restores nothing, and head 1 all."""
    system = multi_vector(None, tmp_path)
    pair = make_pair(system)
    site = pair.sites["encoder"][2]
    assert (site.part, site.layer, site.heads) == ("self_attention", 0, 2)
    site.module.weight[:, :8] = 0
    pair = make_pair(system)
    site = pair.sites["encoder"][2]
    patches = [Patch([site], head=0), Patch([site], head=1), Patch([site])]
    first, second, both = pair.restored(patches).tolist()
    assert abs(first) < 1e-9 and second == pytest.approx(both, abs=1e-9) and abs(both) > 1e-4


def test_what_cannot_be_patched_is_refused(tmp_path):
    system = multi_vector(None, tmp_path)
    albert = transformers.AlbertConfig(
        vocab_size=9, embedding_size=4, hidden_size=4, num_attention_heads=2, intermediate_size=4
    )
    with pytest.raises(ValueError, match="must have layers like those of T5, BART or BERT"):
        find_sites("encoder", transformers.AlbertModel(albert))
    pair = make_pair(system)
    pair.perturbed = pair.clean * 1.00001
    assert pair.restored([Patch([])]).isnan().all()


def test_words_are_exchanged_for_words_of_the_collection():
    texts = "ada born was a baker", "bea cole was a baker", "the mill was old"
    rows = [{"id": str(n), "title": "", "text": text} for n, text in enumerate(texts)]
    reader = TextReader(build_word_tokenizer([" | ".join(row.values()) for row in rows]))
    exchange = Exchange(reader, reader.documents(rows))
    old, text = exchange("Who was THE baker")
    assert old == "the" and text.split()[:2] == ["Who", "was"] and text.split()[2] != "THE"
    assert exchange("zzz yyy") is None


def test_shares_are_ratios_of_sums():
    places = [
        ("encoder", "all parts", 0, 0, "all"),
        ("encoder", "residual", 1, 0, "exchanged"),
        ("encoder", "self_attention", 1, 0, "all"),
        ("encoder", "self_attention", 1, 2, "all"),
    ]
    first = DataFrame(places, columns=PLACES).assign(pair=0, change=4.0)
    second = first.drop(1).assign(pair=1, change=1.0, restored=[1.0, -1.0, 0.0])
    table = patching_table(concat([first.assign(restored=[1.0, 0.5, 0.25, 0.25]), second]))
    assert table["restored"].tolist() == pytest.approx([1.0, 0.5, 0.0, 0.2])
    assert table["pairs"].tolist() == [2, 1, 2, 2]
    assert table.loc[2, ["low", "high"]].tolist() == pytest.approx([-1.0, 0.25])
    values = {(row.place, row.metric.name): row.value for row in summarise(table)}
    assert values["encoder", "head"] == pytest.approx(0.2)


@pytest.mark.parametrize("model", ["t5_colbert", "dsi_naive"])
def test_a_finished_run_is_asked(model, finished_run):
    torch.set_default_dtype(torch.float32)
    try:
        system, data = restore_run(finished_run(model, *TINY))
        if model == "dsi_naive":
            system.assign_new(data.documents)
        found = asked(Patching, system, data, 12)
    finally:
        torch.set_default_dtype(torch.float64)
    assert len(found.tables["patching_pairs"]) == 10  # all that there are
    rows = found.tables["patching"]
    stacks = {"encoder"} if model == "t5_colbert" else {"encoder", "decoder"}
    assert {row["stack"] for row in rows} == stacks
    everything = [row["restored"] for row in rows if row["part"] == "all parts"]
    assert everything == pytest.approx([1] * len(stacks), abs=1e-2)
    assert set(found.metrics) >= {f"analysis/patching/{stack}/head_low" for stack in stacks}
