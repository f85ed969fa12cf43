"""Generative systems on causal language models: what transformers computes."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config

from analysis.questions.low_rank import lemma_terms
from gr_mvdr.alignment import Softmax
from gr_mvdr.batch import PairBatch, pad
from gr_mvdr.heads.non_parametric import read_in_context
from gr_mvdr.relevance import similarity
from gr_mvdr.template import read_template
from gr_mvdr.tokenizers import load_tokenizer
from models.beyond.query_generator import QueryGenerator
from models.beyond.ranking_losses import MarginRanking
from tests.families import save_family
from tests.models.conftest import CAUSAL, causal_backbone


@pytest.fixture(scope="module")
def backbones(tmp_path_factory):
    return {f: causal_backbone(tmp_path_factory.mktemp(f), f) for f in CAUSAL}


def make_pairs(system, tools, lengths=(3, 5, 1)):
    """Prompts of different lengths, and targets."""
    queries = [system.template.read_query(t, 20) for t in tools.draw_tokens(lengths, 0)]
    targets = [[*tokens, 1] for tokens in tools.draw_tokens((4, 1, 6), 1)]
    return PairBatch(*pad(queries), *pad(targets), torch.arange(3))


def logits_of(model, pair):
    """(M, V) transformers' logits of one pair's target tokens, without padding and cache."""
    ids = torch.cat([pair.query_ids, pair.document_ids], 1)
    return model(ids).logits[0, pair.query_ids.shape[1] - 1 : -1]


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_the_loss_is_transformers_loss_of_the_target_alone(family, backbones, tools):
    seal = tools.make_seal(backbones[family])
    batch, losses = make_pairs(seal, tools), []
    for number in range(3):
        pair = tools.one(batch, number)
        ids = torch.cat([pair.query_ids, pair.document_ids], 1)
        labels = ids.clone()
        labels[:, : pair.query_ids.shape[1]] = -100
        losses += [seal.backbone(ids, labels=labels).loss] * pair.document_ids.shape[1]
    assert seal.loss(batch).item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    # Several targets share their prompt, as in a ranking loss.
    both = [x.repeat_interleave(2, 0) for x in (batch.document_ids, batch.document_mask)]
    several = PairBatch(batch.query_ids, batch.query_mask, *both, torch.arange(3))
    assert torch.isclose(seal.loss(several), seal.loss(batch), atol=1e-10)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_cached_decoding_continues_the_prompts(family, backbones, tools):
    seal = tools.make_seal(backbones[family])
    batch = make_pairs(seal, tools)
    step = seal.decoding_step(batch.query_ids, batch.query_mask)
    for found, rows, prefixes in tools.beams(step):
        for row, query, prefix in zip(found, rows.tolist(), prefixes, strict=True):
            pair = tools.one(batch, query)
            ids = torch.cat([pair.query_ids[0], torch.tensor(prefix)])[None]
            expected = seal.backbone(ids).logits[0, -1].log_softmax(-1)
            assert torch.allclose(row, expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["titles", "semantic", "semantic-pawa", "titles-np"])
@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
@torch.no_grad()
def test_every_head_searches_reranks_and_scores_by_one_number(kind, family, backbones, tools):
    documents = tools.named_documents()
    system = tools.make_docid(kind, backbone=backbones[family])
    assert 3 not in system.identifiers.sequences[1], "no BOS begins an identifier"
    system.index(documents)
    queries = tools.Texts([[10, 12, 14], [20]], "q")
    ranking = system.retrieve(queries, k=8)
    again = system.rerank(queries, documents, {name: documents["id"] for name in queries["id"]})
    for number, name in enumerate(queries["id"]):
        found = ranking.scores(name)
        assert len(found) == 8, "the beam is wider than the collection"
        assert again.scores(name) == pytest.approx(found, abs=1e-9)
        rows = [documents["id"].index(document) for document in found]
        pairs = tools.pairs_of(system, queries["tokens"][number], rows)
        assert torch.allclose(system.score(pairs), torch.tensor(list(found.values())), atol=1e-9)


@torch.no_grad()
def test_contextual_rows_are_the_models_states(backbones, tools):
    system, documents = (
        tools.make_docid("titles-np", backbone=backbones["llama"]),
        tools.named_documents(),
    )
    names = system.identifiers.sequences
    _, texts, first = read_in_context(names, documents["tokens"], 12, system.template)
    ids = torch.tensor([system.template.read_document(texts[5], 12)])
    states = system.backbone(ids, output_hidden_states=True).hidden_states[-1][0]
    # 11, the first token of this title, occurs in no other.
    row = system.head.table[system.head.first_row(torch.tensor(11))]
    assert torch.allclose(row, states[first].float().to(row), atol=1e-5)


def test_a_ranking_loss_reads_each_prompt_once(backbones, tools):
    system = tools.make_docid("titles", backbone=backbones["qwen3"])
    batch = PairBatch(*pad([[3, 9, 2, 1]] * 3), *pad([[1]] * 3), torch.tensor([0, 1, 5]))
    loss = MarginRanking(negatives=2)(system, system.targets(batch))
    loss.backward()
    assert loss > 0 and system.backbone.get_input_embeddings().weight.grad[9].abs().sum() > 0


def test_gradient_checkpointing_changes_no_loss(backbones, tools):
    losses = []
    for recomputes in (False, True):
        options = dict(backbones["gemma3"], gradient_checkpointing=recomputes)
        system = tools.make_seal(options).train()
        batch = make_pairs(system, tools)
        both = [x.repeat_interleave(2, 0) for x in (batch.document_ids, batch.document_mask)]
        losses.append(
            system.loss(PairBatch(batch.query_ids, batch.query_mask, *both, torch.arange(3)))
        )
        losses[-1].backward()
    assert torch.isclose(*losses, atol=1e-9)


def test_queries_are_generated_after_their_documents(backbones, tools, tmp_path):
    template = dict(backbones["llama"]["template"], suffix=[1])
    options = dict(backbone=dict(backbones["llama"], template=template), optimizer=tools.OPTIMIZER)
    options |= dict(document_length=12, query_length=8, n_queries=2, top_k=5)
    system = QueryGenerator(tokenizer=tools.save_tokenizer(tmp_path), **options).eval()
    texts = list(system.generate(tools.named_documents()))
    assert [len(own) for own in texts] == [2] * 8 and any(text for own in texts for text in own)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_query_and_prefix_and_other_paths_are_transformers_logit(family, backbones, tools):
    """Of a window of a document, whose attention is transformers' own."""
    seal = tools.make_seal(backbones[family], key_length=7)
    batch = make_pairs(seal, tools)
    explanation, decoder = seal.explain(batch), seal.explain(batch).decoder
    batch = seal.forced(batch)
    seal.backbone.set_attn_implementation("eager")
    for number in range(3):
        pair = tools.one(batch, number)
        n, m = pair.query_ids.shape[1], pair.document_ids.shape[1]
        ids = torch.cat([pair.query_ids, pair.document_ids], 1)
        output = seal.backbone(ids, output_attentions=True)
        expected = output.logits[0, n - 1 : -1].gather(1, pair.document_ids.T)[:, 0]
        assert torch.allclose(decoder.contributions[number].sum(0)[:m], expected, atol=1e-10)
        assert torch.allclose(decoder.logits[number, :m], expected, atol=1e-10)
        for layer, (pairs, theirs) in enumerate(
            zip(explanation.layers, output.attentions, strict=True)
        ):
            attention = theirs[0, :, n - 1 : -1].double()  # its softmax is in fp32
            assert torch.allclose(pairs.alignment[number, :, :m, :n], attention[..., :n], atol=1e-6)
            prefix = pairs.prefix.alignment[number, :, :m, : m - 1]
            assert torch.allclose(prefix, attention[..., n : n + m - 1], atol=1e-6)
            for name, block in (("cross", pairs), ("self", pairs.prefix)):
                path = decoder.contributions[
                    :, decoder.names.index(f"{name}_attention_{layer + 1}")
                ]
                made = (block.similarity * block.alignment).sum((1, 3))
                assert torch.allclose(made, path, atol=1e-10) and made.abs().max() > 1e-3


