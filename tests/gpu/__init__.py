"""What needs a GPU: tests and figures. `run.sh` runs all of it, and ``make test-gpu`` that."""
