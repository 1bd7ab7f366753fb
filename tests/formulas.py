"""Reads the formulas of the registry: what they come to for a number of ranks and nodes."""

import re

from hpccoll.schedule import Fold


def letters(size: int, nodes: int = 1) -> dict[str, int]:
    """Return what the letters of `hpccoll.algorithms.LEGEND` stand for.

    `nodes` nodes of equally many ranks, `size` in all.
    """
    all_ranks, node = Fold(size), Fold(size // nodes)
    return {
        "n": 1,
        "p": size,
        "p_": all_ranks.power,
        "m": all_ranks.levels,
        "L": (size - 1).bit_length(),
        "F": int(all_ranks.extras > 0),
        "N": nodes,
        "g": size // nodes,
        "g_": node.power,
        "h": node.levels,
        "E": int(node.extras > 0),
        "G": (size // nodes - 1).bit_length(),
        "K": (nodes - 1).bit_length(),
    }


def evaluate(formula: str, size: int, nodes: int = 1) -> float:
    """Return what a formula comes to."""
    python = formula.replace("'", "_").replace(" n", "*n")
    python = re.sub(r"(\d)([A-Za-z(])", r"\1*\2", python)
    return eval(python, letters(size, nodes))


def coefficients(cost: str, size: int, nodes: int = 1) -> list[float]:
    """Return what alpha, beta and gamma are multiplied by in a cost formula, for a vector of 1."""
    terms = re.findall(r"(\S.*?) (alpha|beta|gamma)(?: \+ )?", cost)
    assert [word for _, word in terms] == ["alpha", "beta", "gamma"]
    return [evaluate(formula, size, nodes) for formula, _ in terms]
