"""Published checkpoints: folders of sentence-transformers, PyLate and colbert-ai as systems."""

import json
import string
from functools import partial

import pytest
import sentence_transformers
import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling

from gr_mvdr.batch import pad
from gr_mvdr.template import read_template
from gr_mvdr.texts import TextReader
from gr_mvdr.tokenizers import load_tokenizer
from models.export import export_model
from models.saved_model import open_model
from models.sentence_transformers import build_published, read_published
from tests.families import DECODERS
from tests.published_folders import (
    make_bert,
    make_decoder,
    make_encoder,
    make_modern_bert,
    make_pylate,
    make_single,
    make_stanford,
    write_json,
)

QUERIES = ["w4", "w5, w6 unknown w7!", "w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19", "W3"]
DOCUMENTS = ["w8 (w9).", " ".join(f"w{n}" for n in range(2, 38)), "w5", "!", "w4, w9, w9 w20 w7"]


def save_library(
    folder,
    encoder,
    dense=(),
    skip=(),
    prompts=None,
    similarity=None,
    pooling=None,
    unit=True,
    **own,
):
    """Saves a `MultiVectorEncoder` or, with a pooling, a `SentenceTransformer`."""
    torch.manual_seed(4)
    vectors = {"module_input_name": "sentence_embedding" if pooling else "token_embeddings"}
    options = dict(bias=False, activation_function=torch.nn.Identity(), **vectors)
    layers = [Dense(*size[:2], **options | dict(size[2:])) for size in dense]
    last = [Normalize(**vectors)] if unit else []
    parts = [Pooling(16, pooling), *layers] if pooling else [*layers, MultiVectorMask([*skip])]
    kind = SentenceTransformer if pooling else MultiVectorEncoder
    names = dict(prompts=prompts, similarity_fn_name=similarity, device="cpu")
    model = kind(modules=[Transformer(encoder, **own), *parts, *last], **names)
    model.float().save(str(folder))


def library_scores(model):
    """(queries, documents) the library's scores, and the numbers of vectors of both."""
    # Padding at the start of a text moves its tokens to other positions: each text is read alone.
    size = 1 if model.tokenizer.padding_side == "left" else 32
    model.tokenizer.pad_token = model.tokenizer.pad_token or model.tokenizer.eos_token
    sides = (
        model.encode_query(QUERIES, batch_size=size),
        model.encode_document(DOCUMENTS, batch_size=size),
    )
    return model.similarity(*sides), [[len(text) for text in side] for side in sides]


def our_scores(folder, together=True):
    """The same of the system in the folder."""
    system = build_published(*read_published(folder)).double()
    return system_scores(system, load_tokenizer(folder), together)


@torch.no_grad()
def system_scores(system, tokenizer, together=True):
    """The same of a system here; texts are encoded together, or one by one."""

    reader = TextReader(tokenizer, joined=system.template.joined)

    def encoded(texts, side, cut, encode):
        tokens = [*map(cut, reader.tokenise(texts, side))]
        batches = [tokens] if together else [[row] for row in tokens]
        groups = [encode(*pad(rows)) for rows in batches]
        return [group.unpad(row) for group in groups for row in range(len(group))]

    def cut_query(tokens):
        return system.template.read_query(tokens, system.hparams.query_length)

    queries = encoded(QUERIES, "query", cut_query, system.encode_queries)
    documents = encoded(DOCUMENTS, "document", system.cut_document, system.encode_documents)
    rows = [[float(system.scoring(d, q)) for d in documents] for q in queries]
    counts = [[int(text.mask.sum()) for text in side] for side in (queries, documents)]
    return torch.tensor(rows), counts


def edit(name, **changes):
    """A change of a JSON file's values; None removes a key."""

    def change(folder):
        content = json.loads((folder / name).read_text()) | changes
        write_json(folder / name, {k: v for k, v in content.items() if v is not None})

    return change


def make_sided(side, folder):
    make_bert(folder, ())
    edit("tokenizer_config.json", **{side: "left"})(folder)
    return folder


