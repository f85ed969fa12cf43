"""The exported constraint: `generate` finds our hypotheses in a process without our code."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from gr_mvdr.batch import pad
from gr_mvdr.decoders import push_right
from gr_mvdr.decoding.constraint import ARRAYS, SETTINGS, TrieLogitsProcessor
from gr_mvdr.tokenizers import load_tokenizer
from models.export import export_model
from tests.models.conftest import (
    CAUSAL,
    Texts,
    causal_backbone,
    draw_tokens,
    make_docid,
    make_seal,
    save_tokenizer,
    sharpen,
)
from tests.stand_in import DEVICE, stand_in
from tests.synchronisations import synchronisations

BEAM = 3
SEARCH = """
import json, sys
from pathlib import Path
ours = {"gr_mvdr", "models", "analysis", "data_modules", "conf", "train", "tests"}
sys.path = [path for path in sys.path if not (Path(path) / "gr_mvdr").is_dir()]
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
for folder in sys.argv[2:]:
    sys.path.insert(0, folder)
    from constraint import TrieLogitsProcessor
    decodes = not AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForCausalLM if decodes else AutoModelForSeq2SeqLM
    model = kind.from_pretrained(folder).double()
    queries = json.loads(Path(folder, "queries.json").read_text())
    inputs = {name: torch.tensor(values) for name, values in queries.items()}
    prompt = inputs["input_ids"].shape[1] if decodes else 1
    constraint = TrieLogitsProcessor(folder, beam_size=int(sys.argv[1]), prompt=prompt)
    found = model.generate(**inputs, logits_processor=[constraint], **constraint.options)
    named = constraint.documents(found.sequences) if constraint.ids else None
    found = [found.sequences[:, prompt:].tolist(), found.sequences_scores.tolist(), named]
    Path(folder, "found.json").write_text(json.dumps(found))
    del sys.modules["constraint"], sys.path[0]
