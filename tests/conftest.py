"""For all tests: arithmetic threads that spin would stop the other processes of an end-to-end test on a small machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
