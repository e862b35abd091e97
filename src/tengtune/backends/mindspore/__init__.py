"""The MindSpore back end. See `step.py`."""

import os

# MindSpore warns of every accelerator plugin this machine lacks. Set before its import; errors still show.
os.environ.setdefault("GLOG_v", "3")
