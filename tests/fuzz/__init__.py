"""Random programs of collectives, run on all ranks and checked with NumPy.

`generator` makes a program out of a seed, the same one on all ranks; `interpreter` runs it on one
rank; `shrinker` makes a failing one short; `ranks` is what every rank runs under mpiexec, and
``python -m fuzz`` (``make fuzz``) starts it on several numbers of ranks in turn.
"""
