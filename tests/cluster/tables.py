"""Rank tables as JSON, written from the format: good ones to be broken by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def a2(servers: int = 2, devices: int = 8) -> dict[str, Any]:
    """Version 1.0."""
    return {
        "status": "completed", "version": "1.0", "server_count": str(servers),
        "server_list": [
            {"server_id": f"node_{server}", "host_ip": f"192.0.2.{server + 1}", "device": [
                {"device_id": str(device), "device_ip": f"198.51.{server}.{device + 1}",
                 "rank_id": str(server * devices + device)} for device in range(devices)
            ]} for server in range(servers)
        ],
    }  # fmt: skip


def a3(servers: int = 4, devices: int = 4, pods: int = 2) -> dict[str, Any]:
    """Version 1.2: super pods of equally many servers; dies stand in for each other."""
    table = a2(servers, devices) | {"version": "1.2"}
    each = servers // pods
    for number, server in enumerate(table["server_list"]):
        for place, device in enumerate(server["device"]):
            device |= {"super_device_id": str(number % each * devices + place), "device_port": "16666",
                       "backup_device_ip": f"198.51.{number}.{(place ^ 1) + 1}", "backup_device_port": "16667",
                       "host_port": str(16665 + place)}  # fmt: skip
    table["super_pod_list"] = [
        {"super_pod_id": str(pod),
         "server_list": [{"server_id": f"node_{server}"} for server in range(pod * each, pod * each + each)]}
        for pod in range(pods)
    ]  # fmt: skip
    return table


def a5(servers: int = 2, devices: int = 2) -> dict[str, Any]:
    """Version 2.0: a level inside the server, one between servers."""
    return {
        "status": "completed", "version": "2.0", "rank_count": servers * devices,
        "rank_list": [
            {"rank_id": server * devices + device, "local_id": device, "device_id": device, "level_list": [
                {"net_layer": 0, "net_instance_id": f"node_{server}", "net_type": "TOPO_FILE_DESC", "net_attr": "",
                 "rank_addr_list": [{"addr_type": "EID", "addr": f"{server:016x}{device:016x}", "ports": ["0/1"],
                                     "plane_id": "0"}]},
                {"net_layer": 1, "net_instance_id": "cluster", "net_type": "CLOS", "net_attr": "",
                 "rank_addr_list": [{"addr_type": "IPV4", "addr": f"198.51.{server}.{device + 1}",
                                     "ports": ["1/5", "1/6"], "plane_id": "plane0"}]},
            ]} for server in range(servers) for device in range(devices)
        ],
    }  # fmt: skip


def rootinfo(server: int = 0, devices: int = 2) -> dict[str, Any]:
    """What an A5 host tells of its devices: /etc/hccl_rootinfo.json."""
    ranks = a5(server + 1, devices)["rank_list"][server * devices :]
    return {"version": "2.0", "topo_file_path": "/usr/local/Ascend/driver/topo/server_8p.json", "rank_count": devices,
            "rank_list": [{key: value for key, value in rank.items() if key != "rank_id"}
                          for rank in ranks]}  # fmt: skip


def group_list() -> dict[str, Any]:
    """The old form, template 2."""
    return {
        "status": "completed", "group_count": "1", "group_list": [
            {"group_name": "", "device_num": "2", "server_num": "1", "instance_count": "2", "instance_list": [
                {"rank_id": str(rank), "server_id": "node_0",
                 "devices": [{"device_id": str(rank), "device_ip": f"198.51.0.{rank + 1}"}]} for rank in (0, 1)
            ]},
        ],
    }  # fmt: skip


def write(folder: Path, document: Any, name: str = "hccl.json") -> Path:
    """As tools write it: a value a line."""
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=2), encoding="utf-8")
    return path
