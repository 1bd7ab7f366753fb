"""A CUDA device: its context, memory, streams, events and modules."""

import ctypes
import threading
from typing import TYPE_CHECKING

from hpccoll.cuda import driver_api as api
from hpccoll.errors import CudaError

if TYPE_CHECKING:
    from hpccoll.cuda.driver import Driver


class Device:
    """A device that this process sees. Made by `Driver.device`.

    A context manager: in its body the device's primary context, which it shares with all libraries
    of the process, is current on this thread; afterwards the former one is again. Bodies nest, and
    threads do not see each other's. All methods see to the context themselves, and raise
    `CudaError` where the driver refuses.

    Parameters
    ----------
    driver : Driver
        What is called.
    number : int
        Of the device, among those that this process sees.

    Attributes
    ----------
    number : int
        The same.
    name : str
        As the driver calls it.
    uuid : bytes
        Sixteen of them, which name it on all machines.
    arch : str
        What to compile for: "sm_90" for compute capability 9.0.
    multiprocessors : int
        How many it has.
    """

    def __init__(self, driver: "Driver", number: int) -> None:
        self._driver = driver
        self.number = number
        handle = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(handle), number)
        self._handle = handle.value
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, len(name), self._handle)
        self.name = name.value.decode(errors="replace")
        uuid = api.Uuid()
        driver.call("cuDeviceGetUuid", ctypes.byref(uuid), self._handle)
        self.uuid = bytes(uuid.data)
        major = self._attribute(api.ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(api.ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.arch = f"sm_{major}{minor}"
        self.multiprocessors = self._attribute(api.ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self._context = 0
        self._retaining = threading.Lock()
        # Memory that nobody has any more, each with an event behind which it can be freed.
        self._retired: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        """Return a short description."""
        return f"<CUDA device {self.number}: {self.name}, {self.arch}>"

    @property
    def driver(self) -> "Driver":
        """The driver that it belongs to."""
        return self._driver

    @property
    def context(self) -> int:
        """Handle of the primary context, which the process keeps from the first use to its end."""
        if not self._context:
            with self._retaining:
                if not self._context:
                    context = api.Handle()
                    self._driver.call(
                        "cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle
                    )
                    self._context = context.value or 0
        return self._context

    def __enter__(self) -> "Device":
        """Make the context current."""
        self._driver.call("cuCtxPushCurrent", self.context)
        return self

    def __exit__(self, *exception: object) -> None:
        """Make the former context current again."""
        self._driver.call("cuCtxPopCurrent", ctypes.byref(api.Handle()))

    def allocate(self, nbytes: int) -> int:
        """Allocate device memory, at least one byte, and return its address."""
        address = api.Address()
        with self:
            self._free_retired()
            self._driver.call("cuMemAlloc", ctypes.byref(address), max(nbytes, 1))
        return address.value

    def free(self, address: int) -> None:
        """Free what `allocate` returned. Nothing may be under way in it."""
        with self:
            self._driver.call("cuMemFree", address)

    def free_behind(self, stream: int, address: int) -> None:
        """Free memory some time after a stream has done what it has been given so far.

        To free it at once would be to wait for the device.
        """
        with self:
            event = self.new_event()
            self._driver.call("cuEventRecord", event, stream)
        self._retired.append((event, address))

    def _free_retired(self) -> None:
        # A list that is new may be added to meanwhile, by garbage collection at any place.
        retired, self._retired = self._retired, []
        for event, address in retired:
            if self.has_come(event):
                self.destroy_event(event)
                self.free(address)
            else:
                self._retired.append((event, address))

    def has_come(self, event: int) -> bool:
        """Whether what an event was recorded behind is done."""
        try:
            with self:
                self._driver.call("cuEventQuery", event)
        except CudaError as error:
            if error.code != api.NOT_READY:
                raise
            return False
        return True

    def allocate_pinned(self, nbytes: int) -> int:
        """Allocate pinned host memory, at least one byte, and return its address."""
        address = ctypes.c_void_p()
        with self:
            self._driver.call(
                "cuMemHostAlloc", ctypes.byref(address), max(nbytes, 1), api.HOST_PORTABLE
            )
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        """Free what `allocate_pinned` returned. Nothing may be under way in it."""
        with self:
            self._driver.call("cuMemFreeHost", address)

    def register(self, address: int, nbytes: int) -> None:
        """Pin host memory that is there already, whole pages of it, for all devices."""
        with self:
            self._driver.call("cuMemHostRegister", address, nbytes, api.HOST_PORTABLE)

    def unregister(self, address: int) -> None:
        """Undo `register`. Nothing may be under way in that memory."""
        with self:
            self._driver.call("cuMemHostUnregister", address)

    def new_stream(self) -> int:
        """Return the handle of a new stream, which the legacy default stream does not wait for."""
        stream = api.Handle()
        with self:
            self._driver.call("cuStreamCreate", ctypes.byref(stream), api.STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Give back a stream. What was submitted on it still runs."""
        with self:
            self._driver.call("cuStreamDestroy", stream)

    def new_event(self) -> int:
        """Return the handle of a new event, which takes no time stamps."""
        event = api.Handle()
        with self:
            self._driver.call("cuEventCreate", ctypes.byref(event), api.EVENT_DISABLE_TIMING)
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        """Give back an event. Streams that wait for it still do."""
        with self:
            self._driver.call("cuEventDestroy", event)

    def can_access(self, other: "Device") -> bool:
        """Whether kernels here can load from and store to the memory of another device."""
        if other.uuid == self.uuid:
            return True
        answer = ctypes.c_int()
        self._driver.call(
            "cuDeviceCanAccessPeer", ctypes.byref(answer), self._handle, other._handle
        )
        return bool(answer.value)

    def export(self, base: int) -> bytes:
        """Return a handle, of 64 bytes, by which other processes can open an allocation.

        Raises
        ------
        CudaError
            The memory is of a kind that cannot be shared, such as that of a memory pool.
        """
        handle = api.IpcHandle()
        with self:
            self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.data)

    def open(self, handle: bytes) -> int:
        """Map an allocation that another process exported, and return its address here.

        One that is open already has the same address, and needs one more `close`.
        """
        address = api.Address()
        structure = api.IpcHandle.from_buffer_copy(handle)
        with self:
            self._driver.call(
                "cuIpcOpenMemHandle",
                ctypes.byref(address),
                structure,
                api.IPC_LAZY_ENABLE_PEER_ACCESS,
            )
        return address.value

    def close(self, address: int) -> None:
        """Undo one `open`. Nothing may be under way in that memory."""
        with self:
            self._driver.call("cuIpcCloseMemHandle", address)

    def load_module(self, code: bytes) -> int:
        """Load compiled code for as long as the process lives; return the handle of the module."""
        module = api.Handle()
        image = ctypes.create_string_buffer(code)  # which ends it with a zero, as PTX needs
        with self:
            self._driver.call("cuModuleLoadData", ctypes.byref(module), image)
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        """Return the handle of a kernel in a module."""
        function = api.Handle()
        with self:
            self._driver.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function.value or 0

    def _attribute(self, attribute: int) -> int:
        answer = ctypes.c_int()
        self._driver.call("cuDeviceGetAttribute", ctypes.byref(answer), attribute, self._handle)
        return answer.value
