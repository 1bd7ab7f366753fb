"""`Comparison`: the small all-reduce in which the ranks of a channel compare what they call."""

from typing import TYPE_CHECKING

import numpy as np

from hpccoll import agreement, selection
from hpccoll._plans import Plan
from hpccoll.errors import MismatchError
from hpccoll.ops import OPERATIONS
from hpccoll.pattern import ALLREDUCE
from hpccoll.selection import Settings
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.channel import Channel


class Comparison:
    """Compares the calls of a channel's ranks, as `hpccoll.agreement` says.

    Parameters
    ----------
    channel : Channel
        Whose calls.

    Attributes
    ----------
    text : str
        What is being compared; empty when nothing is.
    """

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._plan: Plan | None = None
        self._numbers = np.zeros(2, np.uint64)
        self.text = ""

    def run(self, settings: Settings, call: str, text: str) -> None:
        """Raise on all ranks where they call different things; see `Channel.compare`."""
        channel = self._channel
        limit = channel.limit(settings)
        with channel.turn:
            channel.settle(limit)
            if self._plan is not None and not self._plan.usable:
                self.free()
            if self._plan is None:
                self._plan = self._make_plan(call)
            address = self._numbers.ctypes.data
            number = channel.clock.number + 1
            self._numbers[:] = mine = agreement.fingerprint(text, number)
            self.text = text
            try:
                channel.execute(self._plan, address, address, limit)
            finally:
                self.text = ""
            if not np.array_equal(mine, self._numbers):
                raise self.mismatch(call, text, number)

    def _make_plan(self, call: str) -> Plan:
        """Return the plan of an all-reduce of the two numbers, in place."""
        channel = self._channel
        self._numbers = np.zeros(2, np.uint64)  # a plan that failed may still use the former ones
        reduction = channel.reduction(OPERATIONS["max"], self._numbers.dtype)
        algorithm = selection.choose(
            Settings(),
            "",
            topology=channel.topology,
            nbytes=self._numbers.nbytes,
            count=self._numbers.size,
            through_memory=channel.through_memory(reduction, ALLREDUCE),
        )
        task = Task(
            call, algorithm, "max", reduction, self._numbers.size, None, channel.topology,
            is_comparison=True,
        )  # fmt: skip
        address = self._numbers.ctypes.data
        return channel.make_plan(task, address, address)

    def mismatch(self, call: str, text: str, number: int) -> MismatchError:
        """Return the error of ranks that call different things. Collective.

        Parameters
        ----------
        call : str
            For messages: the call that the user made.
        text : str
            What is called here.
        number : int
            Of the call.
        """
        told = self._channel.transport.gather_texts(f"{text} (call {number} on this communicator)")
        return agreement.mismatch(call, told)

    def free(self) -> None:
        """Free the plan; the next comparison makes a new one."""
        if self._plan is not None:
            self._plan.free()
            self._plan = None
