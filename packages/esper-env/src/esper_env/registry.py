"""Named things that users may add to: tasks, hosts, blueprints, reward presets."""

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """A mapping from names to items, with one clear error for an unknown or a taken name.

    Args:
        kind: What the items are, for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, Item] = {}

    def register(self, name: str, item: Item) -> Item:
        """Add an item under a name that is not taken yet."""
        if name in self._items:
            raise ValueError(f"{self.kind} {name!r} is registered already")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> Item:
        if name not in self._items:
            known = ", ".join(sorted(self._items))
            raise ValueError(f"unknown {self.kind} {name!r}; known: {known}")
        return self._items[name]

    def name_of(self, item: Item) -> str:
        """The name that an item is registered under."""
        for name, registered in self._items.items():
            if registered is item:
                return name
        raise ValueError(f"{self.kind} {item!r} is not registered")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
