"""What the help says of each collective."""

from hpccoll.algorithms import COLLECTIVES
from hpccoll.benchmark.options import FRESH_BYTES, has_elements

VECTORS = {
    "allreduce": "what each rank brings, and ends with",
    "reduce_scatter": "what each rank brings; it ends with a chunk, one p-th of that",
    "allgather": "what each rank ends with; it brings a chunk, one p-th of that",
    "reduce": "what each rank brings, and the root ends with",
    "broadcast": "what the root has, and each rank ends with",
}
"""By collective, which vector is meant where a size is told."""

FACTORS = {
    "allreduce": " * 2(p-1)/p",
    "reduce_scatter": " * (p-1)/p",
    "allgather": " * (p-1)/p",
    "reduce": "",
    "broadcast": "",
}
"""By collective, what busbw is beside algbw."""

IN_PLACE = {
    "allreduce": "Input and output are one array.",
    "reduce_scatter": "The result goes to the start of the input.",
    "allgather": "The input is this rank's chunk of the output.",
    "reduce": "At the root, input and output are one array.",
}


def help_text(collective: str) -> str:
    """Return the text of ``hpccoll bench COLLECTIVE --help`` above the options."""
    if not has_elements(collective):
        return (
            f"Measure {collective}: a row per algorithm.\n\n"
            'Names are separated by commas, or "all"; options that take them may be repeated.\n\n'
            "A row gives the time of the slowest rank: median, smallest and 99th percentile of the "
            "samples, each a batch of calls back to back; and vs MPI, the MPI library's median "
            "divided by this one. Algorithms are called in turns, so that noise hits all alike. "
            "There are no elements, and so no bandwidths, and nothing is checked.\n\n"
            "Exits with 2 if an option is wrong."
        )
    one = COLLECTIVES[collective]
    equal = " They are rounded down to equal chunks of whole elements." if one.split else ""
    overlap = ", in which calls may overlap: ranks need not wait for all" if one.rooted else ""
    who = "the root" if collective == "broadcast" else "each rank"
    return (
        f"Measure {collective}: a row per size and algorithm.\n\n"
        'Names are separated by commas, or "all"; options that take them may be repeated. Sizes '
        "may end in K, M or G, powers of 1024; they are those of the whole vector: "
        f"{VECTORS[collective]}.{equal}\n\n"
        "A row gives the time of the slowest rank, call by call: median, smallest and 99th "
        "percentile of the samples; algbw = size / time and "
        f"busbw = algbw{FACTORS[collective]}, with 1 GB = 10^9 B; #wrong, elements that differ "
        "from the exact result, or that should not have been touched, over all ranks; and vs MPI, "
        "the MPI library's median divided by this one. Algorithms are called in turns, so that "
        "noise hits all alike.\n\n"
        f"From {FRESH_BYTES >> 10} KiB up {who} rewrites its input before every call, as a program "
        f"would. Below, and with --warm, a sample is a batch of calls back to back{overlap}.\n\n"
        "Exits with 1 if an element is wrong, with 2 if an option is."
    )
