"""Rules about the network itself: hccl_test runs and counters of ports.

In: a View. Out: Findings. Counters that rose in one capture alone are information: they count from the driver's start.
"""

from __future__ import annotations

from msparallel.finding import Evidence
from msparallel.hardware import Hardware
from msparallel.profiling.finding import Finding, percent, time_text
from msparallel.profiling.hccl_test import bus_factor
from msparallel.profiling.link_rules import WELL_BELOW
from msparallel.profiling.measured import HcclTest, SizeRow
from msparallel.profiling.view import View

SATURATED_BYTES = 256e6
"""A smaller message is launched for longer than it is sent: published runs over 8 devices take 1.7 ms up to 32 MB."""


def hccl_tests(view: View) -> list[Finding]:
    """What hccl_test found wrong: results, sizes at which bandwidth breaks in, and what it reaches at its best."""
    found: list[Finding] = []
    for test in view.measured.hccl_tests:
        found += [*_results(test), *_breaks_in(test), *_below_hardware(view, test)]
    return found


def _results(test: HcclTest) -> list[Finding]:
    found: list[Finding] = []
    failed = [row for row in test.rows if row.result == "failed"]
    unchecked = [row for row in test.rows if row.result == "NULL"]
    if failed:
        found.append(Finding(
            rule="hccl_test_failed", severity="error",
            root_cause=f"hccl_test computed wrong values at {len(failed)} of {len(test.rows)} sizes, first at "
                       f"{failed[0].bytes:,} bytes.",
            remedy="Do not train on these devices. Repeat with two devices at a time to find the one; check its ECC "
                   "counters (npu-smi info -t ecc -i N).",
            evidence=tuple(_place(test, row, "failed") for row in failed[:3]),
        ))  # fmt: skip
    if unchecked:
        found.append(Finding(
            rule="hccl_test_unchecked", severity="info",
            root_cause=f"hccl_test compared nothing at {len(unchecked)} of {len(test.rows)} sizes (NULL).",
            remedy="Run it with -c 1. NULL with -c 1: the sum does not fit the type, take -d fp32 and fewer ranks.",
            evidence=(_place(test, unchecked[0], "NULL"),),
        ))  # fmt: skip
    return found


def _place(test: HcclTest, row: SizeRow, result: str) -> Evidence:
    return Evidence(test.file, row.line, f"{row.bytes} bytes in {row.time_us:g} us: {result}")


def _breaks_in(test: HcclTest) -> list[Finding]:
    best = 0.0
    for row in sorted(test.rows, key=lambda row: row.bytes):
        if row.gb_s < 0.5 * best:
            return [Finding(
                rule="hccl_test_breaks_in", severity="warning",
                root_cause=f"hccl_test reaches {row.gb_s:.3g} GB/s at {row.bytes:,} bytes, and {best:.3g} with smaller "
                           "messages.",
                remedy="Repeat it. If it stays: HCCL_BUFFSIZE (messages are cut to it), HCCL_ALGO, and the counters of "
                       "the ports around the run.",
                evidence=(_place(test, row, row.result),),
            )]  # fmt: skip
        best = max(best, row.gb_s)
    return []


def _below_hardware(view: View, test: HcclTest) -> list[Finding]:
    factor, expected = bus_factor(test.operation, test.ranks), _wires_gb_s(view.hardware, test.ranks)
    top = max(test.rows, key=lambda row: row.gb_s)
    if factor is None or expected is None or view.hardware is None or top.bytes < SATURATED_BYTES:
        return []
    if top.gb_s * factor >= WELL_BELOW * expected:
        return []
    return [Finding(
        rule="hccl_test_below_hardware", severity="warning",
        root_cause=f"hccl_test's {test.operation} over {test.ranks} ranks reaches {top.gb_s:.3g} GB/s at "
                   f"{top.bytes:,} bytes, {top.gb_s * factor:.3g} on each device's wires; {view.hardware.name} should "
                   f"reach {expected:.3g}.",
        remedy="HCCL_ALGO, HCCL_BUFFSIZE, and a run inside each server to see which of them is slow.",
        evidence=(_place(test, top, top.result),),
    )]  # fmt: skip


def _wires_gb_s(hardware: Hardware | None, ranks: int | None) -> float | None:
    """What each device can send in a collective over so many consecutive devices: its slowest level's."""
    if hardware is None or ranks is None:
        return None
    for link in hardware.links:
        if link.joins is None or ranks <= link.joins:
            wires = (ranks - 1) / (link.joins - 1) if link.topology == "mesh" and link.joins else 1.0
            reached = link.bandwidth_gb_s * wires * link.efficiency
            return min(reached, link.most_gb_s) if link.most_gb_s else reached
    return None


