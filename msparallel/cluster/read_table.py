"""A rank table file -> RankTable.

In: a path. The file may come from anywhere: it is bounded in size, depth and count, and every shape it can have ends in
a table or in problems with file and line. Out: a RankTable; what its values mean is for `check_table.py`.

>>> read_rank_table("hccl.json").size  # doctest: +SKIP
8
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msparallel.cluster.json_lines import Node, decode, parse, read_bytes
from msparallel.cluster.rank_table import (
    Address,
    Device,
    Level,
    Place,
    Rank,
    RankTable,
    Server,
    SuperPod,
)
from msparallel.errors import Problem, RecipeError, short

MOST_RANKS = 65_536
"""Most that HCCL takes in a 2.0 table."""
_MOST_PROBLEMS = 20

OTHERS = {
    "server_group_list": "a global rank table of ClusterD, for MindIE: each of its groups counts ranks anew, and HCCL "
    "does not read it. Check the hccl.json of one job instead",
    "prefill_device_list": "a table of vLLM's llmdatadist (prefill and decode devices): it has no rank_id, and HCCL "
    "does not read it. HCCL's own table has server_list",
    "decode_device_list": "a table of vLLM's llmdatadist (prefill and decode devices): it has no rank_id, and HCCL "
    "does not read it. HCCL's own table has server_list",
}
"""Key of a file that is a table of something else -> what it is."""


def read_rank_table(path: str | Path) -> RankTable:
    """Raises RecipeError with every problem of the file's shape."""
    file = str(path)
    return table_of(parse(decode(read_bytes(path), file), file), file)


def table_of(document: Node, file: str) -> RankTable:
    """A parsed file as a table. Raises RecipeError."""
    reader = _Shape(file)
    return reader.whole(reader.table(document))


def read_rootinfo(path: str | Path) -> RankTable:
    """A host's /etc/hccl_rootinfo.json (A5): a 2.0 table of its devices without status and rank_id, which count here
    through the list. Raises RecipeError with every problem of the file's shape.

    Source: MindCluster's `mindcluster-tools rootinfo` writes it; HCCL (rank_info_detect_client) reads version,
    topo_file_path, rank_count, rank_list and detour of it.
    """
    file = str(path)
    reader = _Shape(file)
    return reader.whole(reader.rootinfo(parse(decode(read_bytes(path), file), file)))


