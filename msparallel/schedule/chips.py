"""What Kubernetes calls the machines of a hardware profile.

In: a profile's chip. Out: the resource that pods ask for, the labels of its nodes, how many devices a pod may have.

MindCluster's device plugin gives every training card of the 910 family (910A, A2, A3) the one name
`huawei.com/Ascend910`; the node label `accelerator-type` tells them apart. Sources: Ascend/mind-cluster, task YAML
description (docs/zh/scheduling/06_api/15_yaml_configuration.md) and node labels (docs/en/scheduling,
preparing_for_installation); component/ascend-common/api/default_name.go.

>>> CHIPS["Ascend 910C"].resource, CHIPS["Ascend 910C"].accelerator
('huawei.com/Ascend910', 'module-a3-16-super-pod')
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "huawei.com/"
"""Of every resource of the device plugin."""
RESOURCES = (
    "huawei.com/Ascend910",
    "huawei.com/Ascend310",
    "huawei.com/Ascend310P",
    "huawei.com/Ascend310P-V",
    "huawei.com/Ascend310P-VPro",
    "huawei.com/Ascend310P-IPro",
    "huawei.com/npu",
    "huawei.com/npu-core",
)
"""Names of whole devices: training cards; 310, 310P (alone, or by card where kinds are mixed); `npu` for Atlas 350,
850 and 950 (A5). `npu-core` is for cards that are cut."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Attributes:
    resource: extended resource, one a device that MindSpore sees.
    accelerator: node label `accelerator-type`.
    ring: label `ring-controller.atlas` of jobs and pods; ascend-operator makes rank tables by it.
    alone: devices that the only pod of a job may have.
    together: devices that each of several pods may have.
    why: the rule behind the counts.
    retries: whether MindCluster starts a job again whose process failed (label fault-retry-times).
    block: devices of one SuperPoD, 0 where there is none.
    """

    resource: str
    accelerator: str
    ring: str
    alone: tuple[int, ...]
    together: tuple[int, ...]
    why: str
    retries: bool
    block: int = 0


CHIPS = {
    "Ascend 910A": Chip(
        resource="huawei.com/Ascend910", accelerator="module", ring="ascend-910", alone=(1, 2, 4, 8),
        together=(1, 2, 4, 8), why="devices 0-3 and 4-7 are two rings of HCCS and a job stays in one or takes both",
        retries=False,
    ),
    "Ascend 910B": Chip(
        resource="huawei.com/Ascend910", accelerator="module-910b-8", ring="ascend-910b", alone=tuple(range(1, 9)),
        together=tuple(range(1, 9)), why="a node has 8", retries=True,
    ),
    "Ascend 910C": Chip(
        resource="huawei.com/Ascend910", accelerator="module-a3-16-super-pod", ring="ascend-910b",
        alone=(1, 2, 4, 6, 8, 10, 12, 14, 16), together=(16,),
        why="a card is two devices, and jobs of several nodes in a SuperPoD take whole nodes", retries=False, block=768,
    ),
}  # fmt: skip
"""Chip of a hardware profile -> Chip. The SuperPoD of 48 nodes: volcano-npu's default super-pod-size."""


def super_pod_block(devices: int, chip: Chip) -> int:
    """Devices of a logical SuperPoD (annotation sp-block): the most that a SuperPoD has and that divides the job into
    equal blocks of whole nodes.

    >>> super_pod_block(1024, CHIPS["Ascend 910C"])
    512
    """
    node = chip.together[-1]
    if devices <= node:
        return devices
    return max(block for block in range(node, min(devices, chip.block) + 1, node) if devices % block == 0)