PAUSES = 1e-3
"""Pause frames for each packet that was received."""
_BAD = ("mac_tx_bad_pkt_num", "mac_rx_bad_pkt_num", "mac_rx_fcs_err_pkt_num", "roce_rx_err_pkt_num",
        "roce_tx_err_pkt_num", "roce_verification_err_num")  # fmt: skip
_AGAIN = ("roce_new_pkt_rty_num", "roce_out_of_order_num")
_CONGESTED = ("mac_rx_pfc_pkt_num", "mac_rx_mac_pause_num")


def ports(view: View) -> list[Finding]:
    """Counters of ports that rose while they should not."""
    found: list[Finding] = []
    for port in view.measured.counters:
        rose = {name: port.changes.get(name, 0.0) for name in (*_BAD, *_AGAIN)}
        when = "since the driver's start" if port.captures == 1 else "between the captures"
        level = "info" if port.captures == 1 else "warning"
        twice = " Take a second capture after a run: one alone may count errors of last month." * (port.captures == 1)
        bad = {name: value for name, value in rose.items() if value > 0 and name in _BAD}
        again = {name: value for name, value in rose.items() if value > 0 and name in _AGAIN}
        if again:
            found.append(Finding(
                rule="retransmissions", severity=level,  # type: ignore[arg-type]
                root_cause=f"{port.device} sent packets again {when}: {_told(again)}. Each time-out stops a collective "
                           f"for 4.096 us x 2^HCCL_RDMA_TIMEOUT, about 4 s at its default of 20.{twice}",
                remedy="Packets are lost: PFC must be on for the queue of HCCL_RDMA_SL and HCCL_RDMA_TC on device and "
                       "every switch port; then optics and cables (hccn_tool -i N -optical -g).",
                evidence=(port.place,),
            ))  # fmt: skip
        if bad:
            found.append(Finding(
                rule="bad_packets", severity=level,  # type: ignore[arg-type]
                root_cause=f"{port.device} counted broken packets {when}: {_told(bad)}.{twice}",
                remedy="Cable, optics or port: hccn_tool -i N -optical -g (power within its thresholds), -link_stat "
                       "-g (link down?), swap the cable and look whether the errors move with it.",
                evidence=(port.place,),
            ))  # fmt: skip
        pauses = sum(port.changes.get(name, 0.0) for name in _CONGESTED)
        packets = port.changes.get("mac_rx_total_pkt_num", 0.0) or port.changes.get("roce_rx_all_pkt_num", 0.0)
        if pauses > 0 and (packets <= 0 or pauses > PAUSES * packets):
            share = f", {percent(pauses / packets)} of what it received" if packets > 0 else ""
            found.append(Finding(
                rule="port_paused", severity=level,  # type: ignore[arg-type]
                root_cause=f"The switch asked {port.device} to stop sending {pauses:,.0f} times {when}{share}: a port "
                           f"behind it is overrun.{twice}",
                remedy="Several senders meet at one port: ECN thresholds below those of PFC on the switch, HCCL_ALGO, "
                       "a rank order that keeps neighbours under one switch (msparallel ranktable).",
                evidence=(port.place,),
            ))  # fmt: skip
        found += _slow_port(view, port.device, port.changes, port.seconds, port.place)
    return found


def _slow_port(view: View, device: str, changes: dict[str, float], seconds: float | None,
               place: Evidence) -> list[Finding]:  # fmt: skip
    """How far the port was used, where the captures have times."""
    sent = changes.get("mac_tx_total_oct_num", 0.0)
    wire = next((link for link in view.hardware.links if link.name == "RoCE"), None) if view.hardware else None
    if not seconds or wire is None or sent <= 0:
        return []
    gb_s = sent / seconds / 1e9
    return [Finding(
        rule="port_use", severity="info",
        root_cause=f"{device} sent {gb_s:.3g} GB/s on average over {time_text(seconds * 1e6)}, "
                   f"{percent(gb_s / wire.bandwidth_gb_s)} of the {wire.bandwidth_gb_s:g} GB/s of its port.",
        remedy="A mean over compute and communication: a busy network shows in communication_matrix.json.",
        evidence=(place,),
    )]  # fmt: skip


def _told(values: dict[str, float]) -> str:
    return ", ".join(f"{name} +{value:,.0f}" for name, value in values.items())
