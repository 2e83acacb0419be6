"""Who may ask: keys from a file or the environment.

In: `serve.api_keys_file`, MSPARALLEL_API_KEYS, the Authorization header of a request. Out: which key it carries, by
number, or None. A key itself is kept as its SHA-256 only; all are compared, in the same time whichever it is.

>>> keys = ApiKeys(["key-of-the-first-team"])
>>> keys.client("Bearer key-of-the-first-team"), keys.client("Bearer key"), ApiKeys([]).needed
('key 1', None, False)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from pathlib import Path

from msparallel.errors import UserError

VARIABLE = "MSPARALLEL_API_KEYS"
LEAST, MOST = 16, 256
"""Characters of a key."""
_KEY = re.compile(rf"[\x21-\x7e]{{{LEAST},{MOST}}}")


class ApiKeys:
    """Args:
    keys: none: everybody may ask.
    """

    def __init__(self, keys: Sequence[str]):
        self._hashes = [_hash(key) for key in keys]

    @property
    def needed(self) -> bool:
        """Whether a request must carry one."""
        return bool(self._hashes)

    def client(self, header: str | None) -> str | None:
        """Name of the client whose key the header carries."""
        kind, _, key = (header or "").partition(" ")
        given = _hash(key.strip())
        same = [hmac.compare_digest(given, known) for known in self._hashes]
        return f"key {1 + same.index(True)}" if kind.lower() == "bearer" and True in same else None


def read_keys(file: str | None) -> ApiKeys:
    """Keys of the file, a line each, `#` for remarks; without a file of the environment, separated by commas.

    Raises UserError: no such file, no key in it, one that is too short or has other characters. Keys are not shown.
    """
    if file is None:
        return ApiKeys(_checked(os.environ.get(VARIABLE, "").split(","), VARIABLE, needed=VARIABLE in os.environ))
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"serve.api_keys_file: {file}\n  It cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"serve.api_keys_file: {file}\n  It is not text.") from None
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    return ApiKeys(_checked(lines, f"serve.api_keys_file: {file}", needed=True))


def _checked(lines: Sequence[str], where: str, needed: bool) -> list[str]:
    keys = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    wrong = [str(number) for number, key in keys if not _KEY.fullmatch(key)]
    if wrong:
        raise UserError(f"{where}\n  Key {', '.join(wrong[:5])}: a key has {LEAST} to {MOST} printable ASCII "
                        "characters without spaces. `openssl rand -hex 24` makes one.")  # fmt: skip
    if needed and not keys:
        raise UserError(f"{where}\n  There is no key in it, so nobody could ask. `openssl rand -hex 24` makes one.")
    return [key for _, key in keys]


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
