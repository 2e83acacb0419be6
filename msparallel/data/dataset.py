"""A recipe's `data` section, opened: text to batches in one call.

In: the values of `data`, and vocabulary, sequence length and seed. Out: a Dataset with its training and evaluation
splits. Tokenizer and token ids are kept in `cache_dir`, where every process and every later run finds them.

>>> data = open_dataset(source="python_stdlib", tokenizer="bpe", vocab_size=4096, seq_length=256, seed=1,
...                     eval_fraction=0.02, cache_dir="output/cache")     # doctest: +SKIP
>>> data.train_loader(global_batch_size=8).global_batch(0).input_ids.shape  # doctest: +SKIP
(8, 256)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msparallel.data.batch import Batch
from msparallel.data.corpus import Corpus, open_corpus
from msparallel.data.loader import TrainLoader, eval_batches
from msparallel.data.packing import PackedSequences, hash_order, split_documents
from msparallel.data.token_stream import FORMAT, TokenStream, open_token_stream
from msparallel.data.tokenizer import Tokenizer, open_tokenizer
from msparallel.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A corpus, tokenized, split and packed.

    Attributes:
        train, eval: the splits' sequences; `eval` is None with eval_fraction 0.
        tokenizer: of the ids.
        corpus: its source, files and size.
        seed: of the training order.
        fingerprint: names corpus, tokenizer, sequence length and split; equal fingerprints mean equal sequences.
    """

    train: PackedSequences
    eval: PackedSequences | None
    tokenizer: Tokenizer
    corpus: Corpus
    seed: int
    fingerprint: str

    @property
    def corpus_sha256(self) -> str:
        """Hash of the text, hexadecimal."""
        return self.corpus.sha256

    @property
    def train_tokens(self) -> int:
        """Tokens of the training split."""
        return self.train.num_tokens

    @property
    def eval_tokens(self) -> int:
        """Tokens of the evaluation split."""
        return self.eval.num_tokens if self.eval else 0

    def train_loader(self, *, global_batch_size: int) -> TrainLoader:
        """Training batches by step. Raises UserError where the data has fewer sequences than one batch."""
        return TrainLoader(
            self.train, global_batch_size=global_batch_size, seed=self.seed, fingerprint=self.fingerprint
        )

    def eval_batches(self, *, batch_size: int, max_sequences: int | None = None) -> Iterator[Batch]:
        """The same evaluation batches at every call; none with eval_fraction 0. See loader.eval_batches."""
        if self.eval is None:
            return iter(())
        return eval_batches(self.eval, batch_size=batch_size, max_sequences=max_sequences)

    def summary(self) -> str:
        """One line for a log."""
        documents = self.train.num_documents + (self.eval.num_documents if self.eval else 0)
        return (
            f"{self.corpus.source}: {documents:,} documents, {self.train_tokens:,} training and {self.eval_tokens:,} "
            f"evaluation tokens, vocabulary {self.tokenizer.vocab_size:,}, sha256 {self.corpus_sha256}"
        )


def open_dataset(
    *,
    source: str,
    tokenizer: str,
    vocab_size: int,
    seq_length: int,
    seed: int,
    eval_fraction: float,
    cache_dir: str | Path,
    text_field: str = "text",
) -> Dataset:
    """Open a corpus for training; the first call tokenizes it, later ones take it from the cache.

    Args:
        source: `python_stdlib`, a path or a glob pattern (corpus.open_corpus).
        tokenizer: `bpe` (trained to `vocab_size` tokens), `byte`, or the path of a `tokenizer.json`.
        vocab_size: of the model, before padding.
        seq_length: tokens of one sequence.
        seed: of the training order; the split does not depend on it.
        eval_fraction: share of the tokens kept for evaluation, in whole documents; 0 keeps none.
        cache_dir: for the trained tokenizer and the token ids.
        text_field: key of the text in JSON lines.

    Raises UserError for anything wrong with these values or the files they name; RunError where the cache cannot be
    written.
    """
    _check_values(seq_length, seed, eval_fraction)
    corpus = open_corpus(source, text_field=text_field)
    opened = open_tokenizer(tokenizer, corpus=corpus, vocab_size=vocab_size, cache_dir=cache_dir)
    stream = open_token_stream(corpus, opened, cache_dir=cache_dir)
    train_documents, eval_documents = split_documents(stream, eval_fraction)
    train = PackedSequences(stream, train_documents, seq_length)
    evaluation = PackedSequences(stream, eval_documents, seq_length) if eval_fraction else None
    _check_lengths(source, stream, train, evaluation, eval_fraction)
    return Dataset(
        train=train,
        eval=evaluation,
        tokenizer=opened,
        corpus=corpus,
        seed=seed,
        fingerprint=f"corpus={corpus.sha256[:32]} tokenizer={opened.sha256[:32]} seq_length={seq_length} "
        f"eval_fraction={eval_fraction} format={FORMAT}",
    )


