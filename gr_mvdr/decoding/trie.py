"""A trie of all documents' identifiers in flat arrays: DSI's and GENRE's search space.

The nodes are numbered breadth first and the children of a node are side by side, ascending by
token. The numbers of all (parent, token) pairs are therefore ascending too, so that whole batches
are extended by arithmetic and looked up by bisection.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import Successors

# A node number times a token must fit into int64.
_MOST_TOKENS = 2**31


class Trie:
    """The identifiers of a collection; a `Constraint` whose state is an (H,) tensor of nodes.

    An identifier may be the beginning of another one, [5] of [5, 7]: its node then holds documents
    and has children. A search goes on through such a node and would never end there, so a scheme
    with such identifiers appends an end token to all of them, [5, 1] and [5, 7, 1]. Attributes:
        first_child: (nodes + 1,) int64, node n's children are first_child[n] … first_child[n + 1];
        token: (nodes,) int64, the token that leads to a node, −1 for the root, node 0;
        documents: (documents,) int64, document numbers ordered by node, then by number;
        first_document: (nodes + 1,) int64, where each node's documents begin in `documents`;
        depth: the number of tokens of the longest identifier.
    """

    def __init__(
        self,
        first_child: np.ndarray,
        token: np.ndarray,
        documents: np.ndarray,
        first_document: np.ndarray,
    ):
        self.first_child, self.token = first_child, token
        self.documents, self.first_document = documents, first_document
        self._levels, level = [], first_child[:2]  # where each but the root's begins and ends
        while level[0] < level[1]:  # the children of a level are the next one
            self._levels.append(level.tolist())
            level = first_child[level]
        self.depth = len(self._levels)
        self._width = int(token.max()) + 1
        self._tensors: dict[tuple[str, torch.device], Tensor] = {}

    @classmethod
    def build(cls, sequences: Sequence[Sequence[int]]) -> "Trie":
        """Sorts the identifiers into a trie, depth by depth.

        Args:
            sequences: the tokens of each document's identifier, document by document. Equal
                sequences share a node; a document with an empty one is not in the trie.
        Raises:
            ValueError: a token below 0 or beyond int32; no document has an identifier.
        """
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
        return cls.build_flat(flat, lengths)

    @classmethod
    def build_flat(cls, flat: np.ndarray, lengths: np.ndarray) -> "Trie":
        """`build` from flat arrays, without an object for each identifier.

        Args:
            flat: (tokens,) int64, all identifiers; lengths: (documents,) int64.
        """
        _check(flat, lengths)
        begins, width = np.cumsum(lengths) - lengths, int(flat.max()) + 1
        node, edges, n_nodes = np.zeros_like(lengths), [], 1
        for depth in range(lengths.max()):
            rows = np.flatnonzero(lengths > depth)
            edge, place = np.unique(
                node[rows] * width + flat[begins[rows] + depth], return_inverse=True
            )
            node[rows] = n_nodes + place
            edges.append(edge)
            n_nodes += len(edge)
        parent, token = np.divmod(np.concatenate(edges), width)
        named = np.flatnonzero(lengths)
        documents = named[node[named].argsort(kind="stable")]
        nodes = np.arange(n_nodes + 1)
        return cls(
            first_child=1 + np.searchsorted(parent, nodes),
            token=np.append(-1, token),
            documents=documents,
            first_document=np.searchsorted(node[documents], nodes),
        )

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.token)

    def documents_at(self, node: int) -> np.ndarray:
        """The numbers of the documents whose identifier ends at the node, ascending, int64."""
        return self.documents[self.first_document[node] : self.first_document[node + 1]]

    def find(self, tokens: Tensor) -> Tensor:
        """The nodes to which token sequences lead, all at once.

        Args:
            tokens: (n, length) int64, −1 after a sequence's end.
        Returns:
            (n,) int64 node numbers; −1 where the trie has no such path. A node may be an inner one:
            `documents_at` then is empty unless an identifier ends there.
        """
        edges = self._on("edges", tokens.device)
        node = tokens.new_zeros(len(tokens))
        for token in tokens.unbind(1):
            edge = node * self._width + token  # below 0 once a path has been lost
            place = torch.searchsorted(edges, edge).clamp(max=len(edges) - 1)
            is_child = (edges[place] == edge) & (token < self._width)
            node = torch.where(token < 0, node, torch.where(is_child, place + 1, -1))
        return node

    @cached_property
    def edges(self) -> np.ndarray:
        """(nodes − 1,) int64 parent · width + token of all nodes but the root, ascending."""
        return self.parent * self._width + self.token[1:]

    @cached_property
    def parent(self) -> np.ndarray:
        """(nodes − 1,) int64 the parent of each node but the root, ascending."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_child))

    @cached_property
    def node(self) -> np.ndarray:
        """(documents,) int64 the node at which each of `documents` is, ascending."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_document))

    def best_below(self, scores: Tensor) -> Tensor:
        """The best score at and below every node: a segmented maximum, level by level upwards.

        Args:
            scores: (len(documents), B) float, in the order of `documents`.
        Returns:
            (nodes, B), −inf where no document is.
        """
        queries = scores.shape[1]
        best = scores.new_full((len(self), queries), -torch.inf)
        places = self._on("node", scores.device)[:, None].expand(-1, queries)
        best.scatter_reduce_(0, places, scores, "amax")
        parents = self._on("parent", scores.device)[:, None].expand(-1, queries)
        for low, high in reversed(self._levels):
            best[:low].scatter_reduce_(0, parents[low - 1 : high - 1], best[low:high], "amax")
        return best

    # The constraint of a search: all hypotheses at once --------------------------------------

    def root(self, batch: int, device: torch.device | str) -> Tensor:
        """`batch` empty prefixes, (batch,) int64."""
        return torch.zeros(batch, dtype=torch.int64, device=device)

    @cached_property
    def widths(self) -> list[int]:
        """Of the nodes at each depth, from the root, the most children; 0 at the deepest."""
        counts = np.diff(self.first_child)
        return [int(counts[low:high].max()) for low, high in ([0, 1], *self._levels)]

    def expand(self, state: Tensor, width: int | None = None) -> Successors:
        """The children of each node (H,) int64.

        Args:
            width: None = a row for each child, whose number the device is asked for; else this
                number of rows for each node, not `real` beyond its children: tensor operations
                alone, a rectangle of compressed sparse rows (STATIC).
        """
        first_child = self._on("first_child", state.device)
        low = first_child[state]
        counts = first_child[state + 1] - low
        if width is not None:
            place = torch.arange(width, device=state.device)
            row = torch.arange(len(state), device=state.device)[:, None].expand(-1, width).flatten()
            child = (low[:, None] + place).clamp(max=len(self) - 1).flatten()
            token, real = self._on("token", state.device)[child], place < counts[:, None]
            return Successors(row, token, child, [width] * len(state), real.flatten())
        sizes = counts.tolist()
        row = torch.repeat_interleave(counts, output_size=sum(sizes))
        begins = counts.cumsum(0) - counts
        child = torch.arange(len(row), device=row.device) + (low - begins)[row]
        return Successors(row, self._on("token", state.device)[child], child, sizes)

    def reachable(self, state: Tensor) -> np.ndarray:
        """The numbers of the documents at and below one node (1,), int64."""
        low, high = int(state[0]), int(state[0]) + 1
        levels = [self.documents[:0]]
        while low < high:  # a level of the subtree: its nodes are side by side
            levels.append(self.documents[self.first_document[low] : self.first_document[high]])
            low, high = self.first_child[low], self.first_child[high]
        return np.concatenate(levels)

    def _on(self, name: str, device: torch.device) -> Tensor:
        """One of the arrays on a device, moved there at its first use."""
        if (name, device) not in self._tensors:
            self._tensors[name, device] = torch.from_numpy(getattr(self, name)).to(device)
        return self._tensors[name, device]


def _check(flat: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError for tokens and collections of which no trie can be made."""
    if not len(flat):
        raise ValueError(
            f"a trie of {len(lengths)} documents: at least one must have an identifier"
        )
    wrong = np.flatnonzero((flat < 0) | (flat >= _MOST_TOKENS))
    if len(wrong):
        document = np.searchsorted(np.cumsum(lengths), wrong[0], side="right")
        raise ValueError(
            f"the identifier of document {document} has the token {flat[wrong[0]]}: must be ≥ 0 "
            f"and < {_MOST_TOKENS}"
        )
