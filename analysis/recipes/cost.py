"""What a recipe costs, by arithmetic: nothing here is measured.

`python -m tests.benchmarks.bench_training` measures throughput and memory where a GPU is at hand.
"""

from dataclasses import dataclass

from gr_mvdr.token_index.costs import hours, training_flops

# The assumed GPU, an A100 with 80 GB, and the share of its bf16 peak that training reaches.
PEAK_FLOPS = 312e12
UTILISATION = 0.3
# fp32 weights, their gradients and Adam's two moments.
BYTES_A_PARAMETER = 16
# Of activations kept for the way back, bf16, a layer and token: about so many times d_model.
ACTIVATIONS = 34
GB = 1e9


@dataclass(frozen=True)
class Size:
    """A T5 v1.1: layers are those of each stack."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = 32128

    @property
    def encoder(self) -> int:
        """Parameters of the encoder's layers: four projections, a gated feed-forward layer."""
        return self.layers * (4 * self.d_attention * self.d_model + 3 * self.d_model * self.d_ff)

    @property
    def decoder(self) -> int:
        """Parameters of the decoder's layers, cross-attention included."""
        return self.layers * (8 * self.d_attention * self.d_model + 3 * self.d_model * self.d_ff)

    @property
    def d_attention(self) -> int:
        """All heads' size together: 64 each."""
        return 64 * self.heads

    @property
    def table(self) -> int:
        """Parameters of an embedding table."""
        return self.vocabulary * self.d_model


SIZES = {
    "base": Size(768, 2048, 12, 12),
    "large": Size(1024, 2816, 24, 16),
    "xl": Size(2048, 5120, 24, 32),
    "xxl": Size(4096, 10240, 24, 64),
    "mt5-base": Size(768, 2048, 12, 12, 250112),
}


@dataclass(frozen=True)
class Work:
    """One run: a model's size, its examples and its corpus.

    Attributes:
        generative: an encoder-decoder; the others are encoders.
        steps, batch: of training, 0 steps = nothing is trained.
        source, target: tokens of an example that encoder and decoder read; of an encoder alone
            both sides' tokens are its source.
        documents, document_length: of the corpus, in vectors; token_bytes: of one on disk, with all
            that the index keeps of it.
    """

    size: Size
    generative: bool
    steps: int
    batch: int
    source: int
    target: int
    documents: int
    document_length: int
    token_bytes: float = 0

    @property
    def train_flops(self) -> float:
        """Of all steps; a decoder's tokens pass its output table, too."""
        examples = self.steps * self.batch
        flops = training_flops(self.size.encoder, examples * self.source)
        if self.generative:
            flops += training_flops(self.size.decoder + self.size.table, examples * self.target)
        return flops

    @property
    def index_flops(self) -> float:
        """The corpus through the encoder once; a generative system's index holds text alone."""
        tokens = 0 if self.generative else self.documents * self.document_length
        return 2.0 * self.size.encoder * tokens

    @property
    def hours(self) -> float:
        """On one such GPU; search, reranking and analysis come on top."""
        return hours(self.train_flops + self.index_flops, PEAK_FLOPS, UTILISATION)

    @property
    def memory_bytes(self) -> float:
        """Of training: states of all parameters, and the activations of a whole batch.

        Where nothing is trained, the fp32 weights.
        """
        parameters = self.size.encoder + self.size.table
        tokens = self.source
        if self.generative:
            parameters += self.size.decoder + self.size.table
            tokens += self.target
        if not self.steps:
            return 4.0 * parameters
        layer = ACTIVATIONS * self.size.d_model
        return BYTES_A_PARAMETER * parameters + self.batch * tokens * self.size.layers * layer

    @property
    def index_bytes(self) -> float:
        """Documents at their full length: an upper bound, but for centroids and codebooks."""
        return float(self.documents * self.document_length * self.token_bytes)
