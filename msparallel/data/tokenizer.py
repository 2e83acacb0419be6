"""Text <-> token ids: a byte-level BPE trained on the corpus, a Hugging Face `tokenizer.json`, or plain bytes.

In: the recipe's `data.tokenizer` (`bpe`, `byte` or a path). Out: a Tokenizer. Every kind is a `tokenizers` object, so
every kind is saved, and read by other programs, as `tokenizer.json`.

>>> tokenizer = byte_tokenizer()
>>> tokenizer.encode(["Hi"]), tokenizer.eos_id, tokenizer.decode([72, 105, 256])
([[72, 105]], 256, 'Hi')
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from msparallel.data.cache import DamagedCache, cached, notice, write_atomically
from msparallel.data.corpus import END_OF_TEXT, Corpus, document_hash
from msparallel.errors import UserError

MIN_BPE_VOCAB_SIZE = 257  # 256 bytes and the end of text
# More text than this no longer changes a vocabulary much, and training time grows with it.
BPE_SAMPLE_BYTES = 64 << 20
# Names of the end of text in public tokenizers, looked for where no tokenizer_config.json says it.
_END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "<|im_end|>", "<|eot_id|>")


class Tokenizer:
    """One interface over the kinds.

    Attributes:
        vocab_size: highest id + 1.
        eos_id: id of the end of text.
        sha256: of the tokenizer's JSON form (hexadecimal); the same after saving and loading.
    """

    def __init__(self, backend: tokenizers.Tokenizer, end_of_text: str) -> None:
        backend.no_padding()
        backend.no_truncation()  # a tokenizer.json may cut texts at a length of its own
        backend.encode_special_tokens = True  # "<|endoftext|>" inside a document is text, not a control token
        self._backend = backend
        self._end_of_text = end_of_text
        self.eos_id: int = backend.token_to_id(end_of_text)
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.sha256 = hashlib.sha256(f"{end_of_text}\n{backend.to_str()}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without begin or end tokens. Raises UserError for text that is not valid Unicode."""
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:  # how the library says that a string has no UTF-8 form
            raise UserError("The text holds half of a surrogate pair, so it has no UTF-8 form.") from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens and ids outside the vocabulary (its padding) are left out."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, the pair that Hugging Face's AutoTokenizer reads.

        Raises RunError where the directory cannot be written.
        """
        with write_atomically(Path(directory, "tokenizer.json")) as file:
            file.write(self._backend.to_str(pretty=True).encode())
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self._end_of_text}
        with write_atomically(Path(directory, "tokenizer_config.json")) as file:
            file.write(json.dumps(config, indent=2, ensure_ascii=False).encode())


def open_tokenizer(name: str, *, corpus: Corpus, vocab_size: int, cache_dir: str | Path) -> Tokenizer:
    """The tokenizer of a recipe, checked against the model's vocabulary.

    Args:
        name: `bpe` (trained on `corpus` to `vocab_size` tokens, kept in `cache_dir`), `byte`, or the path of a
            `tokenizer.json` or of a directory that holds one.
        vocab_size: of the model, before padding.

    Raises UserError: the tokenizer has ids that the model has no row for; `vocab_size` too small; see load_tokenizer.
    """
    if name == "bpe":
        return _cached_bpe(corpus, vocab_size, Path(cache_dir))
    tokenizer = byte_tokenizer() if name == "byte" else load_tokenizer(name)
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"data.tokenizer: {name}\n  The tokenizer has {tokenizer.vocab_size:,} ids, model.vocab_size is "
            f"{vocab_size:,}: ids {vocab_size:,} to {tokenizer.vocab_size - 1:,} have no row in the embedding.\n"
            f"  Try: model.vocab_size={tokenizer.vocab_size}"
        )
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, 256 is the end of text."""
    vocabulary = {char: byte for byte, char in enumerate(byte_characters())}
    backend = byte_level_backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return Tokenizer(backend, END_OF_TEXT)


