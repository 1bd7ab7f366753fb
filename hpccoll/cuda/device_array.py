"""Arrays in device memory: shape, strides, type and address as NumPy keeps them, and no elements.

A `DeviceArray` is a NumPy array in name only. What asks for its form, or makes views of it, works
as with any array; what would read or store elements raises `TypeError`, since the host cannot.

Some ways to the elements NumPy keeps open, and they end the process by a segmentation fault as they
would for any address that is not the host's: ``numpy.asarray(x)`` and ``numpy.array(x)``, which do
not ask a subclass, and before Python 3.12 ``memoryview(x)``.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np

FORM_ONLY: frozenset[Any] = frozenset(
    {np.may_share_memory, np.shares_memory, np.shape, np.ndim, np.size}
)
"""Functions of NumPy's that look at no element."""

READING = (
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "byteswap", "choose"),
    *("clip", "compress", "conj", "conjugate", "copy", "cumprod", "cumsum", "dot", "dump", "dumps"),
    *("fill", "flatten", "item", "itemset", "max", "mean", "min", "nonzero", "partition", "prod"),
    *(
        "ptp",
        "put",
        "ravel",
        "repeat",
        "resize",
        "round",
        "searchsorted",
        "setfield",
        "sort",
        "std",
    ),
    *("sum", "take", "tobytes", "tofile", "tolist", "tostring", "trace", "var"),
    *("__array__", "__bool__", "__buffer__", "__complex__", "__contains__", "__copy__"),
    *("__deepcopy__", "__dlpack__", "__dlpack_device__", "__float__", "__index__"),
    *("__int__", "__iter__", "__reduce__", "__reduce_ex__", "__setitem__", "__setstate__"),
    "to_device",
)
"""Methods that read or store elements, or tell others that the host may."""


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """An array in device memory; see the module. Made by `device_array`, and by views of one.

    Attributes
    ----------
    device : int
        Number of the device.
    owner : object
        Keeps the memory alive.
    is_device : bool
        True.
    """

    is_device = True
    owner: object
    _device: int

    def __array_finalize__(self, parent: object) -> None:
        """Take over from the array that this is a view of."""
        self._device = getattr(parent, "_device", -1)
        self.owner = getattr(parent, "owner", None)

    @property
    def device(self) -> int:  # type: ignore[override]
        """Number of the device."""
        return self._device

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> NoReturn:
        """Refuse: no function of NumPy's computes on a device."""
        refuse(self, ufunc.__name__)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Allow what looks at the form alone."""
        if func not in FORM_ONLY:
            refuse(self, func.__name__)
        return super().__array_function__(func, types, args, kwargs)

    def __repr__(self) -> str:
        """Return a description without elements."""
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        """Return the same description."""
        return format(repr(self), form)

    def __getitem__(self, index: Any) -> "DeviceArray":
        """Return a view; elements cannot be read, nor picked by arrays of indices."""
        parts = index if isinstance(index, tuple) else (index,)
        whole = sum(isinstance(part, Integral) and not isinstance(part, bool) for part in parts)
        views = sum(part is None or part is Ellipsis or isinstance(part, slice) for part in parts)
        if whole + views != len(parts) or (views == 0 and whole == self.ndim):
            refuse(self, "indexing")
        return super().__getitem__(index)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any, **options: Any) -> "DeviceArray":
        """Return a view of another shape, of an array whose elements lie in C order without gaps.

        Raises
        ------
        TypeError
            They do not, so that they might have to be moved; or another order is asked for.
        """
        if not self.flags.c_contiguous or options.get("order", "C") != "C":
            refuse(self, "reshape")
        result: DeviceArray = super().reshape(*shape)
        return result

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse attributes that are elements, and forms that might need others."""
        if name in ("shape", "strides", "real", "imag", "flat", "data"):
            refuse(self, f"setting {name}")
        super().__setattr__(name, value)

    def view(self, *types: Any, **options: Any) -> Any:
        """Return a view as another type of elements."""
        for kind in (*types, *options.values()):
            is_array = isinstance(kind, type) and issubclass(kind, np.ndarray)
            if is_array and not issubclass(kind, DeviceArray):
                refuse(self, f"view as {kind.__name__}")
        return super().view(*types, **options)

    @property
    def data(self) -> NoReturn:
        """Refuse: a buffer is for the host."""
        refuse(self, "data")

    @property
    def flat(self) -> NoReturn:
        """Refuse: it reads element by element."""
        refuse(self, "flat")

    @property  # type: ignore[misc]
    def imag(self) -> "DeviceArray":  # type: ignore[override]
        """The imaginary parts; of complex arrays only, since others have none in memory."""
        if self.dtype.kind != "c":
            refuse(self, "imag")
        return super().imag.view(DeviceArray)

    @property
    def __array_struct__(self) -> NoReturn:
        """Refuse: it says that the memory is the host's."""
        refuse(self, "__array_struct__")


def refuse(x: DeviceArray, what: str) -> NoReturn:
    """Raise the error of what needs the elements of an array in device memory."""
    message = (
        f"{what} needs the elements of {x!r}, which the host cannot read or store: "
        "they are in device memory"
    )
    raise TypeError(message)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def method(self: DeviceArray, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self, name)

    method.__name__ = name
    method.__doc__ = "Refuse: the host cannot read or store elements."
    return method


for _name in READING:
    setattr(DeviceArray, _name, _refusal(_name))


class _Memory:
    """What NumPy takes an array of bytes from, by the array interface."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def device_array(
    address: int,
    shape: Sequence[int],
    dtype: Any,
    device: int,
    *,
    strides: Sequence[int] | None = None,
    owner: object = None,
    readonly: bool = False,
) -> DeviceArray:
    """Return an array at an address in device memory.

    Parameters
    ----------
    address : int
        Of element 0; any number where the array has no elements.
    shape : sequence of int
        Elements in each direction.
    dtype : dtype
        Of the elements; also one of ml_dtypes.
    device : int
        Number of the device.
    strides : sequence of int, optional
        Bytes from one element to the next in each direction; C order by default.
    owner : object, optional
        Kept alive with the array and all its views.
    readonly : bool, optional
        Whether its ``flags.writeable`` is False.
    """
    dtype = np.dtype(dtype)
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "typestr": f"|V{dtype.itemsize}",  # a type of ml_dtypes has no other name of this kind
        "strides": None if strides is None else tuple(strides),
        "data": (address, readonly),
    }
    array: DeviceArray = np.asarray(_Memory(interface, owner)).view(dtype).view(DeviceArray)
    array._device = device
    array.owner = owner
    return array
