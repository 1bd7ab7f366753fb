"""Which ranks share a node. Data only: `hpccoll.placement` finds out, and tests make it up.

A node is a set of ranks that share memory. Its ranks need not be neighbours: launchers also deal
ranks out to nodes in turn.
"""

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

VARIABLE = "HPCCOLL_NODES"
"""The environment variable that says which ranks of MPI.COMM_WORLD share a node."""

_NUMBER = re.compile(r"[0-9]{1,9}")

MOST_SIZES = 4
"""A text lists the sizes of no more nodes than this."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The node of each rank.

    Attributes
    ----------
    nodes : tuple of int
        One node number per rank. Nodes are numbered from 0 in the order in which the ranks meet
        them; `of_labels` numbers whatever else tells nodes apart.

    Examples
    --------
    >>> topology = Topology((0, 0, 1, 0))
    >>> topology.members(0), topology.local(3), topology.text()
    ((0, 1, 3), 2, '2 nodes of 3 and 1 ranks')
    """

    nodes: tuple[int, ...]
    _members: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _locals: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Group the ranks by node."""
        groups: list[list[int]] = []
        local = []
        for rank, node in enumerate(self.nodes):
            if not 0 <= node <= len(groups):
                raise ValueError(
                    f"rank {rank} is on node {node}, and nodes are numbered as ranks meet them: "
                    f"wanted 0 to {len(groups)}"
                )
            if node == len(groups):
                groups.append([])
            local.append(len(groups[node]))
            groups[node].append(rank)
        if not groups:
            raise ValueError("a topology needs at least one rank")
        object.__setattr__(self, "_members", tuple(map(tuple, groups)))
        object.__setattr__(self, "_locals", tuple(local))

    @classmethod
    def of_labels(cls, labels: Iterable[Hashable]) -> "Topology":
        """Return the topology of ranks that share a node where their labels are equal.

        Examples
        --------
        >>> Topology.of_labels(["b", "a", "b"]).nodes
        (0, 1, 0)
        """
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(label, len(numbers)) for label in labels))

    @classmethod
    def one_node(cls, size: int) -> "Topology":
        """Return the topology of `size` ranks on one node."""
        return cls((0,) * size)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self._members)

    @property
    def smallest(self) -> int:
        """Number of ranks on the node that has fewest."""
        return min(map(len, self._members))

    @property
    def largest(self) -> int:
        """Number of ranks on the node that has most."""
        return max(map(len, self._members))

    @property
    def is_one_node(self) -> bool:
        """Whether all ranks share one node."""
        return self.node_count == 1

    @property
    def in_rank_order(self) -> bool:
        """Whether the ranks of each node are consecutive."""
        return list(self.nodes) == sorted(self.nodes)

    def members(self, node: int) -> tuple[int, ...]:
        """Return the ranks of a node, in ascending order."""
        return self._members[node]

    def peers(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that share the node of `rank`, itself among them."""
        return self._members[self.nodes[rank]]

    def local(self, rank: int) -> int:
        """Return the place of `rank` among the ranks of its node."""
        return self._locals[rank]

    def text(self) -> str:
        """Tell how many nodes there are, and of how many ranks."""
        sizes = [len(members) for members in self._members]
        if self.smallest == self.largest:
            told = str(self.largest)
        elif len(sizes) > MOST_SIZES:
            told = f"{self.smallest} to {self.largest}"
        else:
            told = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
        return f"{_plural(len(sizes), 'node')} of {told} rank{'' if told == '1' else 's'}"


def parse(text: str, size: int, what: str = f"environment variable {VARIABLE}") -> tuple[int, ...]:
    """Read which of `size` ranks share a node.

    Parameters
    ----------
    text : str
        How many ranks each node has, where ranks fill one node after the other ("4,4"); or a node
        number for each rank ("0,1,0,1"). A text that can be read both ways holds numbers of ranks.
    size : int
        Number of ranks.
    what : str
        For messages: where the text comes from.

    Returns
    -------
    tuple of int
        A number for each rank, equal where ranks share a node.

    Raises
    ------
    ValueError
        If it cannot be read. The text says what came and what was wanted.

    Examples
    --------
    >>> parse("3,1", 4), parse("0,1,0,1", 4)
    ((0, 0, 0, 1), (0, 1, 0, 1))
    """
    parts = [part.strip() for part in text.split(",")]
    if all(map(_NUMBER.fullmatch, parts)):
        numbers = tuple(map(int, parts))
        if 0 not in numbers and sum(numbers) == size:
            return tuple(node for node, count in enumerate(numbers) for _ in range(count))
        if len(numbers) == size:
            return numbers
    message = (
        f"{what} is {text!r}; wanted, for {_plural(size, 'rank')}, how many ranks each node has, "
        f"{size} together (such as {_example(size)!r}), or a node number for each rank "
        f"(such as {','.join(str(rank % 2) for rank in range(min(size, 8)))!r}"
        f"{' and so on' if size > 8 else ''})"
    )
    raise ValueError(message)


def _example(size: int) -> str:
    return f"{size - size // 2},{size // 2}" if size > 1 else "1"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
