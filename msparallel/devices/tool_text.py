"""What the texts of npu-smi and hccn_tool have in common: bounded lines, plain numbers, the tools' own refusals.

In: text of any origin, its name. Out: numbered lines; numbers, or a UserError with file and line; DeviceUnavailable
where the tool itself says that it cannot answer.

>>> number("73.1", "Power(W)", Place("npu-smi_info.txt", 7))
73.1
>>> refusal("dcmi model initialized failed, because the device is used. ret is -8020\\n", "npu-smi").code
-8020
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msparallel.errors import RunError, UserError, short

MOST_BYTES = 4 * 1024 * 1024
"""Of one output; npu-smi of 64 devices with 32 processes each writes 250 KB."""

_PLAIN = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?")
NOT_TOLD = ("-", "NA", "N/A", "na", "")
"""What npu-smi writes for a value that a device does not have, such as the power of an A3's second die or of a 310P."""

CODES = {
    -8001: "an argument is not valid",
    -8002: "this user is not permitted to ask; run as root or as a member of HwHiAiUser",
    -8003: "memory could not be had",
    -8004: "a function of the driver failed",
    -8005: "the driver cannot be initialised: it is not loaded, there is no device, or driver and firmware were "
    "updated without a restart",
    -8006: "the device did not answer in time",
    -8007: "there is no device of that id",
    -8008: "the device does not exist",
    -8009: "the driver refused the call",
    -8010: "a message to the device could not be sent",
    -8011: "the device did not answer",
    -8012: "the driver is not ready yet",
    -8013: "this cannot be asked in a container",
    -8014: "a file could not be read or written",
    -8015: "the device could not be reset",
    -8016: "the operation was given up",
    -8017: "the device is being updated",
    -8020: "the device is in use by another container (one that is not privileged has its devices alone), or the "
    "container lacks /usr/local/dcmi or the driver's lib64",
    -8022: "the device is partitioned otherwise",
    -8255: "this device does not support it",
    -9005: "the type of the board could not be read",
}
"""Return codes of DCMI, under the names of the driver's header (dcmi_interface_api.h); the advice for -8005 from
Ascend/mind-cluster's FAQ, for -8020 from Ascend/RecSDK's."""

_CODE = re.compile(r"\bret(?:urn)?(?: is|:|=)? ?\(?(-[89]\d{3})\b")
_SAYS = (
    (re.compile(r"There is no NPU card on this server", re.IGNORECASE), "there is no NPU on this machine"),
    (re.compile(r"command not found|No such file or directory"), "the tool is not installed, or not on PATH"),
    (re.compile(r"(?:does not|not) support", re.IGNORECASE), "this device or driver does not support the query"),
    (re.compile(r"Error parameter of|Command or option is not found", re.IGNORECASE),
     "this version of the tool does not know the query"),
    (re.compile(r"did not (?:answer|end) within"), "the tool hangs, and so may the driver; see dmesg"),
    (re.compile(r"permission denied", re.IGNORECASE), "this user is not permitted to ask; run as root"),
    (re.compile(r"error while loading shared libraries: (?P<what>\S{1,80})"),
     "a library of the driver is not found; is /usr/local/Ascend/driver/lib64 in LD_LIBRARY_PATH, or mounted?"),
)  # fmt: skip


class Place(NamedTuple):
    """A line of a text."""

    file: str
    line: int


class DeviceUnavailable(RunError):
    """The tool says that it cannot answer.

    Attributes:
        code: DCMI's return code, where the text names one.
        line: where it says so.
    """

    def __init__(self, message: str, code: int | None = None, line: int | None = None):
        super().__init__(message)
        self.code, self.line = code, line


class ToolHung(DeviceUnavailable):
    """The tool did not answer in time: what it is asked next will most likely not be answered either."""


def numbered(text: str, name: str, first_line: int = 1) -> Iterator[tuple[Place, str]]:
    """Lines without the white space around them, with their places. Raises UserError for a text that is too long."""
    if len(text) > MOST_BYTES:
        raise UserError(f"{name}\n  {len(text):,} characters; at most {MOST_BYTES:,} of one tool's output are read.")
    for line, raw in enumerate(text.split("\n"), first_line):
        yield Place(name, line), raw.strip()


def wrong(place: Place, written: str, expected: str) -> UserError:
    """One line that is not as the format has it."""
    return UserError(f"{place.file}:{place.line}  {short(written, 120)}\n  {expected}")


def number(text: str, what: str, place: Place) -> float | None:
    """A number, None where the tool has none. Raises UserError."""
    if text in NOT_TOLD:
        return None
    if not _PLAIN.fullmatch(text):
        raise wrong(place, text, f"{what} is a number, '-' or NA, for example 42.")
    return float(text)


def whole(text: str, what: str, place: Place) -> int | None:
    """A whole number, None where the tool has none. Raises UserError."""
    value = number(text, what, place)
    if value is not None and value != int(value):
        raise wrong(place, text, f"{what} is a whole number, for example 42.")
    return None if value is None else int(value)


def identifier(text: str, what: str, place: Place) -> int:
    """An id, which is never left out. Raises UserError."""
    if not re.fullmatch(r"\d{1,9}", text):
        raise wrong(place, text, f"{what} is a whole number from 0, for example 0.")
    return int(text)


def refusal(text: str, name: str, first_line: int = 1) -> DeviceUnavailable | None:
    """What the tool says instead of an answer; None where it says no such thing. `first_line`: of this text in its
    file."""
    for place, line in numbered(text, name, first_line):
        if found := _CODE.search(line):
            code = int(found[1])
            told = CODES.get(code, "the driver gives this code no name that is known here")
            message = f"{place.file}:{place.line}  {short(line, 200)}\n  {code}: {told}."
            return DeviceUnavailable(message, code, place.line)
    for place, line in numbered(text, name, first_line):
        for pattern, told in _SAYS:
            if pattern.search(line):
                message = f"{place.file}:{place.line}  {short(line, 200)}\n  {told[0].upper()}{told[1:]}."
                return DeviceUnavailable(message, None, place.line)
    return None
