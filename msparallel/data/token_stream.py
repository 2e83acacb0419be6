"""The corpus as one flat stream of token ids on disk.

In: a corpus and a tokenizer. Out: a TokenStream, memory-mapped from the cache directory. Each document is followed by
the end of text; documents stand in the corpus's order.

Files, for a key made of the corpus's and the tokenizer's hashes:
  tokens-KEY.bin             ids, little-endian uint16 (uint32 for vocabularies above 65,536)
  tokens-KEY.documents.npy   uint64 [2, documents]: length in tokens, 64-bit hash of the text
  tokens-KEY.json            sizes and CRC-32 of both; written last, so without it the others do not count

>>> stream = open_token_stream(corpus, tokenizer, cache_dir="output/cache")   # doctest: +SKIP
>>> stream.tokens[:3]                                                         # doctest: +SKIP
memmap([2124, 83, 17], dtype=uint16)
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from msparallel.data.cache import DamagedCache, cached, notice, write_atomically
from msparallel.data.corpus import Corpus, document_hash
from msparallel.data.tokenizer import Tokenizer

FORMAT = 1
_ENCODE_CHARS = 1 << 21  # one call of the tokenizer: enough for its threads, little enough for memory


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStream:
    """Token ids with the documents they belong to.

    Attributes:
        tokens: uint16 or uint32 [N], memory-mapped.
        lengths: int64 [documents], tokens of each document with its end of text; they add up to N.
        hashes: uint64 [documents], of each document's text.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    hashes: np.ndarray


def open_token_stream(corpus: Corpus, tokenizer: Tokenizer, *, cache_dir: str | Path) -> TokenStream:
    """Encode the corpus, or take it from the cache; a damaged cache is built again with a notice.

    Raises UserError for what Corpus.documents finds wrong, RunError where the cache cannot be written.
    """
    key = hashlib.sha256(f"{FORMAT} {corpus.sha256} {tokenizer.sha256}".encode()).hexdigest()[:16]
    stem = Path(cache_dir) / f"tokens-{key}"
    return cached(
        Path(cache_dir), load=lambda: _load(stem, corpus, tokenizer), build=lambda: _build(stem, corpus, tokenizer)
    )


def _files(stem: Path) -> tuple[Path, Path, Path]:
    return (
        stem.with_name(f"{stem.name}.bin"),
        stem.with_name(f"{stem.name}.documents.npy"),
        stem.with_name(f"{stem.name}.json"),
    )


def _load(stem: Path, corpus: Corpus, tokenizer: Tokenizer) -> TokenStream:
    tokens_file, documents_file, head_file = _files(stem)
    text = head_file.read_bytes()  # raises FileNotFoundError where nothing was built
    try:
        head = json.loads(text)
        dtype, count, documents = np.dtype(head["dtype"]), int(head["tokens"]), int(head["documents"])
        tokens_crc32, documents_crc32 = int(head["tokens_crc32"]), int(head["documents_crc32"])
        names = (head["format"], head["corpus_sha256"], head["tokenizer_sha256"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCache(f"{head_file}: the cached description is damaged.") from error
    if names != (FORMAT, corpus.sha256, tokenizer.sha256):
        raise DamagedCache(f"{head_file}: the cached description names other data.")
    try:
        size_bytes = tokens_file.stat().st_size
        if size_bytes != count * dtype.itemsize or not count:
            raise DamagedCache(f"{tokens_file}: {size_bytes:,} bytes, not {count * dtype.itemsize:,}.")
        tokens = np.memmap(tokens_file, dtype=dtype, mode="r", shape=(count,))
        table = np.load(documents_file, allow_pickle=False)
    except FileNotFoundError as error:
        raise DamagedCache(f"{error.filename}: this cached file is missing.") from error
    except (OSError, ValueError, EOFError) as error:
        raise DamagedCache(f"{documents_file}: this cached file cannot be read ({error}).") from error
    if table.shape != (2, documents) or table.dtype != np.uint64 or zlib.crc32(table.tobytes()) != documents_crc32:
        raise DamagedCache(f"{documents_file}: the cached content does not match its checksum.")
    if _crc32(tokens) != tokens_crc32:
        raise DamagedCache(f"{tokens_file}: the cached content does not match its checksum.")
    return TokenStream(tokens=tokens, lengths=table[0].astype(np.int64), hashes=table[1])


def _build(stem: Path, corpus: Corpus, tokenizer: Tokenizer) -> None:
    tokens_file, documents_file, head_file = _files(stem)
    head_file.unlink(missing_ok=True)  # from here until it is written again the other two files do not count
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    lengths: list[int] = []
    hashes: list[int] = []
    crc = 0
    notice(f"Encoding {corpus.source} ({corpus.size_bytes / 1e6:,.1f} MB).")
    with write_atomically(tokens_file) as file:
        for texts in _groups(corpus):
            hashes += map(document_hash, texts)
            for ids in tokenizer.encode(texts):
                block = np.array([*ids, tokenizer.eos_id], dtype=dtype).tobytes()
                crc = zlib.crc32(block, crc)
                file.write(block)
                lengths.append(len(ids) + 1)
    table = np.array([lengths, hashes], dtype=np.uint64)
    with write_atomically(documents_file) as file:
        np.save(file, table, allow_pickle=False)
    head = {
        "format": FORMAT,
        "dtype": dtype.str,
        "tokens": sum(lengths),
        "documents": len(lengths),
        "tokens_crc32": crc,
        "documents_crc32": zlib.crc32(table.tobytes()),
        "corpus_sha256": corpus.sha256,
        "tokenizer_sha256": tokenizer.sha256,
    }
    with write_atomically(head_file) as file:
        file.write(json.dumps(head, indent=2).encode())


def _groups(corpus: Corpus) -> Iterator[list[str]]:
    """Documents in groups of about `_ENCODE_CHARS` characters, under a progress bar."""
    texts: list[str] = []
    chars = 0
    with tqdm(total=corpus.size_bytes, unit="B", unit_scale=True, desc="encoding", delay=2, disable=None) as bar:
        for text in corpus.documents():
            texts.append(text)
            chars += len(text)
            if chars >= _ENCODE_CHARS:
                yield texts
                bar.update(chars)
                texts, chars = [], 0
        if texts:
            yield texts
            bar.update(chars)


def _crc32(array: np.ndarray) -> int:
    crc = 0
    for start in range(0, len(array), 1 << 25):
        crc = zlib.crc32(array[start : start + (1 << 25)], crc)
    return crc
