"""What the ranks of a communicator agree on in their first call on device memory.

Set by environment variables, as rank 0 has them:

HPCCOLL_CUDA
    "direct" or "staged": how messages reach device memory; by default what every rank's MPI library
    is found to be able to do (`hpccoll.cuda.awareness`).
HPCCOLL_CUDA_REDUCE
    "host" or "device": where staged segments are combined; by default what is usually faster.
HPCCOLL_CUDA_IPC
    "on" or "off": whether ranks of a node reach each other's device memory; by default where that
    works.
"""

import os
import weakref
from dataclasses import dataclass

from hpccoll.channel import Channel
from hpccoll.cuda.awareness import cuda_aware
from hpccoll.jobs import gathered
from hpccoll.selection import Settings
from hpccoll.topology import Topology

CHOICES = {
    "HPCCOLL_CUDA": ("auto", "direct", "staged"),
    "HPCCOLL_CUDA_REDUCE": ("auto", "host", "device"),
    "HPCCOLL_CUDA_IPC": ("on", "off"),
}
"""By environment variable, what it can be; the first is the default."""

UNREADABLE = -1

LONG_BYTES = 1 << 20
"""Between nodes, vectors from here on are reduced by devices: hosts that send and receive at the
speed of the wire have no time to reduce as fast."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all ranks do alike.

    Attributes
    ----------
    staged : bool
        Whether messages go through pinned host memory.
    reduce : str
        "auto", "host" or "device": who combines what is staged.
    maps : bool
        Whether ranks of a node may try to map each other's device memory.
    """

    staged: bool
    reduce: str
    maps: bool

    def reduces_on_host(self, topology: Topology, nbytes: int) -> bool:
        """Whether a call of an algorithm that nobody named is staged and reduced by the host.

        Parameters
        ----------
        topology : Topology
            Of the ranks: those of one node have memory in which hosts reduce without messages.
        nbytes : int
            Of the whole vector.
        """
        if self.reduce != "auto":
            return self.reduce == "host"
        return topology.is_one_node or nbytes < LONG_BYTES


_terms: "weakref.WeakKeyDictionary[Channel, Terms]" = weakref.WeakKeyDictionary()


def agreed(channel: Channel, call: str, settings: Settings) -> Terms:
    """Return what all ranks agree on. Collective in the first call on a channel, and local later.

    They agree once, whatever devices they use: a rank may go on to another one by itself.

    Parameters
    ----------
    channel : Channel
        Of the ranks.
    call : str
        For messages: the call that the user made.
    settings : Settings
        Of that call.

    Raises
    ------
    ValueError
        On all ranks: an environment variable of rank 0 cannot be read.
    """
    known = _terms.get(channel)
    if known is not None:
        return known
    told = gathered(channel, call, settings, [_number(variable) for variable in CHOICES])
    chosen = {}
    for variable, number in zip(CHOICES, told[0], strict=True):
        if number == UNREADABLE:
            message = (
                f"environment variable {variable} of rank 0 cannot be read; wanted one of "
                f"{', '.join(CHOICES[variable])}"
            )
            raise ValueError(message)
        chosen[variable] = CHOICES[variable][number]
    staged = chosen["HPCCOLL_CUDA"] == "staged"
    if chosen["HPCCOLL_CUDA"] == "auto":
        is_able = cuda_aware().answer == "yes"
        staged = not gathered(channel, call, settings, [is_able]).all()
    terms = Terms(
        staged=staged,
        reduce=chosen["HPCCOLL_CUDA_REDUCE"],
        maps=chosen["HPCCOLL_CUDA_IPC"] == "on",
    )
    _terms[channel] = terms
    return terms


def _value(variable: str) -> str:
    return os.environ.get(variable, "").strip().lower() or CHOICES[variable][0]


def _number(variable: str) -> int:
    value = _value(variable)
    return CHOICES[variable].index(value) if value in CHOICES[variable] else UNREADABLE