def train_bpe(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens (fewer where the corpus has no more pairs to merge).

    The same corpus gives the same tokenizer. Of a corpus above 64 MiB, documents chosen by their hash are read.
    Raises UserError for a vocabulary below 257, and what Corpus.documents raises.
    """
    if vocab_size < MIN_BPE_VOCAB_SIZE:
        raise UserError(
            f"model.vocab_size: {vocab_size}\n  A byte-level BPE has 256 bytes and the end of text, so at least "
            f"{MIN_BPE_VOCAB_SIZE} tokens.\n  Try: model.vocab_size={MIN_BPE_VOCAB_SIZE}"
        )
    notice(f"Training a BPE of {vocab_size:,} tokens on {corpus.source} ({corpus.size_bytes / 1e6:,.1f} MB).")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend = byte_level_backend(models.BPE())
    backend.train_from_iterator(_bpe_sample(corpus), trainer)
    return Tokenizer(backend, END_OF_TEXT)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a Hugging Face `tokenizer.json`; its end of text is what `tokenizer_config.json` beside it says, or a
    well-known name.

    Raises UserError: missing or unreadable file, not a tokenizer, no end of text.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(
            f"data.tokenizer: {path}\n  {file} cannot be read as a tokenizer: {reason}. Name a tokenizer.json, `bpe` "
            "(trained on the corpus) or `byte`.\n  Try: data.tokenizer=bpe"
        ) from error
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise UserError(
            f"data.tokenizer: {path}\n  {file} is no Hugging Face tokenizer.json: {error}.\n  Try: data.tokenizer=bpe"
        ) from error
    return Tokenizer(backend, _find_end_of_text(backend, file))


def _find_end_of_text(backend: tokenizers.Tokenizer, file: Path) -> str:
    candidates = list(_END_NAMES)
    config = file.with_name("tokenizer_config.json")
    if config.is_file():
        try:
            stated = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"data.tokenizer: {file}\n  {config} beside it is not a JSON object: {error}.") from error
        if isinstance(stated, dict):  # the long form of an added token
            stated = stated.get("content")
        if isinstance(stated, str):
            candidates = [stated]
    for name in candidates:
        if backend.token_to_id(name) is not None:
            return name
    raise UserError(
        f"data.tokenizer: {file}\n  No end-of-text token, which ends each document: none of {', '.join(candidates)} "
        f'is in the vocabulary. Name it in {config.name} beside it: {{"eos_token": "..."}}.'
    )


def _cached_bpe(corpus: Corpus, vocab_size: int, cache_dir: Path) -> Tokenizer:
    path = cache_dir / f"bpe-{vocab_size}-{corpus.sha256[:16]}.json"

    def load() -> Tokenizer:
        if not path.exists():
            raise FileNotFoundError(path)
        try:
            tokenizer = load_tokenizer(path)
        except UserError as error:
            raise DamagedCache(f"{path}: the cached tokenizer is damaged.") from error
        if tokenizer.vocab_size > vocab_size:
            raise DamagedCache(f"{path}: the cached tokenizer has {tokenizer.vocab_size:,} ids, not {vocab_size:,}.")
        return tokenizer

    def build() -> None:
        tokenizer = train_bpe(corpus, vocab_size)
        if tokenizer.vocab_size < vocab_size:
            notice(f"The corpus is too small for {vocab_size:,} tokens; the tokenizer has {tokenizer.vocab_size:,}.")
        with write_atomically(path) as file:
            file.write(tokenizer._backend.to_str().encode())

    return cached(cache_dir, load=load, build=build)


def _bpe_sample(corpus: Corpus) -> Iterator[str]:
    keep_below = min(1.0, BPE_SAMPLE_BYTES / max(1, corpus.size_bytes)) * 2.0**64
    with tqdm(total=corpus.size_bytes, unit="B", unit_scale=True, desc="tokenizer", delay=2, disable=None) as bar:
        for number, text in enumerate(corpus.documents()):
            if number == 0 or document_hash(text) < keep_below:  # never an empty sample
                yield text
            bar.update(len(text))


def byte_level_backend(model: models.BPE) -> tokenizers.Tokenizer:
    """A model whose symbols are bytes, with what turns text into them and back."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's convention).

    Bytes that print in Latin-1 stand for themselves; the others, in order, are the characters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
