"""Ranks of a node meet on their GPUs: each opens a block of memory of each other.

They try it, by loads and by stores, before any vector goes that way; and either it works on all
ranks of the communicator, or none of them takes that way.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.cuda import outcomes
from hpccoll.cuda.device import Device
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.cuda.kernel_arguments import MOST_ARRAYS
from hpccoll.cuda.mapping import NOTHING, NUMBERS, Exports, Shown
from hpccoll.cuda.memory import device_bytes
from hpccoll.cuda.outcomes import WELL, Exchange, Outcome
from hpccoll.cuda.terms import Terms
from hpccoll.errors import CudaError
from hpccoll.selection import Settings

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site

SMALL_BYTES = 256 << 10
"""Vectors up to this size go through the blocks, in one step: to store a part of each to all ranks,
and to have all ranks wait before and after, costs more than to read all of all of them."""

HALVES = 2
"""Of a block. Calls take turns with them."""


@dataclass
class Peers:
    """What a rank and its peers on the node have of each other.

    Attributes
    ----------
    members : tuple of int
        The ranks of the communicator that are on this node, in order.
    why_not : str
        Why ranks do not reach each other's device memory; empty where they do. On all ranks, or on
        none.
    block : DeviceArray or None
        This rank's own, of `HALVES` times `SMALL_BYTES`.
    blocks : list of int
        By number on the node: where this rank finds the block of each.
    """

    members: tuple[int, ...]
    why_not: str = ""
    block: DeviceArray | None = None
    blocks: list[int] = field(default_factory=list)

    @property
    def reachable(self) -> bool:
        """Whether ranks reach each other's device memory."""
        return not self.why_not

    def close(self, device: Device) -> None:
        """Let go of the peers' blocks. Nothing may be under way in them."""
        for address in self.blocks:
            if self.block is None or address != self.block.ctypes.data:
                device.close(address)
        self.blocks.clear()


def meet(site: "Site", terms: Terms, call: str, settings: Settings) -> Peers:
    """Let the ranks of each node meet. Collective over the channel; all get the same answer.

    Parameters
    ----------
    site : Site
        Of this rank.
    terms : Terms
        What all ranks have agreed on.
    call : str
        For messages: the call that the user made.
    settings : Settings
        Of that call.
    """
    channel = site.channel
    members = channel.topology.peers(channel.rank)
    why = _ruled_out(site, terms)
    if why:
        return Peers(members, why)
    with Exchange(channel, call, settings) as exchange, site.device:
        return _Meeting(site, members, exchange).run()


def _ruled_out(site: "Site", terms: Terms) -> str:
    """Return why nothing is tried, for a reason that all ranks know."""
    topology, meeting = site.channel.topology, site.channel.meeting
    if not terms.maps:
        return "HPCCOLL_CUDA_IPC is off"
    if topology.largest == 1:
        return "every rank is alone on its node"
    if topology.largest > MOST_ARRAYS:
        return f"a node has {topology.largest} ranks, and kernels take {MOST_ARRAYS} at most"
    if not topology.is_one_node and meeting.node is None:
        return f"ranks of a node share no memory of the host: {meeting.why_not}"
    return ""


class _Meeting:
    """One attempt."""

    def __init__(self, site: "Site", members: tuple[int, ...], exchange: Exchange) -> None:
        self.site, self.members, self.exchange = site, members, exchange
        self.number = members.index(site.channel.rank)
        self.outcome = Outcome()
        self.peers = Peers(members)
        self.nonce = int.from_bytes(os.urandom(7), "little")
        # The own nonce; those that peers stored here; those that stand in the peers' blocks.
        nbytes = 8 * (1 + 2 * len(members))
        self.host = site.pinned.block("nonces", nbytes)[:nbytes].view(np.int64)

    def run(self) -> Peers:
        shown = NOTHING
        with self.outcome:
            shown = self.prepare().numbers()
        uuid = np.frombuffer(self.site.device.uuid, np.int64).tolist()
        rows = self.exchange([self.outcome.code, self.nonce, *uuid, *shown])
        codes = rows[:, 0].tolist()
        if not any(codes):
            with self.outcome:
                self.open([rows[rank].tolist() for rank in self.members])
            codes = self.exchange([self.outcome.code])[:, 0].tolist()
        if not any(codes):
            with self.outcome:
                self.look(rows[list(self.members), 1])
            codes = self.exchange([self.outcome.code])[:, 0].tolist()
        if not any(codes):
            return self.peers
        rank, code = outcomes.first_failed(codes, range(len(codes)))
        with self.outcome:  # of a context that is broken, for example
            self.peers.close(self.site.device)
        self.exchange([WELL])  # nobody has this rank's block open any more
        return Peers(self.members, f"rank {rank}: {outcomes.describe(code)}")

    def prepare(self) -> Shown:
        """Make a block with the nonce in it, and return how peers find it."""
        site = self.site
        block = self.peers.block = device_bytes(site.device, HALVES * SMALL_BYTES)
        self.host[0] = self.nonce
        self.store(block.ctypes.data)
        shown = Exports(site.device).show(block.ctypes.data, block.nbytes)
        if shown is None:
            message = "memory of this GPU cannot be shared between processes"
            raise CudaError(message)
        return shown

    def store(self, block: int) -> None:
        """Store the nonce in a block, at this rank's place."""
        self.site.queue.copy(block + 8 * self.number, self.host.ctypes.data, 8)
        self.site.queue.drain("a word in the memory of another rank's GPU")

    def open(self, rows: list[list[int]]) -> None:
        """Open the blocks of the peers, and store the nonce there."""
        device, blocks = self.site.device, self.peers.blocks
        for number, row in enumerate(rows):
            shown = Shown.of(row[-NUMBERS:])
            assert shown is not None
            if number == self.number:
                blocks.append(shown.allocation.base)
            elif can_access(device, np.array(row[2:4], np.int64).tobytes()):
                blocks.append(device.open(shown.handle))
                self.store(blocks[-1])
            else:
                self.outcome.note(CudaError("no access"), outcomes.NO_ACCESS)
                return

    def look(self, nonces: np.ndarray) -> None:
        """Look for the nonces of all peers, in the own block and in theirs."""
        queue, size = self.site.queue, len(self.members)
        assert self.peers.block is not None
        here, there = self.host[1 : 1 + size], self.host[1 + size :]
        queue.copy(here.ctypes.data, self.peers.block.ctypes.data, here.nbytes)
        for number, block in enumerate(self.peers.blocks):
            queue.copy(there[number:].ctypes.data, block + 8 * number, 8)
        queue.drain("words in the memory of other ranks' GPUs")
        if not (np.array_equal(here, nonces) and np.array_equal(there, nonces)):
            self.outcome.note(CudaError("other words"), outcomes.DIFFERENT)


def can_access(device: Device, uuid: bytes) -> bool:
    """Whether a device reaches the memory of another one.

    Of one that this process does not see it is not known, and whoever tries will be told.
    """
    if uuid == device.uuid:
        return True
    driver = device.driver
    for number in range(driver.device_count()):
        other = driver.device(number)
        if other.uuid == uuid:
            return device.can_access(other)
    return True
