"""The PyTorch back end."""

import os

# Threads of GNU OpenMP (torch's on Linux) wait for each other in a busy loop for milliseconds. On two cores
# with two other busy processes that made training 2 to 5 times slower than with this limit (about 30
# microseconds); alone it makes no difference. Read when torch is loaded; what the user has set stands.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
