"""The benchmark: ``mpiexec -n 4 python -m hpccoll bench allreduce``.

`options` says what is measured, `data` gives vectors whose combination is known exactly, `measure`
is the timed loop, `sweep` goes through the cases with all candidates, `report` writes the table,
JSON and CSV, and `command` is the command line.
"""
