"""What no rule knows exactly: error lines, summaries, exceptions behind the prefix of another program, counters."""

import job_logs as logs
import pytest

from msparallel.diagnose.diagnose import diagnose

pytestmark = pytest.mark.pure
UNKNOWN = "[ERROR] FLUX(5002,ffff80,python):{} [flux.cc:7] Run] the flux is gone\n"


def first_of(folder, text, name="output.log"):
    """The first finding of a folder with one log."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    found = diagnose(folder).findings
    return found[0] if found else None


def test_an_unknown_line_of_one_rank_goes_before_the_time_outs_of_the_others(tmp_path):
    tails = {rank: logs.notify_timeout(rank, 1900 + rank, "unknown") for rank in range(8)}
    tails[2] = UNKNOWN.format(logs.stamp(75))
    found = diagnose(logs.write_job(tmp_path, 8, 60, tails))
    first, second = found.findings
    assert (first.rule.id, first.severity, first.rank) == ("unknown_error_line", "error", 2) and found.failed
    assert "no rule knows" in first.root_cause and "the flux is gone" in first.root_cause
    assert (second.rule.id, second.explained_by) == ("notify_timeout", "unknown_error_line")


def test_an_unknown_line_at_the_time_of_the_time_outs_follows_from_them(tmp_path):
    tails = {rank: logs.notify_timeout(rank, 1900 + rank, 3) for rank in range(4) if rank != 2}
    tails[2] = UNKNOWN.format(logs.stamp(1890))
    found = diagnose(logs.write_job(tmp_path, 4, 60, tails))
    explained = {one.rule.id: one.explained_by for one in found.findings}
    assert explained["unknown_error_line"] is not None and explained["notify_timeout"] is None


def test_an_unknown_line_after_which_the_process_goes_on_is_a_warning(tmp_path):
    folder = logs.write_job(tmp_path, 2, 0, {})
    with (folder / "worker_1.log").open("a", encoding="utf-8") as file:
        file.write(UNKNOWN.format(logs.stamp(20)) + "".join(logs.step_line(1, step, 30 + step) for step in range(200)))
    found = diagnose(folder)
    assert [(one.rule.id, one.severity) for one in found.findings] == [("unknown_error_line", "warning")]
    assert not found.failed


def test_of_two_unknown_lines_the_one_that_ended_the_process_counts(tmp_path):
    folder = logs.write_job(tmp_path, 2, 0, {})
    with (folder / "worker_1.log").open("a", encoding="utf-8") as file:
        file.write(UNKNOWN.format(logs.stamp(20)) + "".join(logs.step_line(1, step, 30 + step) for step in range(200)))
        file.write(UNKNOWN.format(logs.stamp(240)).replace("gone", "gone for good"))
    first = diagnose(folder).findings[0]
    assert first.severity == "error" and "gone for good" in first.evidence[0].text and first.evidence[0].line == 205


@pytest.mark.parametrize("line", [
    "(EngineCore_DP0 pid=7) ERROR 01-02 03:04:05 [core.py:708] it broke", "ERROR: it broke",
    "train.py: error: it broke",
    "2026-01-02 03:04:05,678 - a.b - ERROR - it broke", "[2026-01-02 03:04:05,095][10][ERROR][api:56] it broke",
    "E0709 20:08:32.572540     269 server/server.go:40] it broke", "docker: Error response from daemon: it broke.",
    "E1210 12:00:00.123456   123 comm.cc:820] it broke", "F0102 12:00:00.123456 123 a/b.py:8] it broke",
    "3月 17 02:11:09 node7 kubelet[17]: E0817 16:52:02.414082  17 pod_workers.go:1324] it broke",
    "[rank9]:[E508 03:20:31.678676591 compiler_depend.ts:1693] it broke", "[E OpParamMaker.cpp:273] it broke",
    "(WorkerDict pid=90) [E331 20:50:12.688969421 socket.cpp:1011] [c10d] it broke",
    "2026-01-02 03:04:05.028 | ERROR    | __main__:doc_parse:95 | it broke", "a.start - CRITICAL - it broke",
    'node-1 containerd[38]: time="2026-01-02T03:04:05.8+08:00" level=error msg="it broke"', "CRITICAL:root:it broke",
    "/src/a.cpp:20:10: fatal error: it broke", "server-1   | 2026-01-02 03:04:05,678 - a.b - ERROR - it broke",
])  # fmt: skip
def test_forms_of_error_lines(line, tmp_path):
    first = first_of(tmp_path, f"something\n{line}\n")
    assert (first.rule.id, first.severity) == ("unknown_error_line", "error") and "it broke" in first.root_cause


@pytest.mark.parametrize("prefix", [
    "", "[rank3]: ", "server-1   | ", "(WorkerDict pid=7435, ip=192.0.2.3) ", "E       ",
    "(Worker_TP0 pid=7) ERROR 01-02 03:04:05 [multiproc_executor.py:949] ",
    "(Worker pid=1) (Worker_DP0 pid=1) ERROR 03-25 06:14:02 [multiproc_executor.py:880] ",
    "/data/log/worker_1953.log-11472-[rank1953]: ",
])  # fmt: skip
def test_an_exception_behind_the_prefix_of_another_program(prefix, tmp_path):
    first = first_of(tmp_path, f"{prefix}Traceback (most recent call last):\n{prefix}ValueError: bad sample 7\n")
    assert first.rule.id == "python_exception" and first.root_cause.endswith("ValueError: bad sample 7")
    assert first.rank == {"[rank3]: ": 3, "/data/log/worker_1953.log-11472-[rank1953]: ": 1953}.get(prefix)


@pytest.mark.parametrize("link", [
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
])  # fmt: skip
def test_of_a_chain_of_exceptions_the_first_is_the_cause_and_the_others_are_shown(link, tmp_path):
    text = ("Traceback (most recent call last):\nKeyError: 'rope_scaling'\n\n" + link + "\n\n"
            "Traceback (most recent call last):\nRuntimeError: the model cannot be loaded\n")  # fmt: skip
    first = first_of(tmp_path, text)
    assert first.root_cause.endswith("KeyError: 'rope_scaling'")
    assert [line.line for line in first.evidence] == [2, 7]


def test_cann_s_code_below_an_exception_goes_before_the_generic_line(tmp_path):
    text = ("RuntimeError: InnerRun:x.ts:234 OPS function error: Foo, error code is 500002\n"
            "[ERROR] 2026-01-02-03:04:05 (PID:7, Device:3, RankID:3) ERR01100 OPS call acl api failed\n")  # fmt: skip
    known = first_of(tmp_path / "a", text + "E40021: [PID: 7] 2026-01-02-03:04:05.572 Failed to compile Op [Foo]\n")
    assert known.rule.id == "operator_not_supported" and "Foo" in known.root_cause
    other = first_of(tmp_path / "b", text + "EG0042: [PID: 7] 2026-01-02-03:04:05.572 Something new\n")
    assert other.rule.id == "ascend_error_code" and "EG0042" in other.root_cause
    assert [line.line for line in other.evidence] == [1, 3]


def test_how_a_process_ended_gives_way_to_what_it_said_before(tmp_path):
    text = "[ERROR] FLUX(5,ffff80,python):2026-03-01-10:00:01.000.000 [flux.cc:7] Run] the flux is gone\n"
    for number, end in enumerate(("Killed\n", "terminate called after throwing an instance of 'std::runtime_error'\n")):
        assert first_of(tmp_path / f"{number}", text + end).rule.id == "unknown_error_line"
        assert first_of(tmp_path / f"{number}a", end).rule.id == "process_aborted"


def test_a_log_that_ends_inside_a_traceback(tmp_path):
    frames = 'Traceback (most recent call last):\n  File "/job/a.py", line 3, in main\n    run()\n'
    first = first_of(tmp_path / "a", frames)
    assert (first.rule.id, first.severity) == ("traceback_cut_off", "error") and "a.py" in first.root_cause
    went_on = first_of(tmp_path / "b", frames + "step 1\nstep 2\nstep 3\nstep 4\n")
    assert went_on.rule.id == "possible_error" and went_on.severity == "warning"
    assert first_of(tmp_path / "c", frames + "ValueError: bad sample 7\n").rule.id == "python_exception"


def test_a_word_about_a_failure_is_a_warning_where_nothing_else_is_known(tmp_path):
    first = first_of(tmp_path / "a", "step 1\n加载权重失败: /ckpt\n")
    assert (first.rule.id, first.severity) == ("possible_error", "warning") and "加载权重失败" in first.root_cause
    assert not diagnose(tmp_path / "a").failed
    assert first_of(tmp_path / "b", "open failed, next try\n" + "step\n" * 60) is None, "far from the end"
    folder = logs.write_job(tmp_path / "c", 2, 5, {0: "the lookup failed\n", 1: logs.out_of_memory(1, 75)})
    assert {one.rule.id for one in diagnose(folder).findings} == {"device_out_of_memory"}


@pytest.mark.parametrize("line", [
    "WARNING 07-25 07:14:48 [_custom_ops.py:20] ImportError('liba.so.1: cannot open shared object file: x')",
    "DEBUG 08-18 15:31:33 [__init__.py:76] ValueError: not here", "2024-12-25 09:58:34,125 [WARNING] EI0005: no",
    "[W530 17:44:21.455843271 a.ts:526] Warning: NPU warning, error code is 507035", "I0709 20:08:32.572540 EI0005: no",
    '(APIServer pid=1) INFO:     192.0.2.1:5 - "POST /v1/x HTTP/1.1" 500 EI0005: no', "level=info msg=EI0005:",
    "[EVENT] KERNEL(9,sklogd):2026-01-02-03:04:05.699.358 [klogd.c:1][ascend] [ERROR] EI0005: no",
])  # fmt: skip
def test_lines_of_a_quiet_level_are_no_faults(line, tmp_path):
    assert first_of(tmp_path, line + "\n") is None


@pytest.mark.parametrize("line", [
    "epoch: 1 step: 207001, loss is 3.21", "epoch: 1 step: 507011, loss is 2.2", "iteration 507015/600000",
    "Train epoch time: 507015.1 ms, per step time: 781.0 ms", "num_samples=507035", "size[507018]",
])  # fmt: skip
def test_a_counter_is_no_return_code(line, tmp_path):
    assert first_of(tmp_path, line + "\n") is None


@pytest.mark.parametrize("line", [
    "NPU error, error code is 507035", "retcode: 507035", "failed, ret: 507035", "ret[507035]", "errno:507035.",
    "ErrCode=507035, desc=x", "runtime result = 507035.[FUNC:x]", "error no is 507035", "error code:507035",
])  # fmt: skip
def test_forms_of_a_return_code(line, tmp_path):
    assert first_of(tmp_path, line + "\n").rule.id == "aicore_error"


def test_a_summary_gives_way_to_anything_in_its_file_also_below_it(tmp_path):
    text = "RuntimeError: Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'.\n"
    first = first_of(tmp_path / "a", text + "[ERROR] Crop: Crop height dimension: 8 exceeds image height: 3.\n")
    assert first.rule.id == "unknown_error_line" and "Crop height" in first.root_cause
    alone = first_of(tmp_path / "b", text)
    assert alone.rule.id == "summary_line" and alone.severity == "error"
    end = "[ERROR] 2026-01-02-03:04:05 (PID:77, Device:0, RankID:-1) ERR99999 UNKNOWN application exception\n"
    assert first_of(tmp_path / "c", "ValueError: bad sample 7\n" + end).rule.id == "python_exception"
    assert first_of(tmp_path / "d", end).rule.id == "torch_npu_error"


def test_dmesg_with_dates_is_put_in_order(tmp_path):
    folder = logs.write_job(tmp_path, 2, 5, {1: logs.notify_timeout(1, 1900, "unknown")})
    (folder / "dmesg.txt").write_text("[Sun Mar  1 10:00:30 2026] Out of memory: Killed process 5000 (python) x\n")
    first, second = diagnose(folder).findings
    assert (first.rule.id, second.rule.id) == ("host_out_of_memory", "notify_timeout")
    assert second.explained_by == first.rule.id
    assert first.to_json()["time"] == "2026-03-01 10:00:30"


def test_a_guess_about_signals_is_no_signal(tmp_path):
    text = ("The actor is dead because its worker process has died. (1) The process is killed by SIGKILL. "
            "(3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n")  # fmt: skip
    assert first_of(tmp_path, text).rule.id == "worker_vanished"


def test_ranks_that_wait_for_each_other_lead_to_the_end_of_the_chain(tmp_path):
    waits = {0: 1, 1: 2, 2: "unknown"}
    tails = {rank: logs.notify_timeout(rank, 1900 + rank, remote) for rank, remote in waits.items()}
    assert diagnose(logs.write_job(tmp_path, 3, 60, tails)).findings[0].rank == 2


def test_hccls_word_for_no_rank_is_no_rank(tmp_path):
    tails = {rank: logs.notify_timeout(rank, 1900, 4294967295) for rank in range(2)}
    first = diagnose(logs.write_job(tmp_path, 2, 60, tails)).findings[0]
    assert first.rule.id == "notify_timeout" and first.rank == 0


def test_a_plog_gets_the_rank_from_another_file_of_its_process(tmp_path):
    for node, rank in ((0, 3), (1, 11)):
        for part, text in (("run", logs.head(rank, 16)), ("debug", "[ERROR] HCCL(77,python):x EI0005: differ\n")):
            folder = tmp_path / f"node_{node}" / part
            folder.mkdir(parents=True)
            (folder / f"plog-77_2026030110000{node}.log").write_text(text)
    assert diagnose(tmp_path).findings[0].ranks == (3, 11), "the same process id on two nodes"


def test_errors_hours_apart_are_of_several_attempts(tmp_path):
    logs.write_job(tmp_path / "1", 2, 5, {1: logs.out_of_memory(1, 75)})
    logs.write_job(tmp_path / "2", 2, 5, {0: logs.notify_timeout(0, 200_000, "unknown")})
    found = {one.rule.id: one for one in diagnose(tmp_path).findings}
    assert found["errors_far_apart"].severity == "warning" and "56 h" in found["errors_far_apart"].root_cause
    assert found["notify_timeout"].explained_by is None, "what is days old explains nothing"
    near = logs.write_job(tmp_path / "3", 2, 5, {1: logs.out_of_memory(1, 75), 0: logs.notify_timeout(0, 9000, 1)})
    assert {one.rule.id for one in diagnose(near).findings} == {"device_out_of_memory", "notify_timeout"}
