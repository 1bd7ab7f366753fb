"""What several unit tests use."""

from collections.abc import Iterator

import pytest

from hpccoll import _kernels


@pytest.fixture(params=_kernels.targets())
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test once with the loops of each CPU target that can run here; return its name."""
    before = _kernels.target()
    _kernels.set_target(request.param)
    yield request.param
    _kernels.set_target(before)
