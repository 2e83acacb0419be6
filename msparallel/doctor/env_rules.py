"""Rules about the environment variables of a node: each by itself, and those that speak of the same thing together.

In: the variables of a Recording (NAME -> value and line), the chip where it is known. Out: Findings.

>>> from msparallel.devices.tool_text import Place
>>> [f.rule for f in check_variables({"HCCL_CONNECT_TIMEOUT": Value("60", Place("env.txt", 1))}, "node_0")]
['env_value']
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from msparallel.doctor.env_values import elsewhere, pairs, variables, wrong_value
from msparallel.doctor.finding import Finding, stated
from msparallel.doctor.recording import Value
from msparallel.errors import short
from msparallel.finding import Severity

Variables = dict[str, Value]
NOT_RECORDED = "(not recorded)"
"""Value of a variable whose name alone is recorded, since nobody knows what it holds."""
_OURS = re.compile(r"(?:HCCL|P2P_HCCL|TORCH_HCCL|ASCEND|PYTORCH_NPU)_\w+")
RDMA_UNIT_S = 4.096e-6


def check_variables(told: Variables, host: str, chip: str | None = None, *, live: bool = False) -> list[Finding]:
    """All rules.

    Args:
        chip: as npu-smi names it, where that is known.
        live: these are the variables of the shell that a job would start from, not of one that recorded them.
    """
    together = (one for rule in TOGETHER for one in rule(told, host, chip))
    here = _files(told, host) if live else ()
    return [*_toolkit(told, host, chip, live), *_each(told, host), *here, *_names(told, host), *together]


def _found(rule: str, severity: Severity, host: str, cause: str, remedy: str, *values: tuple[str, Value]) -> Finding:
    return Finding(rule=rule, severity=severity, host=host, root_cause=cause, remedy=remedy,
                   evidence=tuple(stated(name, value) for name, value in values))  # fmt: skip


def _each(told: Variables, host: str) -> Iterator[Finding]:
    for name, value in told.items():
        if name in variables() and value.text != NOT_RECORDED and (broken := wrong_value(name, value.text)):
            row = variables()[name]
            yield _found("env_value", "error", host,
                         f"{name}={short(value.text, 80)}: {name} ({row.meaning}) {broken.rule} (source: "
                         f"{row.source}).",
                         f"export {name}='{broken.suggestion}'" + (
                             f", or unset it: without it {row.default} holds." if row.default else ", or unset it."),
                         (name, value))  # fmt: skip


def _names(told: Variables, host: str) -> Iterator[Finding]:
    known = [*variables(), *elsewhere()]
    for name, value in told.items():
        if name in elsewhere():
            row = elsewhere()[name]
            severity: Severity = "info" if row.severity == "info" else "warning"
            remedy = f"Unset {name}" + (f" and use {row.instead}." if row.instead else ".")
            yield _found("env_no_effect", severity, host, f"{name} has no effect here: {row.why} (source: "
                                                          f"{row.source}).",
                         remedy, (name, value))  # fmt: skip
        elif name not in variables() and _OURS.fullmatch(name) and (close := get_close_matches(name, known, 1, 0.9)):
            yield _found("env_misspelt", "warning", host, f"{name} is no variable that is known here; {close[0]} is.",
                         f"If {close[0]} is meant: unset {name} and export {close[0]}.", (name, value))  # fmt: skip


def _files(told: Variables, host: str) -> Iterator[Finding]:
    """Files that variables name, on this machine."""
    for name, value in told.items():
        if name not in variables() or variables()[name].kind != "regular_file" or not value.text:
            continue
        path = Path(value.text)
        try:
            wrong = "is a symbolic link" if path.is_symlink() else "" if path.is_file() else "is no file"
        except (OSError, ValueError):
            wrong = "cannot be looked at"
        if wrong:
            yield _found("env_file", "error", host,
                         f"{name} names {short(value.text, 120)}, which {wrong}; it must be a regular file "
                         f"({variables()[name].source}).", f"Name the file itself, or unset {name}.",
                         (name, value))  # fmt: skip


def _number(told: Variables, name: str) -> int | None:
    """The value, or the default; None where the value is not legal (which is a finding of its own)."""
    text = told[name].text if name in told else variables()[name].default
    return int(text) if text is not None and re.fullmatch(r"\d{1,12}", text) else None


def _set(told: Variables, *names: str) -> list[tuple[str, Value]]:
    return [(name, told[name]) for name in names if name in told]


def _text(told: Variables, name: str) -> str | None:
    return told[name].text if name in told else None


def _pcie_and_roce(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    names = "HCCL_INTRA_PCIE_ENABLE", "HCCL_INTRA_ROCE_ENABLE"
    if all(_text(told, name) == "1" for name in names):
        yield _found("env_pcie_and_roce", "error", host,
                     "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE are both 1; inside a server one way is used "
                     "(CANN 9.0).",
                     "Leave both unset for HCCL's own choice, or set one to 1 and the other to 0, the same on every "
                     "host.", *_set(told, *names))  # fmt: skip


def _event_after_exec(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    event, execute = _number(told, "HCCL_EVENT_TIMEOUT"), _number(told, "HCCL_EXEC_TIMEOUT")
    if not _set(told, "HCCL_EVENT_TIMEOUT", "HCCL_EXEC_TIMEOUT") or event is None or execute is None or event == 0:
        return
    if execute == 0 or event <= execute:
        shown = "0 (for ever)" if execute == 0 else str(execute)
        better = "0" if execute == 0 else str(execute + 32)
        names = "HCCL_EXEC_TIMEOUT", "HCCL_EVENT_TIMEOUT"
        yield _found("env_event_timeout", "error", host,
                     f"HCCL_EVENT_TIMEOUT is {event} s and HCCL_EXEC_TIMEOUT {shown}: the event gives up before the "
                     "collective does, and its message hides the cause. It must be more (torch_npu).",
                     f"export HCCL_EVENT_TIMEOUT={better}, the same on every host.", *_set(told, *names))  # fmt: skip


def _aiv_timeout(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if _text(told, "HCCL_OP_EXPANSION_MODE") == "AIV" and "HCCL_EXEC_TIMEOUT" in told:
        execute = _number(told, "HCCL_EXEC_TIMEOUT")
        if execute is not None and execute > 1091:
            yield _found("env_aiv_timeout", "error", host,
                         f"HCCL_EXEC_TIMEOUT is {execute} s; where HCCL_OP_EXPANSION_MODE is AIV it is 1091 at most "
                         "(CANN 9.0).", "export HCCL_EXEC_TIMEOUT=1091",
                         *_set(told, "HCCL_EXEC_TIMEOUT", "HCCL_OP_EXPANSION_MODE"))  # fmt: skip


def _exec_timeout_of_chip(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    execute = _number(told, "HCCL_EXEC_TIMEOUT") if "HCCL_EXEC_TIMEOUT" in told else None
    if execute is None or chip is None or not re.fullmatch(r"(?:Ascend)?(?:910|910A|910Pro\w|310P\d?)", chip):
        return
    if not 1 <= execute <= 17340:
        yield _found("env_exec_timeout_chip", "error", host,
                     f"HCCL_EXEC_TIMEOUT is {execute} s; {chip} takes 1 to 17340 (Ascend/pytorch#54).",
                     "export HCCL_EXEC_TIMEOUT=17340", *_set(told, "HCCL_EXEC_TIMEOUT"))  # fmt: skip
    elif execute % 68:
        yield _found("env_exec_timeout_chip", "info", host,
                     f"HCCL_EXEC_TIMEOUT is {execute} s; on {chip} steps of 68 s count, so "
                     f"{max(68, execute // 68 * 68)} "
                     "holds (CANN 9.0).", f"export HCCL_EXEC_TIMEOUT={max(68, execute // 68 * 68)}",
                     *_set(told, "HCCL_EXEC_TIMEOUT"))  # fmt: skip


def _rdma_before_caller(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    names = "HCCL_RDMA_TIMEOUT", "HCCL_RDMA_RETRY_CNT", "HCCL_EXEC_TIMEOUT"
    exponent, retries, execute = (_number(told, name) for name in names)
    if not _set(told, *names) or exponent is None or retries is None or not execute or exponent > 31:
        return
    once_s = RDMA_UNIT_S * 2**exponent
    if once_s * retries >= execute:
        yield _found("env_rdma_timeout", "error", host,
                     f"RDMA sends a packet again {retries} times, every {once_s:.3g} s (4.096 us x 2^{exponent}): "
                     f"{once_s * retries:.3g} s before it reports a broken link, but the collective waits only "
                     f"{execute} s, so its time-out hides the link's error (HIXL FAQ).",
                     "Lower HCCL_RDMA_TIMEOUT (20 is 4.29 s), or raise HCCL_EXEC_TIMEOUT above "
                     f"{int(once_s * retries) + 1}.", *_set(told, *names))  # fmt: skip


def _allocator_excludes(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    options = pairs(_text(told, "PYTORCH_NPU_ALLOC_CONF") or "") or {}
    others = [name for name in ("max_split_size_mb", "garbage_collection_threshold") if name in options]
    if options.get("expandable_segments") == "True" and others:
        yield _found("env_allocator_excludes", "error", host,
                     f"PYTORCH_NPU_ALLOC_CONF asks for expandable_segments:True and {' and '.join(others)}; these "
                     "exclude each other (torch_npu).",
                     "export PYTORCH_NPU_ALLOC_CONF='expandable_segments:True' for fragmentation of long sequences, "
                     "or leave it out and keep the others.", *_set(told, "PYTORCH_NPU_ALLOC_CONF"))  # fmt: skip


def _vmm_size_without_vmm(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    options = pairs(_text(told, "MS_ALLOC_CONF") or "") or {}
    if options.get("enable_vmm", "true").lower() == "false" and "vmm_align_size" in options:
        yield _found("env_allocator_no_effect", "warning", host,
                     "MS_ALLOC_CONF sets vmm_align_size and turns enable_vmm off; the size has no effect then.",
                     "Leave one of the two out.", *_set(told, "MS_ALLOC_CONF"))  # fmt: skip
    if options.get("memory_tracker", "").lower() == "true":
        yield _found("env_debugging", "warning", host,
                     "MS_ALLOC_CONF turns memory_tracker on: every allocation is written down, which slows the job.",
                     "Leave memory_tracker out of jobs that count.", *_set(told, "MS_ALLOC_CONF"))  # fmt: skip


_WINS = (
    ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "CANN 9.0"),
    ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_IF_BASE_PORT", "hcomm documentation"),
    ("ASCEND_PROCESS_LOG_PATH", "ASCEND_WORK_PATH", "CANN log reference"),
)
"""The first one is used where both are set."""


def _one_wins(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    for winner, loser, source in _WINS:
        if winner in told and loser in told:
            yield _found("env_overridden", "info", host,
                         f"{winner} and {loser} are both set; {winner} is used ({source}).",
                         f"Unset the one that is not meant, {loser} if {winner} is right.",
                         *_set(told, winner, loser))  # fmt: skip


def _family(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    address, family = _text(told, "HCCL_IF_IP"), _text(told, "HCCL_SOCKET_FAMILY")
    if address and family in ("AF_INET", "AF_INET6") and (":" in address) != (family == "AF_INET6"):
        yield _found("env_address_family", "error", host,
                     f"HCCL_IF_IP is {short(address, 60)} and HCCL_SOCKET_FAMILY {family}: the address is of the "
                     "other family.", f"export HCCL_SOCKET_FAMILY={'AF_INET6' if ':' in address else 'AF_INET'}",
                     *_set(told, "HCCL_IF_IP", "HCCL_SOCKET_FAMILY"))  # fmt: skip


def _whitelist(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if _text(told, "HCCL_WHITELIST_DISABLE") == "0" and "HCCL_WHITELIST_FILE" not in told:
        yield _found("env_whitelist", "error", host,
                     "HCCL_WHITELIST_DISABLE=0 asks for a list of permitted addresses and HCCL_WHITELIST_FILE names "
                     "none.",
                     "Set HCCL_WHITELIST_FILE to a JSON file with host_ip and device_ip, or unset "
                     "HCCL_WHITELIST_DISABLE.", *_set(told, "HCCL_WHITELIST_DISABLE"))  # fmt: skip


def _connect_default(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if _text(told, "HCCL_CONNECT_TIMEOUT") == "120":
        yield _found("env_is_default", "info", host,
                     "HCCL_CONNECT_TIMEOUT=120 is what holds without it (CANN 9.0), so it changes nothing.",
                     "If ranks of a large job start more than two minutes apart, 600 helps; the same on every host.",
                     *_set(told, "HCCL_CONNECT_TIMEOUT"))  # fmt: skip


def _simulation(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if "MS_SIMULATION_LEVEL" in told:
        yield _found("env_simulation", "error", host,
                     "MS_SIMULATION_LEVEL is set: MindSpore would compile, or run without devices, instead of "
                     "training.",
                     "unset MS_SIMULATION_LEVEL", *_set(told, "MS_SIMULATION_LEVEL"))  # fmt: skip


def _glog(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if "GLOG_log_dir" in told and _text(told, "GLOG_logtostderr") != "0":
        yield _found("env_glog_dir", "warning", host,
                     "GLOG_log_dir is set, but MindSpore writes to the screen unless GLOG_logtostderr is 0.",
                     "export GLOG_logtostderr=0", *_set(told, "GLOG_log_dir", "GLOG_logtostderr"))  # fmt: skip


_SLOW = {
    "ASCEND_GLOBAL_LOG_LEVEL": ("0", "1"),
    "GLOG_v": ("0", "1"),
    "ASCEND_LAUNCH_BLOCKING": ("1",),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("1",),
    "TORCH_HCCL_BLOCKING_WAIT": ("1",),
    "TORCH_HCCL_DESYNC_DEBUG": ("1",),
    "HCCL_ENTRY_LOG_ENABLE": ("1",),
    "HCCL_DIAGNOSE_ENABLE": ("1",),
}
"""Values for looking for a fault, which slow every step."""


def _slow(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    for name, values in _SLOW.items():
        if _text(told, name) in values:
            yield _found("env_debugging", "warning", host,
                         f"{name}={told[name].text} is for looking for a fault ({variables()[name].meaning}); it "
                         "slows every step and fills the disk.", f"unset {name}", *_set(told, name))  # fmt: skip


def _rank_table(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    if "RANK_TABLE_FILE" in told and "MS_ROLE" in told:
        yield _found("env_rank_table", "warning", host,
                     "RANK_TABLE_FILE and MS_ROLE are both set: a job starts by rank table or by msrun's scheduler, "
                     "not by both. Starting by rank table is deprecated since MindSpore 2.4.",
                     "unset RANK_TABLE_FILE for msrun.", *_set(told, "RANK_TABLE_FILE", "MS_ROLE"))  # fmt: skip


def _retry_order(told: Variables, host: str, chip: str | None) -> Iterator[Finding]:
    names = "MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"
    lower, upper = (_number(told, name) for name in names)
    if _set(told, *names) and lower is not None and upper is not None and lower > upper:
        yield _found("env_retry_interval", "error", host,
                     f"MS_RETRY_INTERVAL_LOWER is {lower} and MS_RETRY_INTERVAL_UPPER {upper}; the least is more than "
                     "the most.", f"export MS_RETRY_INTERVAL_UPPER={lower + 2}", *_set(told, *names))  # fmt: skip


def _toolkit(told: Variables, host: str, chip: str | None, live: bool) -> Iterator[Finding]:
    if chip is not None and not _set(told, "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH"):
        yield _found("env_cann_not_sourced", "error" if live else "warning", host,
                     "This host has devices and CANN's set_env.sh was not sourced: ASCEND_HOME_PATH is not set, so "
                     "MindSpore will not find its libraries (error 500001, or `libascendcl.so` not found).",
                     "source launch/setup_env.sh, or /usr/local/Ascend/cann/set_env.sh (before CANN 8.5: "
                     "/usr/local/Ascend/ascend-toolkit/set_env.sh).")  # fmt: skip


TOGETHER = (_simulation, _pcie_and_roce, _event_after_exec, _aiv_timeout, _exec_timeout_of_chip,
            _rdma_before_caller, _allocator_excludes, _vmm_size_without_vmm, _family, _whitelist, _retry_order, _glog,
            _rank_table, _slow, _one_wins, _connect_default)  # fmt: skip