@torch.no_grad()
def test_keys_make_the_querys_block_and_bound_its_logits(backbones, tools):
    """Lemma 5.1: rows of the query's block, scaled to one, are the softmax of the factors' keys."""
    system, batch = tools.make_docid("titles", backbone=backbones["qwen3"]), tools.make_batch()
    pairs, factors = system.align(batch), system.factors(batch)
    paths, masks = system.explain(batch).decoder, (pairs.document_mask, pairs.query_mask)
    keys = similarity(factors.document_keys, factors.query_keys)
    softmax = Softmax("document_to_query")(keys, *(mask[:, None] for mask in masks))
    sums = pairs.alignment.sum(-1, keepdim=True)
    assert torch.allclose(softmax * sums, pairs.alignment, atol=1e-10)
    terms = lemma_terms(pairs.alignment, *(mask[:, None] for mask in masks))
    bound = paths.document_norms[:, -1] * paths.query_norms[:, -1]
    assert (terms["logits_norm"] <= bound[:, None] * paths.projection_norms[-1]).all()
    assert (terms["residual_lemma"] <= terms["bound_entries"] * (1 + 1e-9)).all()
    assert 0.01 < sums[masks[0][:, None].expand(sums.shape[:3])].min() < 0.99, (
        "a prefix that counts"
    )


