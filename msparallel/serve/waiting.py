"""The queue in front of the slots, fair between clients.

In: requests with the client that sent them. Out: the next one: clients take turns, each client's requests in order of
arrival, so that one client with a hundred requests does not keep another with one request waiting for all of them.

>>> queue = WaitingQueue()
>>> for client, request in (("a", 1), ("a", 2), ("b", 3)): queue.put(client, request)
>>> queue.pop(), queue.pop(), queue.pop()
(1, 3, 2)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingQueue(Generic[T]):
    """How many may wait is for its owner to say."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (item for waiting in list(self._of.values()) for item in list(waiting))

    def put(self, client: str, item: T) -> None:
        """At the end of the client's own."""
        self._of.setdefault(client, deque()).append(item)
        self._count += 1

    def pop(self) -> T:
        """The next; its client goes behind the others. Raises IndexError where nobody waits."""
        if not self._of:
            raise IndexError("nobody waits")
        client, waiting = next(iter(self._of.items()))
        item = waiting.popleft()
        self._of.move_to_end(client)
        if not waiting:
            del self._of[client]
        self._count -= 1
        return item

    def remove(self, item: T) -> bool:
        """Whether it was waiting."""
        for client, waiting in self._of.items():
            if item in waiting:
                waiting.remove(item)
                if not waiting:
                    del self._of[client]
                self._count -= 1
                return True
        return False