MARKERS = {"query": "[Q] ", "document": "[D] "}
FIXED = {"strategy": "fixed", "length": 8}
RESIDUAL, BIAS = ("use_residual", True), ("bias", True)
PROJECTED = ((16, 16, RESIDUAL), (16, 6, BIAS))
CURVED = ((16, 12, BIAS, ("activation_function", torch.nn.Tanh())), *((12, 12), (12, 6, BIAS)))
# What `save_library` makes of an encoder.
LAYOUTS = {
    "bert, fixed": (
        make_bert,
        dict(dense=((16, 6),), prompts=MARKERS, skip=string.punctuation, document_length=12)
        | {"query_expansion": FIXED},
    ),
    "bert, at least": (
        make_bert,
        dict(
            query_expansion={"strategy": "min", "length": 5, "attend": True, "token": "w7"},
            query_length=9,
            similarity="meanmaxsim",
            dense=((16, 16, RESIDUAL), (16, 9), (9, 5, RESIDUAL)),
        ),
    ),
    "bert, plain": (make_bert, dict(prompts={"query": "w1 w2: ", "document": ""})),
    "modern bert, fixed": (
        make_modern_bert,
        dict(dense=((16, 6),), prompts=MARKERS, skip="!", query_expansion=FIXED | {"attend": True}),
    ),
    # Here the marker is without its blank, which then begins the text's first word.
    "modern bert, at least": (
        lambda folder: make_modern_bert(folder, ("[Q]", "[D]")),
        dict(prompts=MARKERS, query_expansion={"strategy": "min", "length": 20}),
    ),
    "mean": (make_bert, dict(pooling="mean", prompts={"query": "w1 w2: ", "document": ""})),
    **{
        f"mean, {kind}": (partial(make_encoder, kind), dict(pooling="mean"))
        for kind in ("electra", "albert", "deberta-v2", "roberta")
    },
    "mean, projected": (make_modern_bert, dict(pooling="mean", dense=PROJECTED, prompts=MARKERS)),
    "mean, any length": (make_bert, dict(pooling="mean", unit=False, similarity="dot")),
    "cls, dot": (make_bert, dict(pooling="cls", similarity="dot")),
    "cls, cosine": (make_modern_bert, dict(pooling="cls", unit=False)),
    "layers": (make_bert, dict(dense=CURVED)),
    "mean, layers": (make_bert, dict(pooling="mean", dense=CURVED)),
    "cls, layers": (make_bert, dict(pooling="cls", dense=CURVED)),
    "last, layers": (partial(make_decoder, "gemma3"), dict(pooling="lasttoken", dense=CURVED)),
    **{
        f"last, {family}": (partial(make_decoder, family), dict(pooling="lasttoken"))
        for family in DECODERS
    },
    "both ways": (
        partial(make_decoder, "gemma3", use_bidirectional_attention=True),
        dict(pooling="mean"),
    ),
    # The prompt's end and the text's first word have tokens in common.
    "a joined prompt": (make_bert, dict(prompts={"query": "w1 w", "document": "w"})),
    "instructed": (
        partial(make_decoder, "qwen3"),
        dict(pooling="lasttoken", prompts={"query": "which w2\nwhat:", "document": ""}),
    ),
    "prompts that end with a blank": (
        partial(make_decoder, "gemma3"),
        dict(pooling="mean", prompts={"query": "task: query: ", "document": "title: none | "}),
    ),
    "lower case": (make_modern_bert, dict(pooling="mean", do_lower_case=True)),
    "cls, any length": (
        make_bert,
        dict(pooling="cls", dense=PROJECTED, unit=False, similarity="dot"),
    ),
}
LONG = dict(dense=((16, 6),), document_length=12, query_length=6)
for side in ("truncation_side", "padding_side"):
    LAYOUTS[f"bert, {side}=left"] = (partial(make_sided, side), LONG)
    prompted = LONG | dict(prompts={"query": "w1 w2: ", "document": ""})
    LAYOUTS[f"bert, {side}=left, prompted"] = (partial(make_sided, side), prompted)
    for attend in (True, False):
        expanded = dict(prompts={}, query_expansion=FIXED | {"attend": attend}, dense=((16, 6),))
        name = f"bert, {side}=left, expanded{', attended' if attend else ''}"
        LAYOUTS[name] = (partial(make_sided, side), expanded)
# Folders that others wrote, some of earlier releases.
FOREIGN = {
    "PyLate": make_pylate,
    "colbert-ai": make_stanford,
    "colbert-ai, pytorch_model.bin": partial(make_stanford, file="pytorch_model.bin"),
    "an earlier release": make_single,
}


@pytest.mark.parametrize("name", [*LAYOUTS, *FOREIGN])
def test_a_published_folder_has_the_scores_of_sentence_transformers(tmp_path, name):
    folder = tmp_path / "saved"
    if name in FOREIGN:
        FOREIGN[name](folder)
    else:
        make, options = LAYOUTS[name]
        save_library(folder, make(tmp_path / "encoder"), **options)
    single = (folder / "1_Pooling").is_dir()
    open_folder = SentenceTransformer if single else MultiVectorEncoder
    expected, counts = library_scores(open_folder(str(folder), device="cpu").double())
    for together in (True, False):
        found, ours = our_scores(folder, together)
        assert {*ours[0], *ours[1]} == {1} if single else ours == counts
        assert torch.allclose(found, expected.double(), rtol=1e-6, atol=1e-6), found - expected
    assert expected.std() > 0.015


class Attack:
    def __reduce__(self):
        return exec, ("raise SystemExit('code of the folder ran')",)


def hide_code(folder):
    (folder / "1_Dense/model.safetensors").unlink()
    torch.save({"linear.weight": Attack()}, folder / "1_Dense/pytorch_model.bin")


def edit_part(**changes):
    def change(folder):
        parts = json.loads((folder / "modules.json").read_text())
        parts[1] |= changes
        write_json(folder / "modules.json", parts)

    return change


