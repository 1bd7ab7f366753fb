"""The benchmark: ``mpiexec -n 4 python -m hpccoll bench allreduce``, and the other collectives.

`options` says what is measured, `data` gives vectors whose result is known exactly, `measure` is
the timed loop, `sweep` goes through the cases with all candidates, `report` writes the table, JSON
and CSV, `command` is the command line, and `texts` what its help says of each collective.
"""
