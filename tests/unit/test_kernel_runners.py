"""What runs kernels on a device in tests, on a fake one."""

import host_kernels
import kernel_checks
import numpy as np
import pytest
from fake_cuda import FakeCuda
from kernel_requests import movements
from kernel_runners import DeviceRunner
from operands import operands

from hpccoll.cuda.kernel_arguments import ManyArguments, ViewArguments


@pytest.fixture
def device(monkeypatch):
    """Have kernels run on a fake device."""
    with FakeCuda() as fake:
        made = DeviceRunner(host_kernels.HostCompiler())
        monkeypatch.setattr(kernel_checks, "runner", lambda: made)
        yield fake
        made.close()


def test_checks_pass_on_a_device(device):
    left, right = operands("float16")
    for arrangement in ("apart", "left", "both"):
        kernel_checks.assert_pair("sum", left, right, arrangement, (0, 2, 5))
    kernel_checks.assert_many("sum", [left, right, left], divisor=3.0, targets=2)
    assert device.calls["cuLaunchKernel"] == 4


def test_wrong_bytes_are_found(device, monkeypatch):
    left, right = operands("int32")
    monkeypatch.setattr(host_kernels, "run", lambda *arguments: None)
    with pytest.raises(AssertionError, match="byte 68"):
        kernel_checks.assert_pair("sum", left, right)


def test_memory_grows_and_none_is_shared(device):
    for nbytes in (100, 3 << 20, 100):
        source = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
        target = np.zeros(nbytes + 7, np.uint8)
        source.flags.writeable = False
        arguments = ManyArguments.of([source.ctypes.data], [target.ctypes.data + 7], nbytes)
        kernel_checks.launch("copy_many", arguments, [source, target, source], movements)
        assert not target[:7].any()
        assert np.array_equal(target[7:], source)


def test_arguments_without_elements_point_nowhere(device):
    arguments = ViewArguments.of(0, 0, (3, 0), (0, 0), (0, 0))
    kernel_checks.launch("view_4", arguments, [], movements)


def test_an_address_that_was_not_named_is_refused(device):
    there, elsewhere = np.zeros(8, np.uint8), np.zeros(64, np.uint8)
    arguments = ManyArguments.of([elsewhere.ctypes.data + 32], [there.ctypes.data], 8)
    with pytest.raises(AssertionError, match="is in none of the memories"):
        kernel_checks.launch("copy_many", arguments, [there], movements)