assert not ours & {name.partition(".")[0] for name in sys.modules}
"""
KINDS = {
    "atomic": {},
    "naive": {},
    "titles": {},
    "titles-penalty": dict(length_penalty=0.8),
    "titles-bart": {},
    "semantic": {},
    "quantised": {},
    "seal": {},
    "seal-bart": {},
    "titles-gemma3": {},
    "seal-gpt2": {},
}


@pytest.fixture(scope="module")
def documents():
    """Sixty documents, their titles of one to four tokens."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 5, (60,), generator=generator).tolist()
    titles = [torch.randint(4, 9, (n,), generator=generator).tolist() for n in lengths]
    return Texts(draw_tokens([9] * 60, seed=3), "d", titles)


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A BART that asks for a first token, a last token and no repetition, as published ones do."""
    shape = dict(vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=2)
    sizes = dict(encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24)
    model = BartForConditionalGeneration(BartConfig(**shape, **sizes, decoder_ffn_dim=24))
    model.generation_config.update(forced_bos_token_id=0, no_repeat_ngram_size=2, min_length=3)
    torch.nn.init.normal_(model.final_logits_bias)
    model.save_pretrained(folder := tmp_path_factory.mktemp("bart"))
    suffix = dict(query=[0], document=[0], target=[0], suffix=[2], stop=2, pad=1)
    return dict(name=str(folder), template=suffix)


@pytest.fixture(scope="module")
def exported(documents, bart, tmp_path_factory):
    """For each kind, an indexed system, and its exported folder after `generate` has searched."""
    made, queries = {}, draw_tokens([4, 6, 3, 8, 5], seed=5)
    for name, options in KINDS.items():
        kind, folder = name.partition("-")[0], tmp_path_factory.mktemp(name)
        options, family = dict(options, beam_size=BEAM), name.rpartition("-")[2]
        if family in CAUSAL:
            options["backbone"] = causal_backbone(tmp_path_factory.mktemp(family), family)
        elif family == "bart":
            options["backbone"] = bart
        if kind == "seal":
            system = sharpen(make_seal(**options))
        else:
            system = make_docid(kind, documents=documents, **options)
        system.float().double().index(documents)
        tokenizer = load_tokenizer(save_tokenizer(folder / "tokenizer"))
        export_model(system, folder, tokenizer, {})
        ids, mask = pad([system.prepare_query(query) for query in queries])
        if family in CAUSAL:
            ids, mask = push_right(ids, mask), mask.flip(1)
        inputs = {"input_ids": ids.tolist(), "attention_mask": mask.long().tolist()}
        (folder / "queries.json").write_text(json.dumps(inputs))
        made[name] = system, folder
    folders = [str(folder) for _, folder in made.values()]
    command = [sys.executable, "-I", "-c", SEARCH, str(BEAM), *folders]
    subprocess.run(command, check=True, cwd=folders[0])
    return made, queries


@pytest.mark.parametrize("kind", KINDS)
def test_generate_finds_our_hypotheses_with_our_scores(exported, kind):
    (system, folder), queries = exported[0][kind], exported[1]
    sequences, scores, named = json.loads((folder / "found.json").read_text())
    stop, penalty = system.template.stop, system.hparams.get("length_penalty", 0.0)
    final = system.search(queries).final
    assert len(sequences) == BEAM * len(queries) and max(map(len, final.tokens)) > 0
    for number in range(len(queries)):
        own = {tuple(ids): score / len(ids) ** penalty for ids, score in final.of(number)}
        best = sorted(own, key=own.get, reverse=True)[:BEAM]
        block = slice(number * BEAM, (number + 1) * BEAM)
        for row, (ids, score) in enumerate(zip(sequences[block], scores[block], strict=True)):
            ids = ids[: ids.index(stop) + 1] if stop in ids else ids
            ids = ids[:-1] if kind == "semantic" and stop in ids else ids
            assert tuple(ids) == best[row] and score == pytest.approx(own[best[row]], abs=1e-5)
            if named is not None:
                rows = system.names.documents_of(ids)
                assert named[block][row] == [system.document_ids[n] for n in rows]


@pytest.mark.parametrize("kind", ["titles", "semantic", "seal"])
def test_a_step_runs_on_its_device_and_never_waits(exported, kind):
    system, folder = exported[0][kind]
    tokens = torch.nn.functional.pad(system.search(exported[1]).candidates.tokens, (1, 0), value=0)
    assert tokens.shape[1] > 3
    for length in range(1, tokens.shape[1]):
        prefixes = tokens[(tokens[:, :length] >= 0).all(1), :length]
        prefixes = prefixes[: len(prefixes) // (2 * BEAM) * 2 * BEAM]
        scores = torch.randn(len(prefixes), system.vocabulary_size)
        constraint = TrieLogitsProcessor(folder, BEAM)
        expected = constraint(prefixes, scores)
        with stand_in():
            prefixes, scores = prefixes.to(DEVICE), scores.to(DEVICE)
            constraint(prefixes, scores)  # the first call moves the trie
            with synchronisations() as found:
                masked = constraint(prefixes, scores)
            assert not found, found
            assert torch.equal(masked.cpu(), expected)


def test_bad_folders_and_models_are_named(exported, tmp_path):
    _, folder = exported[0]["titles"]
    with pytest.raises(FileNotFoundError, match=f"has no {SETTINGS}, must be exported with names"):
        TrieLogitsProcessor(tmp_path)
    constraint = TrieLogitsProcessor(folder, BEAM)
    prefixes = torch.zeros(6, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="scores 59 tokens, not 60"):
        constraint(prefixes, torch.zeros(6, 59))
    with pytest.raises(ValueError, match="num_beams: must be 6, as in the constraint's options"):
        constraint(prefixes[:4], torch.zeros(4, 60))
    shutil.copy(folder / SETTINGS, tmp_path / SETTINGS)
    (tmp_path / ARRAYS).write_bytes((folder / ARRAYS).read_bytes()[:-9])
    with pytest.raises(ValueError, match="its constraint is damaged: SafetensorError"):
        TrieLogitsProcessor(tmp_path)
