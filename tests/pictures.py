"""Reads the pictures in the modules of algorithms."""

import importlib
import re
import textwrap

FACTS = [
    "Idea",
    "Picture, 5 ranks",
    "Steps and bytes",
    "Cost",
    "Restrictions",
    "Scratch",
    "Order and bits",
    "Source",
]
"""What every module of an algorithm opens with."""


def module_doc(name):
    return importlib.import_module(f"hpccoll.algorithms.{name}").__doc__


def picture(name):
    """Return the picture of an algorithm's module, without its indentation."""
    section = re.split(r"\n\n(?=\w)", module_doc(name).split("Picture, 5 ranks\n")[1])[0]
    lines = re.match(r"(?: {8}.*\n|\n)+", section.split("::\n\n")[1] + "\n").group()
    return textwrap.dedent(lines).strip("\n")


def follow(arrows, steps):
    """Take from each rank's steps, in order, what the arrows of a picture show."""
    for left, arrow, right in arrows:
        one, other = steps[int(left)].pop(0), steps[int(right)].pop(0)
        sends, receives = arrow != "<--", arrow != "-->"
        assert (one.send_to, one.receive_from) == (
            int(right) if sends else None,
            int(right) if receives else None,
        )
        assert (other.receive_from, other.send_to) == (
            int(left) if sends else None,
            int(left) if receives else None,
        )
        yield one, other


def arrows_of(line):
    return re.findall(r"(\d) (<->|<--|-->) (\d)", line)
