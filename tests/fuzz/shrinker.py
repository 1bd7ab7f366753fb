"""Makes a program that fails short: leaves out steps, and puts plain things in place of others.

Pure but for `fails`, which must answer the same on all ranks: then all of them try the same.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from fuzz.normal import normal
from fuzz.steps import Call, Environment, Many, Program, Step, Wait

MOST_TRIES = 500


def shrink(
    program: Program, fails: Callable[[Program], bool], most_tries: int = MOST_TRIES
) -> tuple[Program, int]:
    """Return a program that fails as well, and how many were tried."""
    tried = {program}
    found = True
    while found:
        found = False
        for candidate in candidates(program):
            if candidate in tried:
                continue
            if len(tried) > most_tries:
                return program, most_tries
            tried.add(candidate)
            if fails(candidate):
                program, found = candidate, True
                break
    return program, len(tried) - 1


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs that are a little simpler, those that are much simpler first."""
    steps = program.steps
    length = len(steps)
    part = length
    while part > 1:
        part = (part + 1) // 2
        for start in range(0, length, part):
            yield replace(program, steps=steps[:start] + steps[start + part :])
    if length == 1:
        yield replace(program, steps=())
    if program.environment != Environment():
        yield replace(program, environment=Environment())
    for environment in _with_defaults(program.environment):
        yield replace(program, environment=environment)
    for number, step in enumerate(steps):
        for simpler in simpler_steps(step):
            yield replace(program, steps=(*steps[:number], simpler, *steps[number + 1 :]))


def simpler_steps(step: Step) -> Iterator[Step]:
    """Yield steps in place of one: none that is as simple or less so."""
    found: Iterator[Any] = _with_defaults(step)
    if isinstance(step, Call):
        found = filter(lambda call: call != step, map(normal, (*found, *_with_fewer(step))))
    elif isinstance(step, Many):
        found = iter((*found, *_with_fewer_items(step)))
    elif isinstance(step, Wait):
        found = iter((*found, *(replace(step, numbers=(one,)) for one in step.numbers[1:])))
    yield from found


def _with_defaults(value: Any) -> Iterator[Any]:
    """Yield a value with one field after the other as by default."""
    for field in fields(value):
        plain = field.default
        if plain is not MISSING and getattr(value, field.name) != plain and field.name != "number":
            if field.name == "rows" and sum(value.rows) <= 2:
                continue  # the default has more elements
            yield replace(value, **{field.name: plain})


def _with_fewer(call: Call) -> Iterator[Call]:
    """Yield calls on fewer elements."""
    rows = call.rows
    if len(rows) > 1:
        yield replace(call, rows=(max(rows),))
    if call.rest:
        yield replace(call, rest=call.rest[1:])
        yield replace(call, rest=(), rows=tuple(row * math.prod(call.rest) for row in rows))
    for fewer in (lambda row: row // 2, lambda row: row * 3 // 4, lambda row: max(row - 1, 0)):
        smaller = tuple(map(fewer, rows))
        if smaller != rows:
            yield replace(call, rows=smaller)
    for place, row in enumerate(rows):
        if row > 1 and len(rows) > 1:
            yield replace(call, rows=(*rows[:place], row // 2, *rows[place + 1 :]))
    if call.times > 2:
        yield replace(call, times=2)


def _with_fewer_items(step: Many) -> Iterator[Many]:
    items = step.items
    for place, (dtype, shape, layout) in enumerate(items):
        rest = (items[:place], items[place + 1 :])
        yield replace(step, items=rest[0] + rest[1])
        for simpler in (
            (dtype, (2,), layout) if sum(shape) > 2 else None,
            (dtype, shape, "C order") if layout != "C order" else None,
        ):
            if simpler:
                yield replace(step, items=(*rest[0], simpler, *rest[1]))
