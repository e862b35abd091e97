"""For the whole suite: no network, one language, few threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.offline import sitecustomize  # noqa: F401 (importing it forbids the network to this process)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

os.environ.update(
    TENGTUNE_LANG="en", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="true"
)
# Tiny tensors: a second thread gives nothing, and on a busy machine it waits for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts what it puts into the background with Ctrl-C ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Every Python that a test starts imports tests/offline/sitecustomize.py.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent / "offline"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
