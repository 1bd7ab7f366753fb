"""Every GPU kernel there is, as the programs and names that `Kernels` asks for."""

import functools

from operands import FLOATS, HALVES, REAL, operations_of

from hpccoll import _kernels
from hpccoll.cuda.compilation import program_text
from hpccoll.cuda.kernels import VIEW_ITEMSIZES, Kernels


class _Requests:
    """A device, and a compiler, that note which kernels are asked for."""

    arch = ""

    def __init__(self):
        self.texts = []
        self.names = []

    def compile(self, source_name, defines, arch):
        self.texts.append(program_text(source_name, defines))
        return b""

    def load_module(self, code):
        return 0

    def function(self, module, name):
        self.names.append(name)
        return 0


@functools.cache
def requested(family, *arguments):
    """Return what the kernels of a family are made of.

    Parameters
    ----------
    family : callable
        One of this module; asks a `Kernels` for them.
    *arguments
        Of the family: the name of a type, where it has one.

    Returns
    -------
    list of (text, name)
        The program of each kernel, and its name. Programs of a family may be joined to one.
    """
    requests = _Requests()
    family(Kernels(requests, requests), *arguments)
    return list(zip(requests.texts, requests.names, strict=True))


def pairs(kernels, name):
    """What reduces two arrays."""
    for op in operations_of(name):
        kernels.pair(op, name)


def trees(kernels, name):
    """What reduces many arrays."""
    for op in operations_of(name):
        kernels.many(op, name)
        kernels.many(op, name, partial=True)


def some_trees(kernels, name):
    """Those whose order matters, and one more: for each type another operation."""
    ops = operations_of(name)
    kernels.many(ops[0], name)
    kernels.many(ops[0], name, partial=True)
    kernels.many(ops[1 + _kernels.TYPES.index(name) % (len(ops) - 1)], name)


def conversions(kernels):
    """What divides, widens and narrows."""
    for name in (*FLOATS, *REAL):
        kernels.finish(name)
    for name in HALVES:
        kernels.finish(name, narrow=True)
        kernels.widen(name)


def movements(kernels):
    """What copies."""
    kernels.copy_many()
    for itemsize in VIEW_ITEMSIZES:
        kernels.view(itemsize)


SOME_TYPES = ("bool", "int16", "uint64", *FLOATS, "complex64")
"""Of every layout of elements one, and all in which sums depend on the order."""

FAMILIES = (
    *((pairs, name) for name in _kernels.TYPES),
    *((some_trees, name) for name in SOME_TYPES),
    *((trees, name) for name in _kernels.TYPES),
    (conversions,),
    (movements,),
)
"""All families, with the arguments of each."""
