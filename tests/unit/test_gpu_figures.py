"""The figures that a machine with a GPU prints, on a fake device and small."""

import pytest
from fake_cuda import FakeCuda
from gpu import bandwidth, bars
from host_kernels import HostCompiler


def test_the_bandwidth_of_a_sum():
    with FakeCuda() as fake:
        rates = [
            rate
            for name in bandwidth.BARS
            for rate in bandwidth.measure(name, 4096, 2, 3, HostCompiler())
        ]
    assert [rate.type for rate in rates] == 2 * ["float32"] + 2 * ["float16"] + 2 * ["bfloat16"]
    assert {rate.grid for rate in rates} == {1, 64}
    assert fake.calls["cuLaunchKernel"] == 3 * 2 * 2 * 4
    lines = bandwidth.report(rates, 4096)
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["type", "blocks"],
        ["float32", "64"],
        ["float32", "1"],
        ["float16", "64"],
    ]
    assert len([line for line in lines if line.startswith("bar: sum of ")]) == 3


def test_verdicts():
    assert bars.verdict("x", 0.912, 0.9) == "bar: x: 0.912, wanted 0.90: met"
    assert bars.verdict("x", 0.8, 0.85) == "bar: x: 0.800, wanted 0.85: missed by 0.050"
    assert bars.verdict("x", None, 5) == "bar: x: not measured, wanted 5.00"


def row(**other):
    known = {"nbytes": 64 << 20, "algorithm": "auto", "type": "float32", "place": "out"}
    return {**known, "ran": "mapped, direct", "vs_mpi": 6.5, **other}


@pytest.mark.parametrize(
    ("run", "rows", "wanted"),
    [
        ("mapped", [row()], ["out of place, over by hand: 6.500, wanted 5.00: met"]),
        ("mapped", [row(vs_mpi=4.0, place="in")], ["in place, over by hand: 4.000", "missed"]),
        ("mapped", [row(ran="host, ring")], ["not measured", "went another way: host, ring"]),
        ("staged", [row(ran="host, one_shot")], ["6.500, wanted 1.50: met"]),
        ("staged", [row(nbytes=4096), row(algorithm="ring")], ["not measured"]),
    ],
)
def test_bars_of_the_benchmark(run, rows, wanted):
    text = "\n".join(bars.lines_of(run, {"ranks": 2, "rows": rows}))
    for part in wanted:
        assert part in text
