"""A trie of all documents' identifiers in flat arrays: the search space of DSI and GENRE.

The nodes are numbered breadth first; the children of a node are adjacent and ascending by token.
Hence the numbers parent · width + token of all nodes except the root are ascending. This one array
is the trie, and bisection looks up whole batches of nodes in it.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gr_mvdr.decoding.beam_search import Successors
from gr_mvdr.decoding.constraint import find
from gr_mvdr.files import write_tensors


class Trie:
    """The identifiers of a collection; a `Constraint` whose state is an (H,) tensor of nodes.

    An identifier may be a prefix of another one, as [5] is of [5, 7]; its node then holds documents
    and has children. A search continues through such a node and would never end there, so a scheme
    with such identifiers appends an end token to all of them: [5, 1] and [5, 7, 1].

    Attributes:
        edges: (nodes − 1,) int64, parent · width + token of each node except the root, node 0.
        width: the largest token + 1.
        documents: (documents,) int64, document numbers ordered by node, then by number.
        node: (documents,) int64, the node of each entry of `documents`, ascending.
        depth: the length of the longest identifier, in tokens.
    """

    def __init__(self, edges: np.ndarray, width: int, documents: np.ndarray, node: np.ndarray):
        self.edges, self.width, self.documents, self.node = edges, width, documents, node
        self._levels, level = [], np.array([0, 1])  # where the nodes of each depth begin and end
        while level[0] < level[1]:
            self._levels.append(level.tolist())
            level = self._first_child(level)
        self.depth = len(self._levels) - 1
        self._tensors: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @classmethod
    def build(cls, sequences: Sequence[Sequence[int]]) -> "Trie":
        """Builds the trie of identifiers, depth by depth.

        Args:
            sequences: the tokens of each document's identifier. Equal sequences share a node; a
                document with an empty sequence is not in the trie.

        Raises:
            ValueError: no document has an identifier.
        """
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
        if not len(flat):
            rule = "at least one must have an identifier"
            raise ValueError(f"a trie of {len(lengths)} documents: {rule}")
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
        named = np.flatnonzero(lengths)
        documents = named[node[named].argsort(kind="stable")]
        return cls(np.concatenate(edges), width, documents, node[documents])

    def save(self, path: Path) -> None:
        """Writes the arrays as one file (`gr_mvdr.decoding.constraint`)."""
        names = "edges", "documents", "node"
        write_tensors(path, {name: torch.from_numpy(getattr(self, name)) for name in names}, {})

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.edges) + 1

    def _first_child(self, nodes: np.ndarray) -> np.ndarray:
        """Returns each node's first child; a node's children end where the next node's begin."""
        return 1 + np.searchsorted(self.edges, nodes * self.width)

    def documents_at(self, node: int, end: int | None = None) -> np.ndarray:
        """Returns the numbers of the documents whose identifier ends at a node, ascending, int64.

        Args:
            end: if given, includes the documents of all nodes from `node` to `end` − 1, ordered by
                node.
        """
        return self.documents[slice(*np.searchsorted(self.node, [node, end or node + 1]))]

    def find(self, tokens: Tensor) -> Tensor:
        """Finds the nodes to which token sequences lead, all at once.

        Args:
            tokens: (n, length) int64, −1 after a sequence's end.

        Returns:
            (n,) int64 node numbers; −1 if the trie has no such path. A node may be an inner node,
            for which `documents_at` is empty unless an identifier ends there.
        """
        return find(self._on(tokens.device)[0], self.width, tokens)

    @cached_property
    def parent(self) -> np.ndarray:
        """(nodes − 1,) int64, the parent of each node except the root, ascending."""
        return self.edges // self.width

    def best_below(self, scores: Tensor) -> Tensor:
        """Computes the maximum score at and below every node, from the deepest level upwards.

        Args:
            scores: (len(documents), B) float, in the order of `documents`.

        Returns:
            (nodes, B), −inf where a subtree holds no document.
        """
        queries = scores.shape[1]
        best = scores.new_full((len(self), queries), -torch.inf)
        at, parents = (
            torch.from_numpy(nodes).to(scores.device)[:, None].expand(-1, queries)
            for nodes in (self.node, self.parent)
        )
        best.scatter_reduce_(0, at, scores, "amax")
        for low, high in self._levels[:0:-1]:
            best[:low].scatter_reduce_(0, parents[low - 1 : high - 1], best[low:high], "amax")
        return best

    # The constraint of a search: all hypotheses at once --------------------------------------

    def root(self, batch: int, device: torch.device | str) -> Tensor:
        """Returns `batch` empty prefixes, (batch,) int64."""
        return torch.zeros(batch, dtype=torch.int64, device=device)

    def expand(self, state: Tensor) -> Successors:
        """Returns the children of each node (H,) int64."""
        edges, tokens = self._on(state.device)
        low, high = torch.searchsorted(edges, torch.stack([state, state + 1]) * self.width)
        counts = (high - low).tolist()
        row = torch.repeat_interleave(high - low, output_size=sum(counts))
        shift = high - (high - low).cumsum(0)  # from a successor's position to its edge
        edge = torch.arange(len(row), device=row.device) + shift[row]
        return Successors(row, tokens[edge], edge + 1, counts)

    def reachable(self, state: Tensor) -> np.ndarray:
        """Returns the numbers of the documents at and below one node (1,), int64."""
        levels, level = [self.documents[:0]], np.array([int(state[0]), int(state[0]) + 1])
        while level[0] < level[1]:  # the nodes of one level of the subtree are adjacent
            levels.append(self.documents_at(*level))
            level = self._first_child(level)
        return np.concatenate(levels)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns `edges` and their tokens on a device; copies them there on first use."""
        if device not in self._tensors:
            edges = torch.from_numpy(self.edges).to(device)
            self._tensors[device] = edges, edges % self.width
        return self._tensors[device]