class _Shape:
    """Reads values of the expected types and notes what is not."""

    def __init__(self, file: str):
        self.file, self.numbers_are_text = file, True
        self.problems: list[Problem] = []
        self.no_objects: set[str] = set()

    def whole(self, table: RankTable) -> RankTable:
        """The table, or RecipeError."""
        if self.problems:
            raise RecipeError(self.problems[:_MOST_PROBLEMS])
        return table

    def rootinfo(self, node: Node) -> RankTable:
        root, place = self._object(node, ""), _place("", node)
        if not self.problems and ("server_list" in root or "rank_list" not in root):
            self._note("rank_list", node.line, None, "other_format",
                       "This is no /etc/hccl_rootinfo.json of an A5 host: that has version 2.0 and a rank_list. "
                       "MindCluster's tool writes it: mindcluster-tools rootinfo --output /etc/hccl_rootinfo.json")
        self.numbers_are_text = False
        ranks = tuple(self._rank(item, key, number)
                      for number, (key, item) in enumerate(self._list(root, "rank_list", place, need=False)))
        return RankTable(version=self._text(root, "version", place), ranks=ranks, form="ranks", file=self.file,
                         place=place, count=self._number(root, "rank_count", place),
                         detour=self._text(root, "detour", place, need=False))  # fmt: skip

    def table(self, node: Node) -> RankTable:
        root = self._object(node, "")
        place = _place("", node)
        for key, what in OTHERS.items():
            if key in root:
                self._note(key, root[key].line, None, "other_format", f"This is {what}.")
                return RankTable(version=None)
        version = self._text(root, "version", place, need="rank_list" in root or "server_list" in root)
        status = self._text(root, "status", place) or ""
        if "group_list" in root:
            return RankTable(version=version, status=status, servers=self._groups(root, place), form="groups",
                             file=self.file, place=place)  # fmt: skip
        if "rank_list" in root:
            self.numbers_are_text = False
            ranks = tuple(self._rank(item, key) for key, item in self._list(root, "rank_list", place))
            return RankTable(version=version, status=status, ranks=ranks, form="ranks", file=self.file, place=place,
                             count=self._number(root, "rank_count", place),
                             detour=self._text(root, "detour", place, need=False))  # fmt: skip
        if "server_list" not in root:
            if self.problems:
                return RankTable(version=None)
            self._note("server_list", node.line, None, "missing",
                       "A rank table has server_list (versions 1.0 and 1.2) or rank_list (2.0); this file has neither.")
            return RankTable(version=None)
        servers = tuple(self._server(item, key) for key, item in self._list(root, "server_list", place))
        return RankTable(
            version=version, status=status, servers=servers, file=self.file, place=place,
            count=self._number(root, "server_count", place, need=False),
            super_pods=self._pods(root, "super_pod_list", "super_pod_id", place),
            clusters=self._pods(root, "cluster_list", "cluster_id", place),
        )  # fmt: skip

    def _server(self, node: Node, key: str) -> Server:
        fields, place = self._object(node, key), _place(key, node)
        devices = tuple(self._device(item, where) for where, item in self._list(fields, "device", place))
        return Server(server_id=self._text(fields, "server_id", place) or "", devices=devices, place=place,
                      host_ip=self._text(fields, "host_ip", place, need=False),
                      more=self._more(fields, place, "server_id", "host_ip", "device"))  # fmt: skip

    def _device(self, node: Node, key: str) -> Device:
        fields, place = self._object(node, key), _place(key, node)
        return Device(
            rank_id=self._count(fields, "rank_id", place), device_id=self._count(fields, "device_id", place),
            device_ip=self._text(fields, "device_ip", place, need=False),
            super_device_id=self._number(fields, "super_device_id", place, need=False), place=place,
            more=self._more(fields, place, "rank_id", "device_id", "device_ip", "super_device_id"),
        )  # fmt: skip

    def _pods(self, root: dict[str, Node], name: str, id_name: str, place: Place) -> tuple[SuperPod, ...]:
        found = []
        for key, item in self._list(root, name, place, need=False):
            fields, where = self._object(item, key), _place(key, item)
            names = [self._text(self._object(server, at), "server_id", _place(at, server)) or ""
                     for at, server in self._list(fields, "server_list", where)]  # fmt: skip
            found.append(SuperPod(super_pod_id=self._text(fields, id_name, where) or "", server_ids=tuple(names),
                                  place=where))  # fmt: skip
        return tuple(found)

    def _groups(self, root: dict[str, Node], place: Place) -> tuple[Server, ...]:
        """The old form: instances of a group, each with a rank, a server and its devices."""
        servers: dict[str, list[Device]] = {}
        places: dict[str, Place] = {}
        for group_key, group in self._list(root, "group_list", place):
            fields = self._object(group, group_key)
            for key, item in self._list(fields, "instance_list", _place(group_key, group)):
                instance, where = self._object(item, key), _place(key, item)
                name = self._text(instance, "server_id", where) or ""
                places.setdefault(name, where)
                rank = self._count(instance, "rank_id", where)
                for at, device in self._list(instance, "devices", where):
                    inner = _place(at, device)
                    read = self._object(device, at)
                    servers.setdefault(name, []).append(Device(
                        rank_id=rank, device_id=self._count(read, "device_id", inner), place=Place(at, inner.lines),
                        device_ip=self._text(read, "device_ip", inner, need=False)))  # fmt: skip
        return tuple(Server(server_id=name, devices=tuple(devices), place=places[name])
                     for name, devices in servers.items())  # fmt: skip

    def _rank(self, node: Node, key: str, number: int | None = None) -> Rank:
        """`number` is the rank_id where the file has none."""
        fields, place = self._object(node, key), _place(key, node)
        levels = tuple(self._level(item, at) for at, item in self._list(fields, "level_list", place))
        known = ("rank_id", "local_id", "device_id", "level_list")
        rank_id = self._count(fields, "rank_id", place) if number is None else number
        return Rank(rank_id=rank_id, local_id=self._count(fields, "local_id", place),
                    device_id=self._count(fields, "device_id", place), levels=levels, place=place,
                    more={name: plain(item) for name, item in fields.items() if name not in known})  # fmt: skip

    def _level(self, node: Node, key: str) -> Level:
        fields, place = self._object(node, key), _place(key, node)
        addresses = []
        for at, item in self._list(fields, "rank_addr_list", place):
            read, where = self._object(item, at), _place(at, item)
            ports = []
            for _, port in self._list(read, "ports", where, need=False):
                if not isinstance(port.value, str):
                    self._note(f"{at}.ports", port.line, plain(port), "type", 'A port is text, for example "0/1".')
                ports.append(str(port.value))
            addresses.append(Address(addr_type=self._text(read, "addr_type", where) or "", ports=tuple(ports),
                                     addr=self._text(read, "addr", where) or "",
                                     plane_id=self._text(read, "plane_id", where, need=False)))  # fmt: skip
        return Level(net_layer=self._count(fields, "net_layer", place), addresses=tuple(addresses), place=place,
                     net_instance_id=self._text(fields, "net_instance_id", place) or "",
                     net_type=self._text(fields, "net_type", place, need=False) or "CLOS",
                     net_attr=self._text(fields, "net_attr", place, need=False) or "")  # fmt: skip

    def _more(self, fields: dict[str, Node], place: Place, *known: str) -> dict[str, Any]:
        """Other fields: what is no list and no object is text here too."""
        return {name: plain(node) if isinstance(node.value, (dict, list)) else self._text(fields, name, place) or ""
                for name, node in fields.items() if name not in known}  # fmt: skip

    def _object(self, node: Node, key: str) -> dict[str, Node]:
        if isinstance(node.value, dict):
            return node.value
        self.no_objects.add(key)
        self._note(key or "file", node.line, plain(node), "type", f"Expected an object {{...}}, found {_kind(node)}.")
        return {}

    def _list(self, fields: dict[str, Node], name: str, place: Place, need: bool = True) -> list[tuple[str, Node]]:
        key = f"{place.key}.{name}".lstrip(".")
        node = fields.get(name)
        if node is None:
            if need:
                self._missing(key, place)
            return []
        if not isinstance(node.value, list):
            self._note(key, node.line, plain(node), "type", f"Expected a list [...], found {_kind(node)}.")
            return []
        if len(node.value) > MOST_RANKS:
            self._note(key, node.line, None, "size", f"{len(node.value):,} elements; HCCL takes up to {MOST_RANKS:,}.")
            return []
        return [(f"{key}[{number}]", item) for number, item in enumerate(node.value)]

    def _text(self, fields: dict[str, Node], name: str, place: Place, need: bool = True) -> str | None:
        node = self._get(fields, name, place, need)
        if node is None or isinstance(node.value, str):
            return None if node is None else node.value
        value = plain(node)
        self._note(f"{place.key}.{name}".lstrip("."), node.line, value, "type",
                   f'{name} is text in double quotes, found {_kind(node)}. Write "{short(value, 40)}".'
                   if isinstance(value, int) else f"{name} is text in double quotes, found {_kind(node)}.")  # fmt: skip
        return None

    def _count(self, fields: dict[str, Node], name: str, place: Place) -> int:
        return self._number(fields, name, place) or 0

    def _number(self, fields: dict[str, Node], name: str, place: Place, need: bool = True) -> int | None:
        """A whole number from 0, written as this version writes numbers."""
        node = self._get(fields, name, place, need)
        if node is None:
            return None
        key, value = f"{place.key}.{name}".lstrip("."), node.value
        if self.numbers_are_text:
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
                return int(value)
            if isinstance(value, int) and not isinstance(value, bool):
                self._note(key, node.line, value, "type",
                           f'In versions 1.0 and 1.2 numbers are text too. Write "{value}".')  # fmt: skip
                return None
            self._note(key, node.line, plain(node), "type",
                       f'{name} is a whole number from 0, as text, for example "0".')  # fmt: skip
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self._note(key, node.line, plain(node), "type",
                   f"In version 2.0 {name} is a whole number from 0, without quotes, for example 0.")  # fmt: skip
        return None

    def _get(self, fields: dict[str, Node], name: str, place: Place, need: bool) -> Node | None:
        if name not in fields and need:
            self._missing(f"{place.key}.{name}".lstrip("."), place)
        return fields.get(name)

    def _missing(self, key: str, place: Place) -> None:
        if place.key in self.no_objects:
            return
        name = key.rpartition(".")[2]
        self._note(key, place.lines.get(""), None, "missing", f"{name} is missing here; HCCL needs it.")

    def _note(self, key: str, line: int | None, value: Any, rule: str, message: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(key=key, value=value, rule=rule, message=message, file=self.file, line=line))


def _place(key: str, node: Node) -> Place:
    inner = node.value.items() if isinstance(node.value, dict) else ()
    return Place(key, {"": node.line, **{name: item.line for name, item in inner}})


def _kind(node: Node) -> str:
    value = node.value
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}
    return names.get(type(value), "null")


def plain(node: Node) -> Any:
    """A node without lines."""
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value
