"""Rank tables as types: which device, of which server, has which rank.

In: what `read_table.py` reads or `make_table.py` makes. Out: the same as values, and as JSON that HCCL takes. Three
versions: 1.0 (Ascend 910 and A2: servers with devices), 1.2 (A3: the same, and super pods), 2.0 (A5: ranks with the
levels of the network they are on).

>>> table = RankTable(version="1.0", servers=(Server(server_id="node_0", devices=(Device(rank_id=0, device_id=0),)),))
>>> table.to_json()["server_list"][0]["device"]
[{'device_id': '0', 'rank_id': '0'}]

Source of the fields: CANN's HCCL user guide, "Rank Table Configuration", for A2, A3 and Ascend 950; MindCluster's
hccl.json file description.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PLACEHOLDERS = ("", "-.-.-.-", "0.0.0.0", "reserve")
"""What tools write where a device has no address."""


@dataclass(frozen=True)
class Place:
    """Where something stands in a file: dotted path, and the line of each of its fields; '' is the whole.

    Attributes:
        file: empty for the table's own; in a table that was merged, the one of these that it came from.
    """

    key: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    file: str = ""

    def __str__(self) -> str:
        return f"{self.key} of {self.file}" if self.file else self.key


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device of a server, as versions 1.0 and 1.2 have it.

    Attributes:
        rank_id: global, from 0.
        device_id: physical, in its server: the N of /dev/davinciN.
        device_ip: of its network card; None or a placeholder where there is none.
        super_device_id: its number in the super pod (SDID of `npu-smi info -t spod-info`); 1.2 only.
        more: other fields as they were written.
    """

    rank_id: int
    device_id: int
    device_ip: str | None = None
    super_device_id: int | None = None
    more: dict[str, Any] = field(default_factory=dict)
    place: Place = field(default=Place(), compare=False)

    @property
    def address(self) -> str | None:
        """device_ip, None for a placeholder."""
        return None if self.device_ip is None or self.device_ip.strip() in PLACEHOLDERS else self.device_ip.strip()


@dataclass(frozen=True, kw_only=True)
class Server:
    """Attributes:
    server_id: unique name or address.
    host_ip: of the server itself.
    more: other fields as they were written (container_ip, hardware_type, ...).
    """

    server_id: str
    devices: tuple[Device, ...]
    host_ip: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, kw_only=True)
class SuperPod:
    """Servers that HCCS joins, by their server_id."""

    super_pod_id: str
    server_ids: tuple[str, ...]
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Address:
    """An address of a rank on one level; `addr_type` is EID, IPV4 or IPV6; `ports` are die/port."""

    addr_type: str
    addr: str
    ports: tuple[str, ...] = ()
    plane_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level of the network: 0 inside a server, higher ones farther away."""

    net_layer: int
    net_instance_id: str
    net_type: str
    net_attr: str
    addresses: tuple[Address, ...]
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank, as version 2.0 has it."""

    rank_id: int
    local_id: int
    device_id: int
    levels: tuple[Level, ...]
    more: dict[str, Any] = field(default_factory=dict)
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """Attributes:
    servers, super_pods: of 1.0 and 1.2.
    ranks: of 2.0.
    count: server_count or rank_count as it was written; None where it is left out.
    clusters: server_ids of each cluster in cluster_list; empty where there is none.
    form: "servers", "ranks", or "groups" for the old group_list.
    detour: of 2.0: "true" where traffic may take a way around; None where it is not said.
    file: where it was read from.
    """

    version: str | None
    status: str = "completed"
    servers: tuple[Server, ...] = ()
    super_pods: tuple[SuperPod, ...] = ()
    ranks: tuple[Rank, ...] = ()
    count: int | None = None
    clusters: tuple[SuperPod, ...] = ()
    form: str = "servers"
    detour: str | None = None
    file: str = ""
    place: Place = field(default=Place(), compare=False)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks) if self.form == "ranks" else sum(len(server.devices) for server in self.servers)

    def devices(self) -> Iterator[tuple[Server, Device]]:
        """Of 1.0 and 1.2, in the order of the file."""
        return ((server, device) for server in self.servers for device in server.devices)

    def to_json(self) -> dict[str, Any]:
        """What HCCL reads: in 1.0 and 1.2 every value is text, in 2.0 counts and ids are numbers."""
        if self.form == "ranks":
            detour = {} if self.detour is None else {"detour": self.detour}
            return {"status": self.status, "version": self.version, **detour, "rank_count": len(self.ranks),
                    "rank_list": [_rank_json(rank) for rank in self.ranks]}  # fmt: skip
        document: dict[str, Any] = {
            "status": self.status, "version": self.version, "server_count": str(len(self.servers)),
            "server_list": [_server_json(server) for server in self.servers],
        }  # fmt: skip
        if self.super_pods:
            document["super_pod_list"] = [
                {"super_pod_id": pod.super_pod_id, "server_list": [{"server_id": name} for name in pod.server_ids]}
                for pod in self.super_pods
            ]
        return document


def _server_json(server: Server) -> dict[str, Any]:
    host = {} if server.host_ip is None else {"host_ip": server.host_ip}
    devices = []
    for device in server.devices:
        ip = {} if device.device_ip is None else {"device_ip": device.device_ip}
        pod = {} if device.super_device_id is None else {"super_device_id": str(device.super_device_id)}
        devices.append({"device_id": str(device.device_id), **ip, **pod, **device.more, "rank_id": str(device.rank_id)})
    return {"server_id": server.server_id, **host, **server.more, "device": devices}


def _rank_json(rank: Rank) -> dict[str, Any]:
    levels = [
        {"net_layer": level.net_layer, "net_instance_id": level.net_instance_id, "net_type": level.net_type,
         "net_attr": level.net_attr, "rank_addr_list": [_address_json(address) for address in level.addresses]}
        for level in rank.levels
    ]  # fmt: skip
    return {"rank_id": rank.rank_id, "local_id": rank.local_id, "device_id": rank.device_id, **rank.more,
            "level_list": levels}  # fmt: skip


def _address_json(address: Address) -> dict[str, Any]:
    plane = {} if address.plane_id is None else {"plane_id": address.plane_id}
    return {"addr_type": address.addr_type, "addr": address.addr, "ports": list(address.ports), **plane}