OWN, DENSE, ENCODER = (
    "config_sentence_transformers.json",
    "1_Dense/config.json",
    "sentence_bert_config.json",
)
# Each would import a class, fetch code, read elsewhere, or be filled up with random weights.
FORBIDDEN = [
    (edit_part(type="os.system"), r"modules.json: \[1\].type=os.system: must be a class of"),
    (
        edit(DENSE, activation_function="torch.nn.Softmax"),
        r"=torch.nn.Softmax: must be one of torch",
    ),
    (edit(ENCODER, modality_config={"text": {"method": "save_pretrained"}}), r"must be .*forward"),
    (
        lambda f: write_json(f / "adapter_config.json", {}),
        r"foreign: holds an adapter, .* backbone.adapter",
    ),
    (lambda f: (f / "modules.json").unlink(), r"foreign: must have a modules.json"),
    (edit(OWN, model_type="CrossEncoder"), r"model_type=CrossEncoder: must be MultiVectorEncoder"),
]
UNREADABLE = [
    (hide_code, r"cannot read it: UnpicklingError: Weights only load failed"),
    (edit(DENSE, module_input_name="sentence_embedding"), r"has a projection of other than token"),
    (edit("tokenizer_config.json", truncation_side="left"), r"prompt='\[Q\] ': must not change"),
]


NO_SINGLE = [
    (edit(OWN, similarity_fn_name="euclidean"), r"has the similarity euclidean, which"),
    (edit_part(type="sentence_transformers.models.Normalize", path="1_Normalize"), r"must be Mul"),
]
REFUSED = [
    *((make_pylate, True, *case) for case in FORBIDDEN),
    *((make_pylate, False, *case) for case in UNREADABLE),
    *((make_single, False, *case) for case in NO_SINGLE),
]


@pytest.mark.parametrize(("make", "unopened", "change", "message"), REFUSED)
def test_a_folder_that_names_code_or_cannot_be_expressed_is_refused(
    tmp_path, make, unopened, change, message, monkeypatch
):
    if unopened:
        monkeypatch.setattr(sentence_transformers, "MultiVectorEncoder", None)
    make(folder := tmp_path / "foreign")
    change(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        read_published(folder)
    assert "\n" not in str(raised.value)


EXPANDED = dict(markers=dict(query="[unused0]", document="[D]"), expansion="[MASK]")
DECODED = partial(make_decoder, "gemma3")
MEAN_STATE = {key: {"_target_": "gr_mvdr.pooling.MeanState"} for key in ("query", "document")}
ONE = {side: {"_target_": "gr_mvdr.pooling.LastToken"} for side in MEAN_STATE}
LAYERS = [{"size": 12, "activation": "GELU"}, {"size": None, "activation": "Identity"}]
OURS = {
    "bert": (make_bert, EXPANDED | dict(skip="punctuation"), {}),
    "modern bert": (
        make_modern_bert,
        dict(markers=dict(query="[Q] ", document="[D] "), skip=["!", ","]),
        {},
    ),
    "bert, a word": (make_bert, dict(markers=dict(query="w1"), expansion="[MASK]"), {}),
    "first": (make_bert, dict(markers=dict(query="w1 w2: ")), dict(kind="dpr")),
    "mean": (make_bert, {}, dict(kind="sentence_t5", projections="unnormalised")),
    "mean of states": (make_bert, {}, dict(kind="first", pooling=MEAN_STATE, layers=LAYERS)),
    "layers": (DECODED, {}, dict(layers=LAYERS)),
    "last": (partial(make_decoder, "llama"), {}, dict(kind="first", pooling=ONE)),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("attend", [True, False])
@torch.no_grad()
def test_our_export_has_our_scores_there_and_back(tools, tmp_path, name, attend):
    make, frame, own = OURS[name]
    tokenizer = load_tokenizer(make(folder=tmp_path / "encoder"))
    backbone = dict(name=str(tmp_path / "encoder"))
    length = None if attend else 6
    options = dict(attend_expansion=attend, expansion_length=length, **own)
    if not own:
        options["normaliser"] = "query_tokens"
    template = read_template(tokenizer, **frame).settings
    system = tools.make_multi_vector(backbone=backbone, template=template, **options)
    (folder := tmp_path / "out").mkdir()
    export_model(system.float(), folder, tokenizer, {})
    opener = SentenceTransformer if (folder / "1_Pooling").is_dir() else MultiVectorEncoder
    expected, counts = library_scores(opener(str(folder), device="cpu").double())
    found, ours = our_scores(folder)
    assert "pooling" in options or {*ours[0]} == {1} or ours == counts
    assert torch.allclose(found, expected.double(), atol=1e-6), found - expected
    again = open_model(folder).double()
    assert torch.allclose(system_scores(again, tokenizer)[0], found, atol=1e-6)
    assert expected.std() > 0.005


def test_a_smaller_dimension_takes_the_first_numbers(tmp_path):
    """Matryoshka: vectors are cut, then normalised."""
    save_library(folder := tmp_path / "saved", make_bert(tmp_path / "in"), pooling="mean")
    settings, projection = read_published(folder)
    small = build_published(settings | {"model.dimension": 5}, projection).double()
    theirs = SentenceTransformer(str(folder), device="cpu", truncate_dim=5).double()
    expected = library_scores(theirs)[0].double()
    assert torch.allclose(system_scores(small, load_tokenizer(folder))[0], expected, atol=1e-6)