def _check_values(seq_length: int, seed: int, eval_fraction: float) -> None:
    if seq_length < 1:
        raise UserError(
            f"train.seq_length: {seq_length}\n  A sequence has at least 1 token.\n  Try: train.seq_length=64"
        )
    if not 0 <= seed < 1 << 64:
        raise UserError(f"train.seed: {seed}\n  A seed is a whole number from 0 to 2^64 - 1.\n  Try: train.seed=0")
    if not 0 <= eval_fraction < 1:
        raise UserError(
            f"data.eval_fraction: {eval_fraction}\n  The share kept for evaluation is at least 0 and below 1.\n"
            "  Try: data.eval_fraction=0.02"
        )


def _check_lengths(
    source: str, stream: TokenStream, train: PackedSequences, evaluation: PackedSequences | None, eval_fraction: float
) -> None:
    """Each split holds at least one sequence (S tokens and the label after the last)."""
    seq_length = train.seq_length
    total = len(stream.tokens)
    if total <= seq_length:
        raise UserError(
            f"train.seq_length: {seq_length}\n  {source} has {total:,} tokens; one sequence takes {seq_length + 1:,} "
            f"(the last is only a label).\n  Try: {_shorter(total)}"
        )
    if evaluation is not None and not len(evaluation):
        raise UserError(
            f"data.eval_fraction: {eval_fraction}\n  The evaluation split has {evaluation.num_tokens:,} tokens of "
            f"{total:,} ({evaluation.num_documents:,} of {len(stream.lengths):,} documents), fewer than one sequence "
            f"of {seq_length + 1:,} (seq_length and a last label).\n"
            f"  Try: {_split_that_works(stream, seq_length, evaluation)}"
        )
    if not len(train):
        raise UserError(
            f"data.eval_fraction: {eval_fraction}\n  The evaluation split takes whole documents: "
            f"{total - train.num_tokens:,} tokens of {total:,}. That leaves {train.num_tokens:,} for training, fewer "
            f"than one sequence of {seq_length + 1:,}.\n  Try: {_split_that_works(stream, seq_length, train)}"
        )


def _shorter(tokens: int) -> str:
    return f"train.seq_length={tokens - 1}" if tokens > 1 else "data.corpus=python_stdlib"


def _split_that_works(stream: TokenStream, seq_length: int, too_short: PackedSequences) -> str:
    """The smallest eval_fraction below 0.5, in steps of 0.001, that leaves a sequence on either side, and the longest
    sequence that the split at hand allows; where there is neither, a corpus that is long enough."""
    _, tokens_up_to = hash_order(stream)
    total = tokens_up_to[-1]
    options = []
    for thousandths in range(max(1, math.floor(1000 * seq_length / total)), 500):
        fraction = thousandths / 1000
        tokens = tokens_up_to[tokens_up_to.searchsorted(fraction * total)]
        if tokens > seq_length and total - tokens > seq_length:
            options.append(f"data.eval_fraction={fraction:g}")
            break
    if too_short.num_tokens > 1:
        options.append(f"train.seq_length={too_short.num_tokens - 1}")
    return ", or ".join(options) or "data.corpus=python_stdlib"
