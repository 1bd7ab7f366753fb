"""What a simulation tells: per rank what it does, and all of it as a table."""

from dataclasses import dataclass

from hpccoll.topology import Topology


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """What one rank does.

    Attributes
    ----------
    rank, steps : int
        The rank, and how many steps it takes.
    messages_sent, messages_received : int
        One message per peer and step, whatever the number of its ranges.
    bytes_sent, bytes_received, bytes_reduced : int
        Bytes sent, received, and received to be reduced.
    bytes_sent_within : int
        Those of the bytes sent that stay on the node.
    scratch_bytes : int
        The most bytes that one step receives in order to reduce them. A run that cuts messages
        into segments needs less.
    """

    rank: int
    steps: int
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    bytes_sent_within: int
    scratch_bytes: int

    @property
    def bytes_sent_between(self) -> int:
        """Bytes sent to other nodes."""
        return self.bytes_sent - self.bytes_sent_within

    @property
    def bytes_handled(self) -> int:
        """Bytes sent and received."""
        return self.bytes_sent + self.bytes_received


@dataclass(frozen=True)
class Simulation:
    """What all ranks do, and how long it takes.

    Attributes
    ----------
    algorithm, collective : str
        Name of the algorithm, and of what it does.
    root : int
        The root, of a collective that has one; else 0.
    size, nbytes : int
        Number of ranks, and bytes of the vector.
    topology : Topology or None
        Which ranks share a node; None where this was not given and makes no difference.
    alpha, beta, gamma : float
        Seconds per message, per byte sent, per byte reduced.
    alpha_within, beta_within : float
        Instead of alpha and beta, between ranks that share a node.
    ranks : tuple of RankTraffic
        One per rank, in order.
    time : float
        Predicted seconds until the last rank has finished.
    """

    algorithm: str
    collective: str
    root: int
    size: int
    nbytes: int
    topology: Topology | None
    alpha: float
    beta: float
    gamma: float
    alpha_within: float
    beta_within: float
    ranks: tuple[RankTraffic, ...]
    time: float

    @property
    def steps(self) -> int:
        """Steps of the rank that has most."""
        return max(rank.steps for rank in self.ranks)

    @property
    def total_bytes(self) -> int:
        """Bytes sent by all ranks together."""
        return sum(rank.bytes_sent for rank in self.ranks)

    @property
    def total_bytes_within(self) -> int:
        """Bytes that stay on their node."""
        return sum(rank.bytes_sent_within for rank in self.ranks)

    @property
    def total_bytes_between(self) -> int:
        """Bytes that go from one node to another."""
        return self.total_bytes - self.total_bytes_within

    @property
    def busiest(self) -> RankTraffic:
        """The rank that sends and receives most; the lowest of those that tie."""
        return max(self.ranks, key=lambda rank: rank.bytes_handled)

    @property
    def units(self) -> tuple[float, ...]:
        """What each rank sends, in vectors: bytes sent / nbytes."""
        return tuple(self._in_vectors(rank.bytes_sent) for rank in self.ranks)

    @property
    def units_handled(self) -> tuple[float, ...]:
        """What each rank sends and receives, in vectors."""
        return tuple(self._in_vectors(rank.bytes_handled) for rank in self.ranks)

    def _in_vectors(self, nbytes: int) -> float:
        return nbytes / self.nbytes if self.nbytes else 0.0

    def _name(self) -> str:
        """Name the algorithm, and what it does where that is not to all-reduce."""
        if self.collective == "allreduce":
            return self.algorithm
        root = f" to rank {self.root}" if self.collective == "reduce" else ""
        root = f" from rank {self.root}" if self.collective == "broadcast" else root
        return f"{self.collective}{root}, {self.algorithm}"

    def __str__(self) -> str:
        """Write a table with a line per rank; of many ranks the first, the busiest, the last."""
        shown = set(range(self.size))
        if self.size > 12:
            shown = {*range(8), self.busiest.rank, self.size - 2, self.size - 1}
        split = ("within (B)", "between (B)") if self.topology else ()
        rows: list[tuple[str, ...]] = [
            (
                *("rank", "steps", "messages", "sent (B)"),
                *split,
                *("received (B)", "reduced (B)", "units sent"),
            )
        ]
        previous = -1
        for number in sorted(shown):
            if number != previous + 1:
                rows.append(("...", *[""] * (len(rows[0]) - 1)))
            previous = number
            rank = self.ranks[number]
            rows.append(
                (
                    str(number),
                    str(rank.steps),
                    str(rank.messages_sent),
                    str(rank.bytes_sent),
                    *((str(rank.bytes_sent_within), str(rank.bytes_sent_between)) if split else ()),
                    str(rank.bytes_received),
                    str(rank.bytes_reduced),
                    f"{self._in_vectors(rank.bytes_sent):.3f}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{self._name()}: {self.size} ranks, {self.nbytes} bytes, {self.steps} steps, "
            f"{self.total_bytes} bytes sent by all ranks",
            f"predicted {self.time * 1e6:.2f} us with alpha {self.alpha:.3g} s per message, "
            f"beta {self.beta:.3g} s per byte sent, gamma {self.gamma:.3g} s per byte reduced",
        ]
        if self.topology:
            lines[1:1] = [
                f"{self.topology.text()}: {self.total_bytes_within} bytes sent within nodes, "
                f"{self.total_bytes_between} between them"
            ]
            lines.append(
                f"within nodes alpha {self.alpha_within:.3g} s, beta {self.beta_within:.3g} s"
            )
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)
