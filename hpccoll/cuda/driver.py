"""The CUDA driver, called through a table of its functions.

The table is all that hpccoll knows of CUDA at run time, and all that tests replace. Nothing happens
when this is imported: `get_driver` loads the library when it is first asked for.
"""

import ctypes
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpccoll.cuda import driver_api as api
from hpccoll.cuda.device import Device
from hpccoll.errors import CudaError

LIBRARY = "libcuda.so.1"


class Allocation(NamedTuple):
    """What an address in device memory is part of.

    Attributes
    ----------
    base, nbytes : int
        Where the allocation begins, and how long it is.
    buffer_id : int
        Differs between all allocations of the process, also where one has the address of another
        that was freed.
    """

    base: int
    nbytes: int
    buffer_id: int


class Driver:
    """The functions of a CUDA driver.

    A driver serves the process that it was made in. A forked child cannot use CUDA at all, and each
    call there raises `CudaError` before it reaches the library.

    Parameters
    ----------
    functions : mapping of str to int
        Addresses of the functions in `driver_api.SIGNATURES`, by name without ``_v2``.

    Attributes
    ----------
    functions : dict of str to int
        The same.
    """

    def __init__(self, functions: Mapping[str, int]) -> None:
        self.functions = dict(functions)
        self._callables = {
            name: api.PROTOTYPES[name](address) for name, address in self.functions.items()
        }
        self._process = os.getpid()
        self._devices: dict[int, Device] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls) -> "Driver":
        """Load the driver's library, and start it.

        Raises
        ------
        ImportError
            There is no such library, or one so old that it lacks a function.
        CudaError
            The driver does not start, or there is no device.
        """
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            message = (
                f"there is no CUDA driver on this machine ({error}); arrays in GPU memory need one"
            )
            raise ImportError(message, name=LIBRARY) from None
        functions = {}
        for name in api.SIGNATURES:
            symbol = f"{name}_v2" if name in api.SECOND_VERSIONS else name
            try:
                function = library[symbol]
            except AttributeError:
                message = f"the CUDA driver {LIBRARY} has no function {symbol}: it is too old"
                raise ImportError(message, name=LIBRARY) from None
            functions[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
        driver = cls(functions)
        driver.call("cuInit", 0)
        return driver

    @property
    def usable(self) -> bool:
        """Whether this process may call it: it is no forked child."""
        return os.getpid() == self._process

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Parameters
        ----------
        name : str
            Of the function, without ``_v2``.
        *arguments
            As ctypes takes them for the signature in `driver_api.SIGNATURES`.

        Raises
        ------
        CudaError
            It returned something else than 0, or this is a forked child.
        """
        if not self.usable:
            message = (
                f"{name} was not called: this process was forked from one that uses CUDA, and "
                "cannot use it; start processes by the method spawn or forkserver"
            )
            raise CudaError(message)
        result = self._callables[name](*arguments)
        if result:
            raise failure(self.functions, name, result)

    def device_count(self) -> int:
        """Return how many devices this process sees."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def device(self, number: int) -> Device:
        """Return a device by its number among those that this process sees.

        Raises
        ------
        CudaError
            There is none of that number.
        """
        with self._lock:
            if number not in self._devices:
                count = self.device_count()
                if not 0 <= number < count:
                    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
                    setting = "not set" if visible is None else repr(visible)
                    message = (
                        f"there is no CUDA device {number}: this process sees {count} "
                        f"(CUDA_VISIBLE_DEVICES is {setting})"
                    )
                    raise CudaError(message, api.INVALID_DEVICE)
                self._devices[number] = Device(self, number)
            return self._devices[number]

    def device_of(self, address: int) -> int | None:
        """Return the number of the device in whose memory an address lies.

        None for host memory, pinned or not, and for what the driver does not know, such as memory
        that was freed. Managed memory belongs to a device.
        """
        kind, number = ctypes.c_uint(), ctypes.c_int()
        try:
            self._ask_pointer(kind, api.POINTER_MEMORY_TYPE, address)
            if kind.value not in (api.MEMORY_TYPE_DEVICE, api.MEMORY_TYPE_UNIFIED):
                return None
            self._ask_pointer(number, api.POINTER_DEVICE_ORDINAL, address)
        except CudaError as error:
            if error.code == api.INVALID_VALUE:
                return None
            raise
        return number.value

    def allocation_of(self, address: int) -> Allocation:
        """Return the allocation that an address in device memory is part of.

        Raises
        ------
        CudaError
            It is part of none.
        """
        number = self.device_of(address)
        if number is None:
            message = f"{address:#x} is no address in the memory of a CUDA device"
            raise CudaError(message, api.INVALID_VALUE)
        base, nbytes, buffer_id = api.Address(), ctypes.c_size_t(), ctypes.c_uint64()
        with self.device(number):
            self.call("cuMemGetAddressRange", ctypes.byref(base), ctypes.byref(nbytes), address)
            self._ask_pointer(buffer_id, api.POINTER_BUFFER_ID, address)
        return Allocation(base.value, nbytes.value, buffer_id.value)

    def _ask_pointer(self, answer: Any, attribute: int, address: int) -> None:
        self.call("cuPointerGetAttribute", ctypes.byref(answer), attribute, address)


def failure(functions: Mapping[str, int], name: str, code: int) -> CudaError:
    """Return the error of a function that failed, in CUDA's words.

    Parameters
    ----------
    functions : mapping of str to int
        Of the driver.
    name : str
        Of the function that was called.
    code : int
        The CUresult that it returned.
    """
    words = []
    for asked in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        api.PROTOTYPES[asked](functions[asked])(code, ctypes.byref(text))
        words.append(text.value.decode(errors="replace") if text.value else "unknown error")
    hint = ""
    if code == api.NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return CudaError(f"{name} failed: {words[0]} ({code}): {words[1]}{hint}", code)


_driver: Driver | None = None
_loading = threading.Lock()


def get_driver() -> Driver:
    """Return the driver of this process, which is loaded if need be. Errors as of `Driver.load`."""
    global _driver
    with _loading:
        if _driver is None:
            _driver = Driver.load()
        return _driver


def is_loaded() -> bool:
    """Whether this process has a driver."""
    return _driver is not None


def install(driver: Driver | None) -> Driver | None:
    """Replace the driver of this process, for tests; return the former one.

    Devices belong to a driver, so that `get_device` makes new ones. None: the library is loaded
    when a driver is next asked for.
    """
    global _driver
    with _loading:
        former, _driver = _driver, driver
    return former


def get_device(number: int) -> Device:
    """Return a device by its number. Errors as of `Driver.load` and `Driver.device`."""
    return get_driver().device(number)
