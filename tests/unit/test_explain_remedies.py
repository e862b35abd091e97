"""The remedy is that of the very line: the package, the group, the setting it is about; in both languages."""

from __future__ import annotations

import pytest
from tests.explain_lab import diagnosis

from tengtune.explain import screen
from tengtune.ui import language

NUMPY = "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead."
STAMP = "[PID: 41] 2025-08-05-08:05:26.578.073"
INIT = "NPU function error: at_npu::native::AclSetCompileopt(x), error code is 500001"
COMPILE = f"E40021: {STAMP} Failed to compile Op [Add1]. (oppath: [Compile add.py failed with errormsg/stack:"

REMEDIES = {
    f"{INIT} EC0010: {STAMP} Failed to import Python module [{NUMPY}].": ("numpy2", '"numpy<2"'),
    f"{INIT}\nEC0010: {STAMP} Failed to import Python module [{NUMPY}].": ("numpy2", '"numpy<2"'),
    f"{COMPILE} {NUMPY}": ("numpy2", '"numpy<2"'),
    f"{COMPILE} File x\n{NUMPY}": ("numpy2", '"numpy<2"'),
    NUMPY: ("numpy2", '"numpy<2"'),
    "ImportError: numpy.core.multiarray failed to import": ("numpy2", '"numpy<2"'),
    "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.2.6 as it may crash.\n"
    "AttributeError: _ARRAY_API not found": ("numpy2_built", '"numpy<2"'),
    f"{COMPILE} No module named 'decorator'": ("cann_package", "install decorator`"),
    f"{COMPILE} File x\nModuleNotFoundError: No module named 'scipy'": ("cann_package", "install scipy`"),
    f"{INIT}\n{'x' * 5000}\nModuleNotFoundError: No module named 'attr'": ("cann_package", "install attrs`"),
    f"{COMPILE} No module named 'synr_next'": ("e40021", "install synr_next`"),
    f"{COMPILE} No module named 'tbe'": ("no_cann_module", "set_env.sh"),
    f"EC0010: {STAMP} Failed to import Python module [ModuleNotFoundError: No module named 'yaml'.].": (
        "ec0010",
        "install pyyaml`",
    ),
    f"E40020: Failed to import Python module [x].\n{INIT}": ("ec0010", "decorator"),
    "ModuleNotFoundError: No module named 'datasets'": ("no_module", "install datasets`"),
    "/usr/bin/python3: No module named tensorboard": ("no_module", "install tensorboard`"),
    "ModuleNotFoundError: No module named 'transformers.models.qwen3'": (
        "no_module",
        "python -m pip install",
    ),
    **{
        f"PermissionError: [Errno 13] Permission denied: '/dev/{node}'": (
            "npu_denied",
            "usermod -aG HwHiAiUser",
        )
        for node in ("davinci0", "davinci_manager", "hisi_hdc", "devmm_svm")
    },
    "open /dev/davinci_manager failed: Operation not permitted": ("npu_denied", "--device"),
    "dcmi module initialize failed. ret is -8005\nopen /dev/hisi_hdc: permission denied": (
        "npu_denied",
        "usermod -aG HwHiAiUser",
    ),
    "PermissionError: [Errno 13] Permission denied: '/data/davinci0'": ("no_permission", "ls -ld"),
}


@pytest.mark.parametrize("text", REMEDIES)
def test_the_remedy_is_that_of_the_line(text: str) -> None:
    id, remedy = REMEDIES[text]
    told = diagnosis(f"{text}\n".encode())
    assert told.error is not None
    assert told.error.id == id
    try:
        for name in language.LANGUAGES:
            language.choose(name)
            assert remedy in screen.told(told)[1], name
    finally:
        language.choose(None)


def test_a_package_that_may_be_there_is_not_named_to_be_installed() -> None:
    told = diagnosis(b"ModuleNotFoundError: No module named 'transformers.models.qwen3'\n")
    assert told.detail is None
