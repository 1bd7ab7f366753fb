"""The functions of a fake CUDA driver, one method for each, by its C signature.

A method raises `Refused` for a result that is not 0.
"""

import ctypes
import itertools
import threading
from typing import Any, NamedTuple

from fake_cuda_memory import FakeMemory
from fake_cuda_order import Event, Order, Piece, Region, Stream

from hpccoll.cuda import driver_api as api

OUT_OF_MEMORY = 2
DEINITIALIZED = 4
NOT_FOUND = 500
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
UNKNOWN = 999

NAMES = {
    api.INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    DEINITIALIZED: b"CUDA_ERROR_DEINITIALIZED",
    api.NO_DEVICE: b"CUDA_ERROR_NO_DEVICE",
    api.INVALID_DEVICE: b"CUDA_ERROR_INVALID_DEVICE",
    api.INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    api.INVALID_HANDLE: b"CUDA_ERROR_INVALID_HANDLE",
    NOT_FOUND: b"CUDA_ERROR_NOT_FOUND",
    api.NOT_READY: b"CUDA_ERROR_NOT_READY",
    ALREADY_REGISTERED: b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    NOT_REGISTERED: b"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    801: b"CUDA_ERROR_NOT_SUPPORTED",
}

LEGACY, PER_THREAD = 1, 2


