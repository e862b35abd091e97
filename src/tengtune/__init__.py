"""tengtune: fine-tune Qwen models on Ascend cards, rehearsed on a CPU first."""

__version__ = "0.1.0"
