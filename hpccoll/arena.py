"""The arena: memory of this process that its peers on the node can map.

Each process has one, made when it is first asked for. `hpccoll.empty` allocates from it; a peer
that was told its descriptor maps it, and finds any array in it by its offset. Nothing here is
collective, and nothing needs MPI.

A forked child shares the arena of its parent: it sees and changes the same arrays. It can neither
allocate nor free there, and tells nobody a descriptor.
"""

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccoll import _arena

VARIABLE = "HPCCOLL_ARENA"

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

SMALLEST = 1 << 16
"""Bytes that an arena has at least."""

ADDRESSES = 1 << 46
"""Half of the addresses of a process: what the arenas of all peers together may take."""


class Descriptor(NamedTuple):
    """What a peer needs to map an arena."""

    pid: int
    fd: int
    capacity: int
    nonce: bytes


def parse_size(text: str) -> int:
    """Turn a size such as "4G", "512M" or "65536" into bytes.

    Examples
    --------
    >>> parse_size("4G"), parse_size("1.5 m"), parse_size("65536")
    (4294967296, 1572864, 65536)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    nbytes = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if not SMALLEST <= nbytes <= ADDRESSES:
        message = (
            f"{VARIABLE} is {text!r}; wanted a number of bytes from 64K to 64T, "
            "such as 4G, 512M or 1073741824"
        )
        raise ValueError(message)
    return nbytes


def format_size(nbytes: int) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> format_size(4096), format_size(1000), format_size(3 << 29)
    ('4 KiB', '1000 bytes', '1.5 GiB')
    """
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << exponent:
            return f"{nbytes / (1 << exponent):.4g} {unit}"
    return f"{nbytes} bytes"


def total_memory() -> int:
    """Return the memory that this process may use: the machine's, or what its cgroups allow."""
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        groups = ""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *cgroup_limits(groups, Path("/sys/fs/cgroup"))])


def cgroup_limits(groups: str, root: Path) -> list[int]:
    """Return what the groups listed in /proc/self/cgroup, and those above, set as limits."""
    limits = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            # In a container the path may be the host's, and not there.
            file = folder / name
            text = file.read_text(encoding="ascii").strip() if file.is_file() else ""
            if text.isdecimal():  # and not "max"
                limits.append(int(text))
    return limits


_opening = threading.Lock()


def ensure_open() -> None:
    """Make the arena of this process, if it has none yet.

    Raises
    ------
    ValueError
        ``HPCCOLL_ARENA`` is no size.
    OSError
        The system does not give such memory.
    RuntimeError
        In a forked child.
    """
    if _arena.is_open() and not _arena.is_forked():
        return
    text = os.environ.get(VARIABLE)
    # Pages that are never touched cost nothing, so by default there is room for all that the
    # machine could hold; but not for more than all peers can map.
    most = min(total_memory(), ADDRESSES // (os.cpu_count() or 1))
    capacity = most if text is None else parse_size(text)
    with _opening:
        error = _try_to_open(capacity)
        # There may be a limit on addresses or on the size of files (ulimit -v, -f).
        while error and text is None and capacity > most >> 8:
            capacity //= 2
            error = _try_to_open(capacity)
    if error:
        message = (
            f"cannot make the arena of {format_size(capacity)} for arrays that the node shares "
            f"(memfd_create, mmap): {error.strerror}"
        )
        raise OSError(error.errno, message)


def _try_to_open(capacity: int) -> OSError | None:
    try:
        _arena.open_arena(capacity)
    except OSError as error:
        return error
    return None


def descriptor() -> Descriptor:
    """Return what a peer needs to map the arena of this process, which is made if need be."""
    ensure_open()
    return Descriptor(*_arena.descriptor())


def shortage(nbytes: int, region: int = 0) -> str:
    """Say that so many bytes do not fit, and what there is."""
    wanted = f"wanted {format_size(nbytes)} ({nbytes} bytes) of memory that the node shares"
    if _arena.is_forked():
        return f"{wanted}: a forked child process cannot allocate in the arena of its parent"
    free, largest = _arena.free_bytes(region), _arena.largest_free(region)
    total = free + _arena.used(region)
    setting = os.environ.get(VARIABLE)
    return (
        f"{wanted}; {format_size(free)} of {format_size(total)} are free, "
        f"{format_size(largest)} ({largest} bytes) of them in one piece. "
        f"The environment variable {VARIABLE} sets the size of the arena "
        f"(now {'not set' if setting is None else repr(setting)})"
    )


@dataclass
class _Peer:
    """A peer's arena, mapped here."""

    address: int
    users: int = 0


_peers: dict[tuple[int, bytes], _Peer] = {}
_peers_lock = threading.Lock()


def map_peer(peer: Descriptor) -> int:
    """Map the arena of a process on this node, and return its address here.

    The same arena is mapped once, however many ask; each `map_peer` needs an `unmap_peer`. The
    descriptor of this process gives the address of its own arena.

    Raises
    ------
    OSError
        The system refuses (another user, a container that hides its processes), or there is
        another process of that number.
    """
    peer = Descriptor(*peer)
    if peer.nonce == _arena.nonce():
        return _arena.base()
    key = peer.pid, peer.nonce
    with _peers_lock:
        if key not in _peers:
            _peers[key] = _Peer(_arena.map_peer(*peer))
        _peers[key].users += 1
        return _peers[key].address


def unmap_peer(peer: Descriptor) -> None:
    """Give up one `map_peer`; the last one unmaps."""
    peer = Descriptor(*peer)
    key = peer.pid, peer.nonce
    with _peers_lock:
        entry = _peers.get(key)
        if entry is None:
            return  # the own arena
        entry.users -= 1
        if entry.users == 0:
            del _peers[key]
            _arena.unmap_peer(entry.address, peer.capacity)


def empty_array(nbytes: int, region: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an array of so many bytes in a region, which garbage collection frees.

    Raises
    ------
    MemoryError
        It does not fit. The text says how much was wanted, and how much there is.
    """
    before = _arena.set_handler(_arena.new_handler(region))
    try:
        return np.empty(nbytes, np.uint8)
    except MemoryError:
        raise MemoryError(shortage(nbytes, region)) from None
    finally:
        _arena.set_handler(before)