class Refused(Exception):  # noqa: N818
    """A function returns something else than 0."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Context(NamedTuple):
    """The primary context of a device."""

    device: int


class Module(NamedTuple):
    """Code that was loaded."""

    device: int
    code: bytes


class Function(NamedTuple):
    """A kernel."""

    module: Module
    name: str


def argument_bytes(name: str) -> int:
    """Return the size of the struct that a kernel of kernels/cuda takes."""
    from hpccoll.cuda import kernel_arguments as structs

    families = {
        "pair": structs.PairArguments,
        "finish": structs.FinishArguments,
        "view": structs.ViewArguments,
    }
    return ctypes.sizeof(families.get(name.partition("_")[0], structs.ManyArguments))


class FakeFunctions:
    """What the functions do.

    Parameters
    ----------
    devices : int
        How many there are.
    kernels : object
        ``ranges(name, arguments)`` and ``run(code, name, arguments, grid, block)``, as of
        host_kernels; may have ``has(code, name)`` and ``argument_bytes(name)``.
    seed : int
        Of the order in which streams go on.
    """

    def __init__(self, devices: int, kernels: Any, seed: int) -> None:
        self.devices = devices
        self.kernels = kernels
        self.order = Order(seed)
        self.memory = FakeMemory()
        self.peers = True
        """Whether devices can access each other's memory."""
        self._handles = itertools.count(0x10000, 0x10)
        self._objects: dict[int, Any] = {}
        self._contexts: dict[int, int] = {}
        self._stacks: dict[int, list[int]] = {}
        self._texts: dict[bytes, Any] = {}

    @property
    def violations(self) -> list[str]:
        """What was done that must not be."""
        return self.order.violations

    def violation(self, text: str) -> None:
        self.violations.append(text)

    # Handles and contexts

    def new(self, thing: Any) -> int:
        handle = next(self._handles)
        self._objects[handle] = thing
        return handle

    def find(self, handle: int | None, kind: type, code: int = api.INVALID_HANDLE) -> Any:
        thing = self._objects.get(handle or 0)
        if not isinstance(thing, kind):
            raise Refused(code)
        return thing

    @property
    def stack(self) -> list[int]:
        """Contexts of this thread, the current one last."""
        return self._stacks.setdefault(threading.get_ident(), [])

    @property
    def current(self) -> int:
        """The device whose context is current."""
        return self._objects[self.stack[-1]].device

    def stream_of(self, handle: int | None, device: int | None = None) -> Stream:
        """Return a stream of the current device."""
        device = self.current if device is None else device
        if handle in (None, 0, LEGACY):
            return self.order.legacy_of(device)
        if handle == PER_THREAD:
            handle = -(threading.get_ident() * self.devices + device) - 1
            if handle not in self._objects:
                name = "the default stream of a thread"
                stream = Stream(PER_THREAD, device, name, blocking=True)
                self._objects[handle] = self.order.add(stream)
        stream = self.find(handle, Stream)
        if stream.device != device:
            self.violation(f"{stream} is used while device {device} is current")
            raise Refused(api.INVALID_HANDLE)
        return stream

    def context_of(self, device: int) -> int:
        if device not in self._contexts:
            self._contexts[device] = self.new(Context(device))
        return self._contexts[device]

    # Driver and devices

    def init(self, flags: int) -> None:
        pass

    def driver_get_version(self, version: Any) -> None:
        version[0] = 13000

    def get_error_name(self, code: int, text: Any) -> None:
        self._answer_text(text, NAMES.get(code, b"CUDA_ERROR_UNKNOWN"))

    def get_error_string(self, code: int, text: Any) -> None:
        name = NAMES.get(code, b"CUDA_ERROR_UNKNOWN")
        self._answer_text(text, name.removeprefix(b"CUDA_ERROR_").lower().replace(b"_", b" "))

    def _answer_text(self, answer: Any, text: bytes) -> None:
        buffer = self._texts.setdefault(text, ctypes.create_string_buffer(text))
        answer[0] = ctypes.cast(buffer, ctypes.c_char_p)

    def device_get_count(self, count: Any) -> None:
        count[0] = self.devices

    def device_get(self, device: Any, ordinal: int) -> None:
        device[0] = self._check_device(ordinal)

    def _check_device(self, number: int) -> int:
        if not 0 <= number < self.devices:
            raise Refused(api.INVALID_DEVICE)
        return number

    def device_get_name(self, name: int, length: int, device: int) -> None:
        text = f"fake device {self._check_device(device)}".encode()[: length - 1] + b"\0"
        ctypes.memmove(name, text, len(text))

    def device_get_attribute(self, answer: Any, attribute: int, device: int) -> None:
        self._check_device(device)
        answer[0] = {
            api.ATTRIBUTE_MULTIPROCESSOR_COUNT: 4,
            api.ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            api.ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        }[attribute]

    def device_get_uuid(self, uuid: Any, device: int) -> None:
        uuid[0].data[:] = b"fake device " + self._check_device(device).to_bytes(4, "little")

    def device_can_access_peer(self, answer: Any, device: int, other: int) -> None:
        self._check_device(device), self._check_device(other)
        answer[0] = int(self.peers and device != other)

    def device_primary_ctx_retain(self, context: Any, device: int) -> None:
        context[0] = self.context_of(self._check_device(device))

    def ctx_push_current(self, context: int | None) -> None:
        self.find(context, Context, api.INVALID_CONTEXT)
        self.stack.append(context or 0)

    def ctx_pop_current(self, context: Any) -> None:
        if not self.stack:
            self.violation("a context was popped from an empty stack")
            raise Refused(api.INVALID_CONTEXT)
        context[0] = self.stack.pop()

    # Memory

    def mem_alloc(self, address: Any, nbytes: int) -> None:
        if nbytes == 0:
            raise Refused(api.INVALID_VALUE)
        address[0] = self.memory.allocate(nbytes, self.current).base

    def mem_free(self, address: int) -> None:
        region = self._own_region(address, "memory of device", api.INVALID_VALUE)
        self._end(region, "freed")
        self.memory.free(region)

    def mem_host_alloc(self, address: Any, nbytes: int, flags: int) -> None:
        if nbytes == 0:
            raise Refused(api.INVALID_VALUE)
        address[0] = self.memory.allocate_pinned(nbytes).base

    def mem_free_host(self, address: int | None) -> None:
        region = self._own_region(address or 0, "pinned", api.INVALID_VALUE)
        self._end(region, "freed")
        self.memory.free(region)

    def mem_host_register(self, address: int | None, nbytes: int, flags: int) -> None:
        if not address or nbytes == 0:
            raise Refused(api.INVALID_VALUE)
        if self.memory.register(address, nbytes) is None:
            raise Refused(ALREADY_REGISTERED)

    def mem_host_unregister(self, address: int | None) -> None:
        region = self._own_region(address or 0, "registered", NOT_REGISTERED)
        self._end(region, "unregistered")
        self.memory.unregister(region)

    def _own_region(self, address: int, name: str, code: int) -> Region:
        block = self.memory.find(address)
        if block is None or not block.is_own or not block.region.name.startswith(name):
            self.violation(f"{address:#x} is given back, and was never given out")
            raise Refused(code)
        if block.region.freed or block.base != address:
            self.violation(f"{block.region} is given back twice, or by an address inside it")
            raise Refused(code)
        return block.region

    def _end(self, region: Region, what: str) -> None:
        for text in self.order.in_use(region, 0, region.nbytes):
            self.violation(f"{region} is {what}, and {text} may still use it")
        if region.opened:
            self.violation(f"{region} is {what}, and is still open by its handle")

    def pointer_get_attribute(self, answer: int, attribute: int, address: int) -> None:
        block = self.memory.find(address)
        if block is None or block.region.freed:
            raise Refused(api.INVALID_VALUE)
        region = block.region
        if attribute == api.POINTER_MEMORY_TYPE:
            value = ctypes.c_uint(1 if region.device is None else api.MEMORY_TYPE_DEVICE)
        elif attribute == api.POINTER_DEVICE_ORDINAL:
            value = ctypes.c_int(region.device or 0)
        elif attribute == api.POINTER_BUFFER_ID:
            value = ctypes.c_uint64(region.number)
        else:
            raise Refused(api.INVALID_VALUE)
        ctypes.memmove(answer, ctypes.byref(value), ctypes.sizeof(value))

    def mem_get_address_range(self, base: Any, nbytes: Any, address: int) -> None:
        block = self.memory.find(address)
        if block is None or block.region.freed or block.region.device is None:
            raise Refused(NOT_FOUND)
        base[0], nbytes[0] = block.base, block.nbytes

    def ipc_get_mem_handle(self, handle: Any, address: int) -> None:
        block = self.memory.find(address)
        if block is None or block.region.freed or block.region.fd < 0:
            raise Refused(api.INVALID_VALUE)
        handle[0].data[:] = self.memory.export(block.region)

    def ipc_open_mem_handle(self, address: Any, handle: api.IpcHandle, flags: int) -> None:
        if flags != api.IPC_LAZY_ENABLE_PEER_ACCESS:
            raise Refused(api.INVALID_VALUE)
        block = self.memory.open(bytes(handle.data))
        if block is None:
            raise Refused(api.INVALID_HANDLE)
        if block.region.device != self.current and not self.peers:
            raise Refused(217)
        block.region.opened += 1
        address[0] = block.base

    def ipc_close_mem_handle(self, address: int) -> None:
        block = self.memory.find(address)
        if block is None or block.is_own or block.region.freed or block.base != address:
            raise Refused(api.INVALID_VALUE)
        block.region.opened -= 1
        if block.region.opened == 0:
            for text in self.order.in_use(block.region, 0, block.nbytes):
                self.violation(f"{block.region} is closed, and {text} may still use it")
            self.memory.close_peer(block)

    # Streams and events

    def stream_create(self, stream: Any, flags: int) -> None:
        stream[0] = self.add_stream(self.current, blocking=not flags & api.STREAM_NON_BLOCKING)

    def add_stream(self, device: int, *, blocking: bool) -> int:
        stream = Stream(0, device, "", blocking)
        stream.handle = self.new(stream)
        stream.name = f"stream {stream.handle:#x}"
        self.order.add(stream)
        return stream.handle

    def stream_destroy(self, stream: int | None) -> None:
        self.find(stream, Stream)
        del self._objects[stream or 0]

    def event_create(self, event: Any, flags: int) -> None:
        new = Event(0, self.current)
        new.handle = event[0] = self.new(new)

    def event_destroy(self, event: int | None) -> None:
        self.find(event, Event)
        del self._objects[event or 0]

    def event_record(self, event: int | None, stream: int | None) -> None:
        found = self.find(event, Event)
        on = self.stream_of(stream)
        if found.device != on.device:
            self.violation(f"an event of device {found.device} is recorded on {on}")
            raise Refused(api.INVALID_HANDLE)
        self.order.record(found, on)

    def stream_wait_event(self, stream: int | None, event: int | None, flags: int) -> None:
        self.order.wait(self.stream_of(stream), self.find(event, Event))

    def event_query(self, event: int | None) -> None:
        if not self.order.query(self.find(event, Event)):
            raise Refused(api.NOT_READY)

    # Work

    def memcpy_async(self, out: int, source: int, nbytes: int, stream: int | None) -> None:
        on = self.stream_of(stream)
        text = f"a copy of {nbytes} bytes"
        pieces = [
            self.piece(text, source, nbytes, writes=False),
            self.piece(text, out, nbytes, writes=True),
        ]
        if out < source + nbytes and source < out + nbytes:
            self.violation(f"{text} goes from {source:#x} to {out:#x}, which overlap")
        if None in pieces:
            return  # a violation
        self.order.submit(on, text, lambda: ctypes.memmove(out, source, nbytes), pieces)

    def piece(
        self, text: str, address: int, nbytes: int, *, writes: bool, on: int | None = None
    ) -> Piece | None:
        """Return the part of a region that an operation uses; None where it must not.

        `on` is the device of a kernel, which must be able to reach the memory.
        """
        block = self.memory.find(address)
        if block is None:
            self.violation(f"{text} uses pageable or unknown memory at {address:#x}")
            return None
        region, start = block.region, address - block.base
        if region.freed:
            self.violation(f"{text} uses {region} after it was given back")
            return None
        if start + nbytes > block.nbytes:
            self.violation(
                f"{text} uses {nbytes} bytes from byte {start} of {region}: past its end"
            )
            return None
        if on is not None and region.device not in (None, on) and block.is_own:
            self.violation(f"{text} on device {on} uses {region}, which it has not opened")
            return None
        return Piece(region, start, start + nbytes, writes)

    def module_load_data(self, module: Any, image: int | None) -> None:
        module[0] = self.new(Module(self.current, ctypes.string_at(image or 0)))

    def module_get_function(self, function: Any, module: int | None, name: bytes) -> None:
        found = self.find(module, Module)
        has = getattr(self.kernels, "has", None)
        if has and not has(found.code, name.decode()):
            raise Refused(NOT_FOUND)
        function[0] = self.new(Function(found, name.decode()))

    def launch_kernel(
        self,
        function: int | None,
        grid: int,
        grid_y: int,
        grid_z: int,
        block: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int | None,
        parameters: Any,
        extra: Any,
    ) -> None:
        kernel, on = self.find(function, Function), self.stream_of(stream)
        sizes = (grid_y, grid_z, block_y, block_z)
        if sizes != (1, 1, 1, 1) or not 0 < grid < 2**31 or not 0 < block <= 1024 or shared_bytes:
            raise Refused(api.INVALID_VALUE)
        if kernel.module.device != on.device:
            self.violation(f"{kernel.name} of device {kernel.module.device} is launched on {on}")
            raise Refused(api.INVALID_HANDLE)
        nbytes = getattr(self.kernels, "argument_bytes", argument_bytes)(kernel.name)
        arguments = ctypes.string_at(parameters[0], nbytes)
        pieces = []
        for ranges, writes in zip(
            self.kernels.ranges(kernel.name, arguments), (False, True), strict=True
        ):
            for address, nbytes in ranges:
                if nbytes:
                    pieces.append(
                        self.piece(kernel.name, address, nbytes, writes=writes, on=on.device)
                    )
        if None in pieces:
            return  # a violation
        run = self.kernels.run
        self.order.submit(
            on,
            f"kernel {kernel.name}",
            lambda: run(kernel.module.code, kernel.name, arguments, grid, block),
            pieces,
        )
