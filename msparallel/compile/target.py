"""This process as one rank of an Ascend job that has no devices.

In: a rank and the number of ranks; a network and its inputs. Out: the compiled graph and the engine's layouts and
strategies as files. One process compiles one rank: MindSpore's registrations and context last as long as the process.

>>> target = SimulatedAscend(rank=5, world_size=8)
>>> step, inputs = ...  # built now: parameters need a device that exists
>>> compiled = target.compile(step, *inputs)
>>> target.export_graph(compiled, folder)
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.communication as communication
from mindspore import Tensor, context, nn
from mindspore.communication import _comm_helper, management
from mindspore.graph.api import _cell_graph_executor
from mindspore.parallel import _utils as parallel_utils

from msparallel.compile.graph import CONSTANTS_FILE, GRAPH_FILE, GROUPS_FILE
from msparallel.compile.library import simulated_target
from msparallel.errors import RunError

WORLD = "hccl_world_group"


class SimulatedAscend:
    """Registers the target and answers MindSpore's questions about groups.

    Args:
        rank, world_size: whom this process plays.
    """

    def __init__(self, *, rank: int, world_size: int):
        self._groups: dict[str, list[int]] = {}
        self._world_size = world_size
        os.environ.update(RANK_ID=str(rank), RANK_SIZE=str(world_size), MS_DEV_PRECOMPILE_ONLY="1")
        self._library = _loaded(simulated_target().path())
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device("CPU")
        self._library.msparallel_register_groups()
        _comm_helper._hccl_test = _comm_helper._is_initialized = lambda: True
        _comm_helper.hccl = self._queries()
        _comm_helper.GlobalComm.INITED = True
        _comm_helper.GlobalComm.BACKEND = _comm_helper.Backend("hccl")
        _comm_helper.GlobalComm.WORLD_COMM_GROUP = WORLD
        management.create_group = communication.create_group = self._create_group
        # Weights are never read here, so nothing is drawn and no memory taken for them.
        parallel_utils._slice_parameter = _mark_as_sliced
        parallel_utils._init_optimizer_state = _leave_undrawn

    def compile(self, network: nn.Cell, *inputs: Tensor) -> str:
        """Work out the network for this rank; returns the name of the compilation.

        Raises what MindSpore raises where the network cannot be cut as asked.
        """
        self._library.msparallel_register_target()
        context._context()._context_handle.set_device_target_inner("Ascend")
        return _cell_graph_executor.compile(network, *inputs, phase="train")[0]

    def export_graph(self, phase: str, folder: Path) -> None:
        """Write the graph as `graph.GraphFiles` reads it. Raises RunError where it cannot be written."""
        files = [os.fsencode(folder / name) for name in (GRAPH_FILE, CONSTANTS_FILE)]
        code = self._library.msparallel_export_graph(phase.encode(), *files)
        if code:
            reason = "MindSpore holds no graph of that name" if code == 1 else "its files could not be written"
            raise RunError(f"{folder}\n  The compiled graph was not exported: {reason}.")
        world = {WORLD: list(range(self._world_size))}
        (folder / GROUPS_FILE).write_text(json.dumps(world | self._groups), encoding="utf-8")

    def strategies(self, network: nn.Cell) -> dict[str, list[list[int]]]:
        """Operator -> strategy of each of its inputs, as the engine used them."""
        found: dict[str, Any] = _cell_graph_executor._get_shard_strategy(network)
        return {name: [list(dims) for dims in strategy] for name, strategy in found.items()}

    def _create_group(self, group: str, rank_ids: list[int], options: object = None) -> None:
        array = (ctypes.c_uint * len(rank_ids))(*rank_ids)
        self._groups[group] = list(rank_ids)
        self._library.msparallel_create_group(group.encode(), len(rank_ids), array)

    def _queries(self) -> type:
        """What MindSpore's Python collectives ask. Without answers every group looks as large as the world, and
        AllGather and ReduceScatter infer wrong shapes."""
        library, create = self._library, self._create_group

        class Queries:
            get_rank_size = staticmethod(lambda group=WORLD: library.msparallel_group_size(group.encode()))
            get_rank_id = staticmethod(lambda group=WORLD: library.msparallel_group_rank(group.encode()))
            create_group = staticmethod(lambda group, number, ranks: create(group, ranks))

        return Queries


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise RunError(
            f"{path}\n  The library of the simulated target cannot be loaded: {error}. Remove the file; it is built "
            "again when it is needed."
        ) from None


def _mark_as_sliced(parameter: ms.Parameter, phase: str, layout: Any) -> None:
    parameter.sliced = True


def _leave_undrawn(parameter: ms.Parameter, phase: str) -> None:
    return None
