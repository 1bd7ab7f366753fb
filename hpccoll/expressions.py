"""Expressions that stand for the elements of a vector: ``(x0 + x1) + x2``, and what they tell."""

from hpccoll.chunks import Range


class Expressions:
    """Expressions over the contributions of `size` ranks, each kept once.

    An expression is a number: equal numbers, equal expressions. Number r below `size` is the bare
    contribution of rank r.
    """

    def __init__(self, size: int) -> None:
        self.operands: list[tuple[int, int] | None] = [None] * size
        self.ranks = [1 << rank for rank in range(size)]
        """Bit r is set where rank r contributes."""
        self.order: list[Range | None] = [Range(rank, rank + 1) for rank in range(size)]
        """The ranks from left to right, where they are consecutive; else None."""
        self.shape = list(range(size))
        """Equal shapes: equal expressions but for swapped operands, so equal bits."""
        self.depth = [0] * size
        """Operations on the longest way from the result to a contribution."""
        self._numbers: dict[tuple[int, int], int] = {}
        self._shapes: dict[tuple[int, int], int] = {}

    def join(self, left: int, right: int) -> int:
        """Return the expression ``left + right``."""
        number = self._numbers.get((left, right))
        if number is None:
            number = self._numbers[left, right] = len(self.operands)
            self.operands.append((left, right))
            self.ranks.append(self.ranks[left] | self.ranks[right])
            before, after = self.order[left], self.order[right]
            if before and after and before.stop == after.start:
                self.order.append(Range(before.start, after.stop))
            else:
                self.order.append(None)
            first, second = sorted((self.shape[left], self.shape[right]))
            self.shape.append(self._shapes.setdefault((first, second), number))
            self.depth.append(max(self.depth[left], self.depth[right]) + 1)
        return number

    def text(self, number: int) -> str:
        """Write an expression out: ``(x0 + x1) + x2``."""
        texts: dict[int, str] = {}
        todo = [number]
        while todo:  # no recursion: naive_root nests as deep as there are ranks
            pair = self.operands[todo[-1]]
            missing = [part for part in pair or () if part not in texts]
            if missing:
                todo += missing
            elif pair is None:
                rank = todo.pop()
                texts[rank] = f"x{rank}"
            else:
                sides = [
                    texts[part] if self.depth[part] == 0 else f"({texts[part]})" for part in pair
                ]
                texts[todo.pop()] = " + ".join(sides)
        return texts[number]
