"""Fixed-length sequences cut from a token stream, with what the model must know about document borders.

In: a token stream and the documents that belong to a split. Out: PackedSequences, whose `batch(indices)` is a Batch.
The split's documents are read as one run of N tokens; sequence i covers tokens i*S .. i*S+S of it (S inputs, and S
labels one further), so there are (N - 1) // S sequences, none is padded, and the rest shorter than one is left out.

Documents [a b $] [c d e f $] with S = 4: the first sequence is
  input_ids a b $ c   labels b $ c d   loss_mask 1 1 0 1   position_ids 0 1 2 0   segment_ids 0 0 0 1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from msparallel.data.batch import Batch
from msparallel.data.token_stream import TokenStream


class PackedSequences:
    """Random access to the sequences of a split.

    Attributes:
        num_documents, num_tokens: of the split.
        seq_length: S.
    """

    def __init__(self, stream: TokenStream, documents: np.ndarray, seq_length: int) -> None:
        """`documents`: int [D], indices into the stream's documents, in reading order."""
        lengths = stream.lengths[documents]
        stream_starts = np.cumsum(stream.lengths) - stream.lengths
        self.seq_length = seq_length
        self.num_documents = len(documents)
        self.num_tokens = int(lengths.sum())
        # Where each document starts in the run of this split, and how far that is from its place in the stream.
        self._starts = np.cumsum(lengths) - lengths
        self._shifts = stream_starts[documents] - self._starts
        self._tokens = stream.tokens.view(np.ndarray)  # plain arrays come out of a plain array

    def __len__(self) -> int:
        return max(0, (self.num_tokens - 1) // self.seq_length)

    def batch(self, indices: Sequence[int] | np.ndarray) -> Batch:
        """Sequences by number: B of them give arrays [B, S]. Raises IndexError outside 0..len-1."""
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"sequence numbers {numbers.min()}..{numbers.max()} are outside 0..{len(self) - 1}")
        first = numbers[:, None] * self.seq_length
        places = first + np.arange(self.seq_length + 1)
        document = np.searchsorted(self._starts, places, side="right") - 1
        tokens = self._tokens[places + self._shifts[document]].astype(np.int32)
        # A document that began before the sequence counts from the sequence's start: position < S always.
        positions = places - np.maximum(self._starts[document], first)
        return Batch(
            input_ids=np.ascontiguousarray(tokens[:, :-1]),
            labels=np.ascontiguousarray(tokens[:, 1:]),
            loss_mask=(document[:, 1:] == document[:, :-1]).astype(np.float32),
            position_ids=positions[:, :-1].astype(np.int32),
            segment_ids=(document - document[:, :1])[:, :-1].astype(np.int32),
        )


def split_documents(stream: TokenStream, eval_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the documents for training (in stream order) and for evaluation (in the order of their hashes, so that
    the first of them are a fair sample of the corpus).

    Evaluation takes the documents with the smallest hashes until they hold `eval_fraction` of the tokens. That depends
    on the texts alone, not on the seed; documents with the same text land on the same side.
    """
    if eval_fraction == 0:
        return np.arange(len(stream.lengths)), np.arange(0)
    place, tokens_up_to = hash_order(stream)
    last = int(np.searchsorted(tokens_up_to, eval_fraction * tokens_up_to[-1]))
    chosen = place <= last
    evaluation = np.flatnonzero(chosen)
    return np.flatnonzero(~chosen), evaluation[np.argsort(place[evaluation], kind="stable")]


def hash_order(stream: TokenStream) -> tuple[np.ndarray, np.ndarray]:
    """Place of each document among the distinct hashes in rising order (int [documents]), and the tokens of all
    documents up to each place (float64 [distinct hashes], exact below 2^53)."""
    _, place = np.unique(stream.hashes, return_inverse=True)
    return place, np.cumsum(np.bincount(place, weights=stream.lengths))