def test_a_model_without_attention_in_every_layer_has_no_alignment(tools, tmp_path):
    shape = dict(vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2)
    shape |= dict(num_attention_heads=2, num_key_value_heads=1)
    config = Lfm2Config(**shape, layer_types=["conv", "full_attention"])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    system, batch = (
        tools.make_docid("titles", backbone=dict(name=str(tmp_path))),
        tools.make_batch(),
    )
    assert not system.alignable and system.score(batch).isfinite().all()
    with pytest.raises(ValueError, match="must have a decoder .* with attention in every layer"):
        system.align(batch)


def test_a_prompt_is_a_text_or_the_chat_template_around_a_query(tmp_path):
    tokenizer = load_tokenizer(save_family("gemma3", tmp_path, ["which fruit is it?"]))
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    read = lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"])  # noqa: E731
    template = read_template(tokenizer, prompt="which {text} is")
    assert (template.query, template.suffix) == ((bos, *read("which ")), read(" is"))
    assert template.stop == eos, "of identifiers, whatever ends the prompt"
    with pytest.raises(ValueError, match="has no chat template"):
        read_template(tokenizer, prompt="chat")
    tokenizer.chat_template = "<bos>fruit {{ messages[0].content }}<eos>it<bos>"
    template = read_template(tokenizer, prompt="chat")
    assert template.query == (bos, *read("fruit ")), "its tokens are special, BOS occurs once"
    assert template.suffix == (eos, *read("it"), bos)
    with pytest.raises(ValueError, match="and a text after it"):
        read_template(tokenizer, prompt="which {text}")


def test_words_of_a_prompt_are_keys_of_documents(backbones, tools):
    template = dict(backbones["llama"]["template"], query=[3, 7, 8], suffix=[9, 10])
    seal = tools.make_seal(dict(backbones["llama"], template=template))
    seal.index(tools.Texts([[7, 9, 12], [12, 13]], "d"))
    assert not {7, 8, 9, 10} & {*seal.names.evidence["special_ids"]}
    assert seal.template.stop in seal.names.evidence["special_ids"]
