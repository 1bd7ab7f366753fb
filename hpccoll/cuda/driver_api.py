"""The functions of the CUDA driver API that hpccoll calls, with their C signatures.

All names and numbers are those of cuda.h.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

Address = c_uint64
"""A CUdeviceptr."""

Handle = c_void_p
"""A CUcontext, CUstream, CUevent, CUmodule or CUfunction."""

IPC_HANDLE_BYTES = 64


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: names an allocation to other processes of the machine."""

    _fields_ = (("data", ctypes.c_ubyte * IPC_HANDLE_BYTES),)


class Uuid(ctypes.Structure):
    """CUuuid: names a device on all machines."""

    _fields_ = (("data", ctypes.c_ubyte * 16),)


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceGetUuid": (POINTER(Uuid), c_int),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(Handle), c_int),
    "cuCtxPushCurrent": (Handle,),
    "cuCtxPopCurrent": (POINTER(Handle),),
    "cuMemAlloc": (POINTER(Address), c_size_t),
    "cuMemFree": (Address,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyAsync": (Address, Address, c_size_t, Handle),
    "cuStreamCreate": (POINTER(Handle), c_uint),
    "cuStreamDestroy": (Handle,),
    "cuStreamWaitEvent": (Handle, Handle, c_uint),
    "cuEventCreate": (POINTER(Handle), c_uint),
    "cuEventDestroy": (Handle,),
    "cuEventRecord": (Handle, Handle),
    "cuEventQuery": (Handle,),
    "cuModuleLoadData": (POINTER(Handle), c_void_p),
    "cuModuleGetFunction": (POINTER(Handle), Handle, c_char_p),
    "cuLaunchKernel": (
        *(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint),
        *(c_uint, Handle, POINTER(c_void_p), POINTER(c_void_p)),
    ),
    "cuPointerGetAttribute": (c_void_p, c_int, Address),
    "cuMemGetAddressRange": (POINTER(Address), POINTER(c_size_t), Address),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), Address),
    "cuIpcOpenMemHandle": (POINTER(Address), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (Address,),
}
"""Types of the arguments. All functions return a CUresult, which is an int."""

PROTOTYPES = {name: ctypes.CFUNCTYPE(c_int, *types) for name, types in SIGNATURES.items()}

SECOND_VERSIONS = frozenset(
    {
        "cuDeviceGetUuid",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuMemAlloc",
        "cuMemFree",
        "cuMemHostRegister",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuMemGetAddressRange",
        "cuIpcOpenMemHandle",
    }
)
"""Functions that the library has under their name and ``_v2``, as cuda.h does.

Under the name alone stands what programs compiled for CUDA 3 call, with narrower arguments.
"""

INVALID_VALUE = 1
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_READY = 600

ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76

POINTER_MEMORY_TYPE = 2
POINTER_BUFFER_ID = 7
POINTER_DEVICE_ORDINAL = 9

MEMORY_TYPE_DEVICE = 2
MEMORY_TYPE_UNIFIED = 4

STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2
HOST_PORTABLE = 1
"""Of cuMemHostAlloc and cuMemHostRegister: pinned for all devices."""

IPC_LAZY_ENABLE_PEER_ACCESS = 1
