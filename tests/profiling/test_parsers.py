"""Each format: real headers, old and new columns, and a precise refusal for what is broken."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path

import pytest

from msparallel.profiling import table as table_module
from msparallel.profiling.files import kind_of, profile_files
from msparallel.profiling.gaps import MOST_GAPS, Gaps
from msparallel.profiling.hccl_test import bus_factor, read_hccl_test
from msparallel.profiling.json_leaves import CHUNK, json_leaves
from msparallel.profiling.link_counters import captures_of, differences
from msparallel.profiling.read import read_folder
from msparallel.profiling.steps import contradictions, rank_times
from msparallel.profiling.table import BadCell, Refused, number, open_table

pytestmark = pytest.mark.pure


def read(tmp_path: Path, **files: str):
    """Measured of a folder with these files; `__` in a name is a dot, `___` a slash."""
    for name, text in files.items():
        path = tmp_path / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_folder(tmp_path)


STEPS = ("Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
         "Communication(Not Overlapped and Exclude Receive),Preparing\n")  # fmt: skip


def test_steps_of_all_versions(tmp_path):
    new = read(tmp_path / "new", step_trace_time__csv=STEPS + "3,7,80,15,5,20,5,96,4,11,2\n")
    (part,) = new.steps
    assert (part.rank, part.step, part.step_us, part.waits_us, part.bubble_in_step_us) == (3, "7", 100.0, 11.0, 4.0)
    old = read(tmp_path / "old", step_trace_time__csv=(
        "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive)\n,80,15,5,20,5,96,4,11\n"))  # fmt: skip
    assert old.steps[0].rank == 0 and old.steps[0].preparing_us == 0 and "Device_id, or 0" in old.notes[0]
    cluster = read(tmp_path / "c", cluster_step_trace_time__csv=(
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
        "Communication(Not Overlapped and Exclude Receive),Preparing\n"
        "1,rank,0,80,15,5,20,5,96,4,11,2\n1,rank,1,80,15,5,20,5,96,4,11,2\n1,rank,x,80,15,5,20,5,96,4,11,2\n"
        '1,stage,"(0, )",80,15,5,20,5,96,4,11,2\n1,stage,"(1, )",80,15,5,20,5,96,4,11,2\n'))  # fmt: skip
    assert [(part.rank, part.group) for part in cluster.steps] == [(0, "stage 0"), (1, "stage 1")]
    assert "1 of 5 rows left out; line 4: 'x' is no number" in cluster.notes[0]


def test_a_bubble_longer_than_exposed_communication_is_cut(tmp_path):
    (part,) = read(tmp_path, step_trace_time__csv=STEPS + "0,1,80,15,5,20,5,70,40,-25,2\n").steps
    assert part.bubble_in_step_us == 15 and part.waits_us == 0
    assert part.computing_us + part.waits_us + part.bubble_in_step_us + part.free_us == part.step_us


def test_sums_are_checked(tmp_path):
    rows = "0,1,80,15,5,20,5,96,4,11,2\n0,2,80,15,5,20,5,150,4,11,2\n0,3,80,15,5,90,5,60,4,11,2\n"
    checks = contradictions(read(tmp_path, step_trace_time__csv=STEPS + rows).steps)
    assert [(one.rule, one.count, one.place.line) for one in checks] == [
        ("parts_are_not_the_step", 1, 3), ("halves_are_not_the_whole", 1, 4)]  # fmt: skip
    assert "Stage + Bubble is 154 us, 54% more" in checks[0].told


def test_the_first_step_is_left_out_where_it_compiles(tmp_path):
    rows = "".join(f"0,{step},{took},0,0,0,0,{took},0,0,0\n" for step, took in ((1, 900), (2, 100), (3, 102)))
    times, notes = rank_times(read(tmp_path, step_trace_time__csv=STEPS + rows).steps, None)
    assert times[0].steps == 2 and times[0].step_us == 101 and "more than 1.5 times" in notes[0]


@pytest.mark.parametrize(("text", "why"), [
    (STEPS, "has no row below its header"),
    (STEPS + "0,1,x,1,1,1,1,1,1,1,1\n", "has no row that can be used; line 2: 'x' is no number"),
    (STEPS + "0,1,-5,1,1,1,1,1,1,1,1\n", "line 2: -5 is below 0"),
    (STEPS + "0,1,nan,1,1,1,1,1,1,1,1\n", "'nan' is out of range"),
    (STEPS + "0,1,0,0,0,0,0,0,0,0,0\n", "a step that takes no time"),
    (STEPS + "0,1\n", "line 2: 2 cells of 11"),
    (STEPS + "1.5,1,5,1,1,1,1,1,1,1,1\n", "'1.5' is no whole number from 0"),
    (STEPS + '0,"1' + "x" * 200_000, "field larger than field limit"),
    (STEPS + "0" * (table_module.LONGEST_LINE + 5), "is longer than"),
])  # fmt: skip
def test_broken_tables_are_refused_with_their_line(tmp_path, text, why):
    csv.field_size_limit(2**17)  # Python's own; an imported library may have raised it
    found = read(tmp_path, step_trace_time__csv=text)
    assert not found.steps and why in found.left_out[0][1], found.left_out


def test_iterations_of_msprof(tmp_path):
    header = ("Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),FP to BP Time(us),"
              "Iteration Refresh(us),Data Aug Bound(us),Model ID,Reduce Start(us),Reduce Duration(us),Reduce Start(us),"
              "Reduce Duration(us)\n")  # fmt: skip
    found = read(tmp_path, step_trace_0_1__csv=header + "2,1,1,2,3,4200,4000,200,N/A,1,3,4,5,6\n"
                 "2,2,1,2,3,4200,4000,200,900,1,3,4,5,6\n")  # fmt: skip
    assert [(one.rank, one.time_us, one.data_us) for one in found.iterations] == [(2, 4200, None), (2, 4200, 900)]


KERNELS = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),{blocks},{cube}\n"


@pytest.mark.parametrize("blocks", ["Block Dim", "Block Num"])
def test_kernels_by_their_header(tmp_path, blocks):
    text = KERNELS.format(blocks=blocks, cube="cube_utilization(%)") + (
        '1,m1,MatMulV3,AI_CORE,"1000.0\t",400,1,20,80\n1,m2,MatMulV3,AI_CORE,"1405.0\t",600,1,20,95\n'
        '2,u,Unique,AI_CPU,"9005.0\t",50,1,1,0\n2,hcom_allReduce__1_2_3,hcom_allReduce_,N/A,"9055.0\t",10,1,0,N/A\n'
    )
    (found,) = read(tmp_path, kernel_details__csv=text).operators
    product = found.operators[0]
    assert (product.type, product.core, product.count, product.total_us, product.blocks) == (
        "MatMulV3", "cube", 2, 1000, 20)  # fmt: skip
    assert product.cube_share == pytest.approx((400 * 0.80 + 600 * 0.95) / 1000)
    assert product.longest.line == 3 and found.steps == 2
    assert {one.core for one in found.operators} == {"cube", "cpu", "communication"}
    (gap,) = found.gaps
    assert (gap.gap_us, gap.before, gap.after, gap.place.line) == (7000, "m2", "u", 4)


def test_mac_ratio_stands_in_for_utilization(tmp_path):
    text = KERNELS.format(blocks="Block Dim", cube="aic_mac_ratio") + "1,m,MatMulV2,MIX_AIC,1,100,0,20,0.5\n"
    (found,) = read(tmp_path, kernel_details__csv=text).operators
    assert found.operators[0].cube_share == 0.5


def test_task_time_leaves_out_tasks_that_wait(tmp_path):
    text = ("kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)\n"
            "a,KERNEL_AICORE,1,1,10,0,10\nb,EVENT_WAIT,1,2,900,10,910\nc,KERNEL_AICPU,1,3,5,910,915\n")  # fmt: skip
    (found,) = read(tmp_path, task_time_1__csv=text).operators
    assert [(one.type, one.core) for one in found.operators] == [("a", "cube"), ("c", "cpu")]
    assert found.gaps[0].gap_us == 900


def test_slices_of_a_rank_are_joined_and_repetitions_left_out(tmp_path):
    one = "Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)\n0,m,MatMulV2,AI_CORE,{},10\n"
    found = read(tmp_path, op_summary_slice_0_1__csv=one.format(1), op_summary_slice_1_1__csv=one.format(50),
                 task_time_1__csv="kernel_name,task_time(us)\nm,10\n",
                 op_statistic_1__csv="Device_id,OP Type,Core Type,Count,Total Time(us)\n0,MatMulV2,AI_CORE,2,20\n")
    assert found.operators[0].operators[0].count == 2
    assert found.left_out == (("task_time_1.csv", "repeats op_summary_slice_0_1.csv"),)


def test_statistics_count_where_there_are_no_kernels(tmp_path):
    text = "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
    (found,) = read(tmp_path, op_statistic__csv=text + "0,Cast,AI_VECTOR_CORE,240,23077.4,1,96,2708.3,10\n").operators
    assert found.operators[0].longest_us == 2708.3 and found.operators[0].core == "vector"


def test_gaps_in_any_order():
    spans = [(start, start + 50, f"k{start}") for start in range(0, 4000, 400)]
    expected = [(start + 50, start + 400) for start in range(0, 3600, 400)]
    for order in (spans, spans[::-1], spans[::2] + spans[1::2], spans[1::2] + spans[::2]):
        gaps = Gaps()
        for line, (start, end, name) in enumerate(order):
            gaps.add(start, end, name, line)
        found = sorted((gap.start, gap.end) for gap in gaps.longest())
        assert found == expected, order
        assert all(gap.before == f"k{gap.start - 50}" and gap.after == f"k{gap.end}" for gap in gaps.longest())


def test_gaps_take_bounded_memory():
    gaps = Gaps()
    for at in range(5 * MOST_GAPS):
        gaps.add(-at * 1000.0, -at * 1000.0 + 10, "k", 1)
    longest = gaps.longest()[0]
    assert len(gaps._spans) <= 2 * MOST_GAPS and gaps.dropped > 0 and longest.end - longest.start == 990


def leaf(**values: object) -> dict:
    times = {"Elapse Time(ms)": 2.0, "Wait Time(ms)": 0.5, "Transit Time(ms)": 1.0}
    return {"Communication Time Info": {**times, **values}}


def test_both_orders_of_step_and_kind(tmp_path):
    first = {"step1": {"p2p": {}, "collective": {"hcom_allReduce__1_0_1@9": leaf(), "Total Op Info": leaf()}}}
    second = {"(0, 1)": {"collective": {"step1": {"hcom_allReduce__1_0_1@9": {"0": leaf(), "1": leaf()}}}}}
    third = {"(0, 1)": {"step": {"hcom_allReduce__1_0_1@9": {"0": leaf(), "1": leaf()}}}}
    raw = {"hcom_allReduce__1_0_1@9": leaf()}
    for place, (text, ranks) in enumerate(((first, 1), (second, 2), (third, 2), (raw, 1))):
        found = read(tmp_path / str(place), cluster_communication__json=json.dumps(text))
        assert len(found.waiting) == ranks and not found.left_out
        assert found.waiting[0].collectives == 1 and found.waiting[0].elapsed_ms == 2.0


def test_sends_are_no_collectives(tmp_path):
    text = {"step1": {"p2p": {"hcom_send__1_0_1@9": leaf()}, "collective": {"hcom_receive__1_0_1@9": leaf()}}}
    (found,) = read(tmp_path, communication__json=json.dumps(text)).waiting
    assert found.collectives == 0 and found.p2p_ms == 4.0


def test_places_in_groups_become_ranks(tmp_path):
    def matrix(own: int, other: int) -> str:
        link = {"Transport Type": "HCCS", "Transit Size(MB)": 10.0, "Transit Time(ms)": 1.0}
        return json.dumps({"step1": {"collective": {"allreduce-total@9": {
            f"{own}-{own}": {**link, "Transport Type": "LOCAL"}, f"{own}-{other}": link}}}})  # fmt: skip

    both = read(tmp_path / "both", rank_4___communication_matrix__json=matrix(0, 1),
                rank_6___communication_matrix__json=matrix(1, 0))  # fmt: skip
    assert [(link.source, link.target, link.gb_s) for link in both.links] == [(4, 6, 10.0), (6, 4, 10.0)]
    alone = read(tmp_path / "one", rank_4___communication_matrix__json=matrix(0, 1))
    assert alone.links == () and "1 links of communication groups are left out" in alone.notes[0]


@pytest.mark.parametrize(("text", "why"), [
    ('{"step1": {"collective": {"a@1": {"Communication Time Info": {"Elapse Time(ms)": "soon"}}}}}', "line 1: Elapse"),
    ('{"step1": {"collective": {"a@1": {"Communication Time Info": {"Elapse Time(ms)": NaN}}}}}', "out of range"),
    ('{"step1": {"collective": {"a@1": {"Communication Time Info": {"Elapse Time(ms)": 1', "line 1: no JSON"),
    ('{"step1"\n: {"collective": {"a@1" {"Communication Time Info"', "line 2: no JSON as profilers write it: a key"),
    ('{"Communication Time Info": ' + "[" * 100_000, "nested too deep"),
    ('{"a":' * 12 + '{"Communication Time Info": {}}' + "}" * 12, "nested deeper than 8"),
    ('{"step1": {}} x "Communication Time Info"', "text behind the last }"),
])  # fmt: skip
def test_broken_json_is_refused_with_its_line(tmp_path, text, why):
    assert why in read(tmp_path, communication__json=text).left_out[0][1]


def test_leaves_over_the_borders_of_chunks(tmp_path):
    operators = {f"op{place}@1": leaf(pad="x" * (place % 97)) for place in range(2000)}
    document = {f"step{step}": {"collective": operators} for step in range(8)}
    path = tmp_path / "communication.json"
    text = json.dumps(document, indent=1)
    assert len(text) > 3 * CHUNK
    path.write_text(text)
    found = list(json_leaves(path))
    assert [(keys, value) for keys, value, _ in found] == [
        ((step, "collective", name), value) for step, inside in document.items()
        for name, value in inside["collective"].items()]  # fmt: skip
    lines = text.splitlines()
    assert all(keys[-1] in lines[line - 1] for keys, _, line in found)


def test_memory_at_its_peak(tmp_path):
    text = ("Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Allocation Total Allocated(MB),"
            "Allocation Total Reserved(MB),Device Type\nweights,2048,1\t,,,2,4,NPU:3\nshort,1024,2,3,1,3,4,NPU:3\n"
            "large,4096,5,9,4,6,8,NPU:3\nlater,1024,20,,,3,8,NPU:3\n")  # fmt: skip
    (peak,) = read(tmp_path, operator_memory__csv=text).memory
    assert (peak.rank, peak.allocated_mb, peak.reserved_mb) == (3, 6, 8)
    assert peak.largest == ((4.0, "large"), (2.0, "weights"))
    record = ("Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type\n"
              "MindSpore,1,10,20,10,NPU:3\nMindSpore,2,15,30,10,NPU:3\nAPP,2,0,99,0,NPU:3\n")  # fmt: skip
    found = read(tmp_path / "r", memory_record__csv=record).memory
    assert [(one.component, one.reserved_mb) for one in found] == [("APP", 99), ("MindSpore", 30)]


def test_the_queue_before_the_device(tmp_path):
    text = "pipeline_ops,DeviceQueue(id=0),Batch(id=1)\nqueue_empty_freq_pct,-1,75\nbottleneck_warning,\n"
    (found,) = read(tmp_path, minddata_pipeline_summary_3__csv=text).pipelines
    assert (found.rank, found.empty_pct, found.bottleneck) == (3, 75.0, "")
    same = {"pipeline_ops": ["DeviceQueue(id=0)", "Batch(id=1)"], "queue_empty_freq_pct": [-1, 75]}
    (also,) = read(tmp_path / "j", minddata_pipeline_summary_3__json=json.dumps(same)).pipelines
    assert also.empty_pct == 75.0


def test_bandwidth_is_recomputed():
    text = ("the minbytes is 8192\ndata_size(Bytes): | avg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
            "8192 | 8.192 | 99999.0 | success\n16384 | 8 | nan | NULL\n")  # fmt: skip
    (test,) = read_hccl_test(text, "x/all_gather_test_16p.txt")
    assert test.rows[0].gb_s == pytest.approx(1.0) and test.rows[1].printed_gb_s is None
    assert (test.operation, test.ranks) == ("all_gather", 16) and bus_factor("all_gather", 16) == 15 / 16
    assert bus_factor(None, 8) is None and bus_factor("all_reduce", None) is None


def test_several_runs_in_one_log():
    header = "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    command = "$ mpirun -n {} ./bin/{}_test -b 8K -e 64M -f 2 -d fp32 -o sum -p 8\n"
    text = "".join(command.format(ranks, name) + header + "8192 | 5 | 1 | success\n"
                   for ranks, name in ((8, "all_reduce"), (16, "reduce_scatter")))  # fmt: skip
    assert [(test.operation, test.ranks, test.rows[0].line) for test in read_hccl_test(text, "log.txt")] == [
        ("all_reduce", 8, 3), ("reduce_scatter", 16, 6)]  # fmt: skip


def test_memory_does_not_grow_with_a_table(tmp_path):
    def peak(rows: int) -> int:
        path = tmp_path / str(rows) / "kernel_details.csv"
        path.parent.mkdir()
        with path.open("w") as file:
            file.write(KERNELS.format(blocks="Block Num", cube="cube_utilization(%)"))
            for at in range(rows):
                start = f'"{1.7e15 + at * 500:.3f}\t"'
                file.write(f"{at // 999},op{at},MatMulV{at % 9},AI_CORE,{start},{at % 300},1,20,80\n")
        tracemalloc.start()
        (found,) = read_folder(path.parent).operators
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(one.count for one in found.operators) == rows
        return used

    small, large = peak(15_000), peak(60_000)
    assert large < 1.2 * small < 8e6


@pytest.mark.parametrize(("rows", "why"), [
    ("", "has a header and no row"), ("8192 | 0 | 1 | success", "a time of 0 us"),
    ("8192 | 5 | 1 | maybe", "the result 'maybe' is none of"), ("8192 | x | 1 | success", "is no row"),
])  # fmt: skip
def test_broken_hccl_tests(rows, why):
    header = "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    with pytest.raises(Refused, match=why):
        read_hccl_test(header + rows, "a.txt")


def test_counters_between_two_captures():
    before, after = ("packet statistics:\nmac_rx_bad_pkt_num:{}\nroce_new_pkt_rty_num:{}\n".format(*pair)
                     for pair in ((3, 10), (3, 25)))  # fmt: skip
    captures = captures_of(after, "d/device_1_after.txt") + captures_of(before, "d/device_1_before.txt")
    (found,), notes = differences(captures)
    assert found.changes == {"mac_rx_bad_pkt_num": 0.0, "roce_new_pkt_rty_num": 15.0} and not notes
    assert found.device == "d/device 1" and found.captures == 2
    mixed = captures_of("mac_rx_bad_pkt_num:9\nroce_new_pkt_rty_num:1\n", "d/device_1_x.txt")
    reset, notes = differences(captures_of(before, "d/device_1_before.txt") + mixed)
    assert not reset and "rises in neither order" in notes[0]


def test_captures_of_several_devices_in_one_text():
    text = "device 0\npacket statistics:\nmac_rx_bad_pkt_num:1\ndevice 1\npacket statistics:\nmac_rx_bad_pkt_num:2\n"
    text += "[devid 2]mac_rx_bad_pkt_num:3\n[devid 2]mac_rx_bad_pkt_num:4\n"
    found = [(one.device, one.values["mac_rx_bad_pkt_num"]) for one in captures_of(text, "all.txt")]
    assert found == [("0", 1.0), ("1", 2.0), ("2", 3.0), ("2", 4.0)]


def test_ranks_by_folder_and_by_what_stands_beside(tmp_path):
    header = STEPS + "0,1,80,15,5,20,5,96,4,11,2\n"
    found = read(tmp_path, host_1_ascend_pt___profiler_info_5__json="{}",
                 host_1_ascend_pt___ASCEND_PROFILER_OUTPUT___step_trace_time__csv=header,
                 rank_6___a___step_trace_time__csv=header,
                 host_2_ascend_ms___ASCEND_PROFILER_OUTPUT___ascend_mindspore_profiler_7__db="",
                 host_2_ascend_ms___ASCEND_PROFILER_OUTPUT___step_trace_time__csv=header)  # fmt: skip
    assert [part.rank for part in found.steps] == [5, 6, 7]


def test_two_folders_without_a_rank_are_not_mixed(tmp_path):
    header = STEPS + "0,1,80,15,5,20,5,96,4,11,2\n"
    found = read(tmp_path, a___step_trace_time__csv=header, b___step_trace_time__csv=header)
    assert len(found.steps) == 1
    assert found.left_out[0] == ("b/step_trace_time.csv", "its rank is not told, and 'a' has rank 0 already; put the "
                                 "files of each rank into a folder rank_N")  # fmt: skip


def test_links_and_binaries_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text(STEPS)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "step_trace_time.csv").symlink_to(tmp_path / "secret")
    (tmp_path / "in" / "x.bin").write_bytes(b"\0\1")
    (tmp_path / "in" / "trace_view.json").write_text('[{"name": "x"}]')
    _, left_out = profile_files(tmp_path / "in")
    assert dict(left_out)["step_trace_time.csv"] == "is a symbolic link" and dict(left_out)["x.bin"] == "is not text"
    assert "timeline" in dict(left_out)["trace_view.json"]
    assert kind_of(tmp_path / "in")[1] == "is not a regular file"


def test_numbers():
    assert number(" 12.5\t") == 12.5 and number("N/A") is None and number('"3"') == 3
    for cell in ("x", "inf", "1e300", "--1"):
        with pytest.raises(BadCell):
            number(cell)


def test_a_header_alone_is_a_table(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\ufeffa, b,a\n1,2,3\n4,5\n", encoding="utf-8")
    with open_table(path) as table:
        assert list(table.rows()) == [(2, ["1", "2", "3"])] and table.columns == {"a": 0, "b": 1}
        assert table.first_bad == "line 3: 2 cells of 3"
        with pytest.raises(Refused, match="has no column x or y"):
            table.need("x", "y")
