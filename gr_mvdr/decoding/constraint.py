"""Constrains transformers' `generate` to the identifiers, or the n-grams, of a collection.

This file needs no other file of its library; it lies beside every exported generative model:

    constraint = TrieLogitsProcessor(folder, beam_size=10)
    found = model.generate(**inputs, logits_processor=[constraint], **constraint.options)
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LogitsProcessor

SETTINGS, ARRAYS = "constraint.json", "constraint.safetensors"


class TrieLogitsProcessor(LogitsProcessor):
    """Sets the scores of all tokens that do not continue an identifier to −inf.

    The CPU knows the sizes of all tensors of a step, so it never waits for a GPU. `options` are the
    arguments of `generate` for the exported system's own beam search.
    """

    def __init__(self, folder: str | Path, beam_size: int = 10, prompt: int = 1):
        """
        Args:
            beam_size: hypotheses that a step extends for each query. `num_beams` is twice as many
                if identifiers differ in length: `generate` drops those that end at a rank after
                `num_beams`, the exported system those after 2 × beam_size.
            prompt: the number of tokens before the generated ones; 1 = the decoder's start token.
        """
        folder = Path(folder)
        if not (folder / SETTINGS).is_file():
            raise FileNotFoundError(f"{folder}: has no {SETTINGS}, must be exported with names")
        try:
            settings = json.loads((folder / SETTINGS).read_text())
            self.arrays = load_file(folder / ARRAYS)
            self.vocabulary, self.end = settings["vocabulary"], settings["end_token"]
            self.width, length = settings["width"], settings["options"]["max_new_tokens"]
            if "text" in self.arrays:  # a suffix array
                self.arrays = list_ngrams(**self.arrays, length=length, width=self.width)
            # parent · width + token of each node but the root, 0; ascending, for bisection.
            self.edges = self.arrays["edges"]
            parents, self.tokens = self.edges // self.width, self.edges % self.width
            self.options, self.ids = settings["options"], settings["document_ids"]
        except Exception as error:
            raise ValueError(f"{folder}: its constraint is damaged: {error!r}") from None
        self.beam_size, self.prompt, self.branching = beam_size, prompt, []
        children, begin, end = torch.bincount(parents, minlength=len(parents) + 1), 0, 1
        while begin < end:  # the largest number of children at each depth
            self.branching.append(int(children[begin:end].max()))
            last = end - begin
            begin, end = end, end + int(children[begin:end].sum())
        self.num_beams = beam_size if (children == 0).sum() == last else 2 * beam_size
        self.options |= {"num_beams": self.num_beams, "num_return_sequences": beam_size}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Masks (R, V) log-probabilities of the tokens after the prefixes (R, prompt + t)."""
        if scores.shape[1] != self.vocabulary:
            raise ValueError(f"the model scores {scores.shape[1]} tokens, not {self.vocabulary}")
        token = self.successors(input_ids[:, self.prompt :])
        if len(scores) % self.num_beams:
            raise ValueError(f"num_beams: must be {self.num_beams}, as in the constraint's options")
        # `generate` orders the rows of a query by score, the best first.
        rank = torch.arange(len(scores), device=scores.device) % self.num_beams
        spare = rank >= (self.beam_size if input_ids.shape[1] > self.prompt else 1)
        token = token.masked_fill(spare[:, None], self.vocabulary)
        kept = scores.gather(1, token.clamp(max=self.vocabulary - 1))
        kept[:, -1] = 0.0  # the end of an identifier without end token costs nothing
        none = scores.new_full((len(scores), self.vocabulary + 1), -torch.inf)
        return none.scatter(1, token, kept)[:, :-1]

    def successors(self, tokens: Tensor) -> Tensor:
        """Lists the tokens (R, K + 1) that may follow generated tokens (R, t); V in unused places.

        K is the largest number of children of a node at depth t. The last column is the end token
        after an identifier that does not end with it.
        """
        self.edges, self.tokens = self.edges.to(tokens.device), self.tokens.to(tokens.device)
        depth, none = tokens.shape[1], self.vocabulary
        prefixes = tokens if depth else tokens[:1]  # empty prefixes are all alike
        node = find(self.edges, self.width, prefixes)
        low, high = torch.searchsorted(self.edges, torch.stack([node, node + 1]) * self.width)
        most = self.branching[min(depth, len(self.branching) - 1)]  # the last is 0
        place = low[:, None] + torch.arange(most, device=low.device)
        token = self.tokens[place.clamp(max=len(self.tokens) - 1)]
        token = token.masked_fill(place >= high[:, None], none)
        whole = (node >= 0) & (low == high) & (prefixes[:, -1:] != self.end).all(1)
        end = torch.full_like(low, none).masked_fill(whole, self.end)
        return torch.cat([token, end[:, None]], 1).expand(len(tokens), -1)

    def documents(self, sequences: Tensor) -> list[list[str]]:
        """Lists the ids of the documents that each sequence (R, prompt + t) identifies."""
        if not self.ids:
            raise ValueError("n-grams are not identifiers: gr-mvdr adds up their evidence")
        tokens = sequences[:, self.prompt :].cpu()
        is_end = tokens == self.end
        after = is_end.cumsum(1) > is_end.long()
        # With the end token and without it: one is the identifier, the other at most its parent.
        both = (tokens.masked_fill(hidden, -1) for hidden in (after, after | is_end))
        nodes = torch.maximum(*(find(self.edges.cpu(), self.width, kept) for kept in both))
        bounds = torch.searchsorted(self.arrays["node"], torch.stack([nodes, nodes + 1], 1))
        ids = [self.ids[number] for number in self.arrays["documents"].tolist()]
        return [ids[low:high] for low, high in bounds.tolist()]


def find(edges: Tensor, width: int, tokens: Tensor) -> Tensor:
    """Finds the nodes (n,) to which tokens (n, t) lead, −1 after a sequence's end; −1 = none."""
    node = tokens.new_zeros(len(tokens))
    for token in tokens.unbind(1):
        edge = node * width + token  # negative once a path has left the trie
        place = torch.searchsorted(edges, edge).clamp(max=len(edges) - 1)
        is_child = (edges[place] == edge) & (token < width)
        node = torch.where(token < 0, node, torch.where(is_child, place + 1, -1))
    return node


def list_ngrams(
    text: Tensor, starts: Tensor, suffixes: Tensor, shared: Tensor, length: int, width: int
) -> dict[str, Tensor]:
    """Returns the edges of the trie of all n-grams, from the suffix array of an `NgramIndex`."""
    text, suffixes = text.long(), suffixes.long()
    left = (starts[1:] - 1).repeat_interleave(starts.diff())[suffixes] - suffixes
    parents, first, edges = torch.zeros(1, dtype=torch.int64), 0, []
    for depth in range(length):
        # A suffix begins a new n-gram if it shares at most `depth` tokens with the one before it.
        rows = ((shared <= depth) & (left > depth)).nonzero()[:, 0]
        parent = first + torch.searchsorted(parents, rows, right=True) - 1
        edges.append(parent * width + text[suffixes[rows] + depth])
        parents, first = rows, first + len(parents)
    return {"edges": torch.cat(edges)}
