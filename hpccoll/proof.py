"""What a proof tells."""

from dataclasses import dataclass, field

from hpccoll.chunks import Range
from hpccoll.expressions import Expressions


class ProofError(AssertionError):
    """A schedule does not do what its algorithm promises."""


@dataclass(frozen=True)
class Proof:
    """What the prover saw.

    Attributes
    ----------
    algorithm, collective : str
        Name of the algorithm, and of what it does.
    size, count : int
        Number of ranks and of elements.
    root : int
        The root, of a collective that has one; else 0.
    steps : int
        Steps of the rank that has most.
    messages, sent, reduced : int
        Messages, elements sent and elements reduced by all ranks together.
    scratch : int
        The most elements that a rank receives in one step in order to reduce them.
    most_ranges : int
        The most ranges in one message.
    trees : int
        Number of different expressions among the elements of the result. Operands may be swapped
        within one of them, which changes no bits.
    depth : int
        Depth of the deepest expression: how many roundings a contribution goes through.
    """

    algorithm: str
    collective: str
    size: int
    count: int
    root: int
    steps: int
    messages: int
    sent: int
    reduced: int
    scratch: int
    most_ranges: int
    trees: int
    depth: int
    _results: tuple[tuple[Range, int], ...] = field(repr=False)
    _expressions: Expressions = field(repr=False, compare=False)

    def expression(self, element: int) -> str:
        """Return how an element is worked out: at the first rank that must end with it.

        Examples
        --------
        >>> from hpccoll.prover import prove
        >>> prove("recursive_doubling", 4, 1).expression(0)
        '(x0 + x1) + (x2 + x3)'
        """
        for part, number in self._results:
            if part.start <= element < part.stop:
                return self._expressions.text(number)
        raise IndexError(f"element {element} is outside 0 to {self.count - 1}")
