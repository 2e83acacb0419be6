"""Outputs of npu-smi, written from the format: npu_info_print.c of the driver, and the shapes of public reports."""

from __future__ import annotations

RULE = "+" + "-" * 96 + "+"


def info_a2(
    ids=(0, 1), *, health="OK", hbm="3416 / 65536", ddr="0    / 0", power="91.5", temperature="44", processes=None,
    name="910B2", version="24.1.0", container=False,
) -> str:  # fmt: skip
    """910A and 910B: a chip a card. `processes`: NPU id -> list of (pid, name, MB)."""
    lines = [
        RULE,
        f"| npu-smi {version}                   Version: {version}                                               |",
        RULE,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        RULE,
    ]
    for number in ids:
        lines += [
            f"| {number}     {name}               | {health}            | {power}        {temperature}             "
            "   0    / 0             |",
            f"| 0                         | 0000:{0xC1 + number % 8:02X}:00.0  | 0           {ddr}          {hbm}    |",
            RULE,
        ]
    if processes is not None:
        last = " | Process id in container" if container else ""
        lines += [
            f"| NPU     Chip              | Process id    | Process name             | Process memory(MB)      {last}|",
            RULE,
        ]
        for number in ids:
            for pid, program, size in processes.get(number, []):
                lines.append(f"| {number}       0       | {pid} | {program} | {size} {'| 77 ' if container else ''}|")
            if not processes.get(number):
                lines.append(f"| No running processes found in NPU {number}                        |")
            lines.append(RULE)
    return "\n".join(lines) + "\n"


def info_a3(cards=(0, 1), *, health="OK", version="25.2.1") -> str:
    """Two dies a card, `Chip Phy-ID`; the second die has no power of its own."""
    lines = [
        f"| npu-smi {version}               Version: {version}                                           |",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
    ]
    for card in cards:
        for die in (0, 1):
            lines += [
                f"| {card}     Ascend910           | {health}            | {'-' if die else '178.5'}       36      "
                "          0    / 0             |",
                f"| {die}     {2 * card + die}                   | 0000:{0x80 + 2 * card + die:02X}:00.0  | 0   "
                "        0    / 0          3416 / 65536         |",
                RULE,
            ]
    return "\n".join(lines) + "\n"


INFO_310P = """\
+-------------------------------+-----------------+------------------------------------------------------+
| npu-smi 25.3.rc1                                 Version: 25.3.rc1                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 2944    310P3                 | OK              | NA           50                0     / 0             |
| 0       0                     | 0000:84:00.0    | 0            1839 / 21525                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 2944    310P3                 | OK              | NA           51                15    / 15            |
| 1       1                     | NA              | 3            NA / 21525                              |
+===============================+=================+======================================================+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| No running processes found in NPU 2944                                                                 |
+===============================+=================+======================================================+
"""

INFO_950 = """\
+-------------------------------------------------------------------------------------------------+
| npu-smi 25.6.rc1.b218                            Version: 25.6.rc1.b218                         |
+--------+------------------+---------------+-----------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |
+========+==================+===============+=====================================================+
| 0      | Ascend950PR      | Alarm         | 205.7       71                0     / 0             |
|        |                  | 0000:71:00.0  | 100         0    / 0          90633 / 114688        |
+========+==================+===============+=====================================================+
| 3      | Ascend950DT      | OK            | 398.6       46                0     / 0             |
|        |                  | NA            | 0           0     / 0         4765  / 98304         |
+========+==================+===============+=====================================================+
| NPU ID                    | Process id    | Process name             | Process memory(MB)       |
+===========================+===============+=====================================================+
| 0                         | 1648703       | VLLMWorker               | 316                      |
| No running processes found in NPU 3                                                             |
[WARNING]The driver package may not be completely installed, which may cause function abnormal.
"""

USAGES = """\
\tNPU ID                         : 3
\tChip Count                     : 1

\tDDR Capacity(MB)               : 0
\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 6
\tAicore Usage Rate(%)           : 17
\tChip ID                        : 0
"""

COMMON = """\
NPU ID                         : 2944
Chip Count                     : 2

Chip ID                        : 0
Temperature(C)                 : 45

Chip ID                        : 1
Temperature(C)                 : NA

Chip Name                      : mcu
Temperature(C)                 : 48
NPU Real-time Power(W)         : 42.8
"""

ECC = """\
NPU ID                                   : 1
Chip Count                               : 1

DDR Single Bit Error Count               : 0
HBM Single Bit Error Count               : 4
HBM Double Bit Error Count               : {double}
HBM Double Bit Isolated Pages Count      : {isolated}
Chip ID                                  : 0
"""

MAP_A3 = """\
\tNPU ID                         Chip ID                        Chip Logic ID              Chip Phy-ID    Chip Name
\t0                              0                              0                          0              Ascend910
\t0                              1                              1                          1              Ascend910
\t0                              2                              -                          -              Mcu
"""
