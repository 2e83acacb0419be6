"""The ladder stops at the first broken rung and puts the root cause first."""

from __future__ import annotations

import pytest
from doctor.node import changed, clean, recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.doctor.finding import Finding
from msparallel.doctor.ladder import RUNGS, Rung, climb
from msparallel.doctor.recording import PLAIN, Recording

pytestmark = pytest.mark.pure


def states(told, runners=None, until="recipe") -> dict[str, str]:
    told = told if isinstance(told, list) else [told]
    return {rung.name: rung.state for rung in climb(lambda name: told, runners or {}, until).rungs}


def passing(name: str):
    return lambda: Rung(name=name, state="passed")


KINDS = sorted(name for name in clean() if name in PLAIN or name.endswith("_0.txt"))
RUNNERS = {name: passing(name) for name in ("collective", "smallest", "recipe")}


def test_a_clean_node_climbs_to_the_top():
    assert set(states(changed(), RUNNERS).values()) == {"passed"}
    assert list(states(changed(), RUNNERS)) == list(RUNGS)


def test_a_recording_runs_nothing():
    assert states(changed()) == {"environment": "passed", "devices": "passed", "links": "passed",
                                 "collective": "not_possible", "smallest": "not_possible",
                                 "recipe": "not_possible"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "broken", "rule"),
    [
        ({"env__txt": "HCCL_CONNECT_TIMEOUT=60\nASCEND_HOME_PATH=/c\n"}, "environment", "env_value"),
        ({"npu_smi_info__txt": "dcmi module initialize failed. ret is -8005\n"}, "devices", "npu_not_initialised"),
        ({"hccn_link_3__txt": "link status: DOWN\n"}, "links", "link_down"),
    ],
)
def test_it_stops_at_the_first_broken_rung(change, broken, rule):
    started = []
    runners = {"collective": lambda: started.append("collective") or Rung(name="collective", state="passed")}
    climbed = climb(lambda name: [changed(**change)], runners)
    names = list(RUNGS)
    above = names[names.index(broken) + 1 :]
    assert climbed.broken.name == broken and climbed.findings[0].rule == rule
    assert [rung.state for rung in climbed.rungs if rung.name in above] == ["not_reached"] * len(above)
    assert started == []


def test_a_runner_that_breaks_stops_what_stands_on_it():
    broken = Rung(name="collective", state="broken", findings=(Finding(
        rule="collective_failed", severity="error", root_cause="x", remedy="y"),))  # fmt: skip
    assert states(changed(), {**RUNNERS, "collective": lambda: broken}) == {
        "environment": "passed", "devices": "passed", "links": "passed", "collective": "broken",
        "smallest": "not_reached", "recipe": "not_reached"}  # fmt: skip


def test_until_names_the_last_rung():
    assert states(changed(), RUNNERS, "devices") == {
        "environment": "passed", "devices": "passed", "links": "not_asked", "collective": "not_asked",
        "smallest": "not_asked", "recipe": "not_asked"}  # fmt: skip


def test_errors_come_before_what_is_only_worth_mending():
    climbed = climb(lambda name: [changed(env__txt="ASCEND_DEVICE_ID=0\nGLOG_v=9\nASCEND_HOME_PATH=/c\n",
                                          ports__txt="8118\n")], {})  # fmt: skip
    assert [one.severity for one in climbed.findings] == ["error", "warning", "warning"]
    assert climbed.findings[0].rule == "env_value"


def test_a_warning_breaks_nothing():
    assert states(changed(ports__txt="8118\n"))["environment"] == "passed"


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_file_is_told_and_breaks_nothing(name):
    files = clean()
    del files[name]
    climbed = climb(lambda rung: [recording(files)], {})
    rules = [one.rule for one in climbed.findings]
    assert rules == (["npu_smi_missing"] if name == "npu-smi_info.txt" else [])
    if name in PLAIN and name not in ("devices.txt", "npu-smi_info.txt", "hccn.conf"):
        assert name in climbed.rungs[0].unchecked


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("text", ["\x00\x01garbage\n", "|||\n| | |\n", "\n" * 50, "%s %d {0}\n" * 20])
def test_garbage_in_any_file_is_a_finding_or_nothing(name, text):
    files = {**clean(), name: text}
    climbed = climb(lambda rung: [recording(files)], {})
    for one in climbed.findings:
        told = one.to_json()
        assert told["root_cause"] and told["remedy"] and "\x00" not in str(told["evidence"])


def test_nothing_recorded_is_not_passed():
    assert set(states(Recording(host="a")).values()) == {"not_possible"}


def test_differences_between_hosts_belong_to_their_rung():
    other = clean("node_1", 30)
    other["versions.txt"] = other["versions.txt"].replace("cann=9.0.0", "cann=9.0.1")
    told = [changed(), recording(other, "node_1")]
    climbed = climb(lambda name: told, {})
    assert climbed.broken.name == "environment" and climbed.hosts == ("node_0", "node_1")
    assert "versions_differ" in [one.rule for one in climbed.findings]
    other = clean("node_1", 30) | {
        f"hccn_tls_{n}.txt": f"dev_id:{n}, tls switch[1](0:disable, 1:enable)\n" for n in range(8)}  # fmt: skip
    assert climb(lambda name: [changed(), recording(other, "node_1")], {}).broken.name == "links"


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def fuzz(data):
    """Some files of a node with something else in them, cut, or doubled."""
    files = clean()
    for name in data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)):
        text = files[name]
        at, to = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        junk = data.draw(st.text(max_size=30) | st.sampled_from(["\x0c", "\u2028", "\r", "|", "\t=", "\x00", "$ x\n"]))
        files[name] = data.draw(st.sampled_from([text[:at] + junk + text[to:], text[at:to], text + text, junk]))
    told = recording(files)
    climbed = climb(lambda rung: [told, recording(clean("node_1", 40), "node_1")], {})
    for one in climbed.findings:
        for line in one.evidence:
            if line.file.startswith("node_0/") and line.text and "=" not in line.text and "$" not in line.text:
                lines = files[line.file.removeprefix("node_0/")].split("\n")
                assert line.line <= len(lines), (line, one.rule)
        one.to_json()


@given(st.data())
@settings(max_examples=60, **QUIET)
def test_mangled_nodes_end_in_findings_with_lines_of_their_files(data):
    fuzz(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=2000, **QUIET)
def test_mangled_nodes_end_in_findings_with_lines_of_their_files_at_length(data):
    fuzz(data)
