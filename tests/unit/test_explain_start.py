"""What keeps a training from its first step, in the words of shells, hubs, transformers, PEFT, DeepSpeed and
MindSpore, in either coding of Chinese logs."""

from __future__ import annotations

import pytest
from tests.explain_lab import found

TEXTS = {
    "bash: torchrun: command not found": "launcher_missing",
    "run.sh: line 3: msrun: command not found": "launcher_missing",
    "bash: torchrun：未找到命令": "launcher_missing",
    "run.sh：行 3: msrun: 未找到命令": "launcher_missing",
    "sh: 1: deepspeed: not found": "launcher_missing",
    "zsh: command not found: accelerate": "launcher_missing",
    'exec: "torchrun": executable file not found in $PATH: unknown': "launcher_missing",
    "FileNotFoundError: [Errno 2] No such file or directory: 'msrun'": "launcher_missing",
    "checking for python3: not found": None,
    "bash: npu-smi：未找到命令": "smi_not_found",
    "zsh: command not found: npu-smi": "smi_not_found",
    "FileNotFoundError: [Errno 2] No such file or directory: 'npu-smi'": "smi_not_found",
    "modelscope.hub.errors.NotExistError: The file path x not exist.": "hub_missing",
    "modelscope_hub.errors.NotExistError: [E3001][404] Not Found | The requested resource does "
    "not exist": "hub_missing",
    "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: "
    "https://www.modelscope.cn/api/v1/models/a/b": "hub_missing",
    "OSError: Qwen3-8B is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'": "hub_missing",
    "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
    "'namespace/repo_name': '/data/x'.": "hub_missing",
    "FileDoesNotExistError: x": None,
    "requests.exceptions.SSLError: HTTPSConnectionPool(host='www.modelscope.cn', port=443): Max "
    "retries exceeded with url: /api (Caused by SSLError(SSLCertVerificationError(1, '[SSL: "
    "CERTIFICATE_VERIFY_FAILED] certificate')))": "net_tls",
    "requests.exceptions.ProxyError: HTTPSConnectionPool(host='www.modelscope.cn', port=443): "
    "Max retries exceeded with url: / (Caused by ProxyError('Cannot connect to proxy.', "
    "OSError('Tunnel connection failed: 407')))": "net_proxy",
    "requests.exceptions.ProxyError: HTTPSConnectionPool(host='huggingface.co', port=443): Max "
    "retries exceeded with url: / (Caused by ProxyError('Unable to connect to proxy', x))": "net_proxy",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='www.modelscope.cn', "
    'port=443): Max retries exceeded with url: / (Caused by NameResolutionError("x: Failed to '
    "resolve 'www.modelscope.cn' ([Errno -3] Temporary failure in name resolution)\"))": "net_dns",
    "curl: (6) Could not resolve host: www.modelscope.cn": "net_dns",
    "curl: (60) SSL certificate problem: unable to get local issuer certificate": "net_tls",
    "urllib3.exceptions.SSLError: EOF occurred in violation of protocol (_ssl.c:1129)": "net_tls",
    "OSError: [Errno 101] Network is unreachable": "net_timeout",
    "modelscope - ERROR - File x integrity check failed, expected sha256 signature is a": "hub_integrity",
    "(look up to see its traceback):\nNo module named 'einops'": "no_module",
    "socket.gaierror: [Errno -2] Name or service not known": "net_dns",
    "ssh: Could not resolve hostname node2: 未知的名称或服务": "net_dns",
    "2026-01-01 00:00:00,1 - modelscope - WARNING - x\nrequests.exceptions.ConnectTimeout: "
    "HTTPSConnectionPool(host='www.modelscope.cn', port=443): Max retries exceeded with url: "
    "/api/v1": "net_timeout",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='www.modelscope.cn', port=443): "
    "Read timed out. (read timeout=60)": "net_timeout",
    "urllib3.connectionpool - WARNING - Retrying (Retry(total=4)) after connection broken by "
    "'NewConnectionError(\"x: [Errno -3] Temporary failure in name resolution\")': "
    "HTTPSConnectionPool(host='a', port=443)": None,
    "Downloading: model-00016 failed, reason: HTTPSConnectionPool(host='www.modelscope.cn', "
    "port=443): Read timed out. (read timeout=60) will retry": None,
    "modelscope.hub.errors.FileIntegrityError: File /x/model-00002-of-00002.safetensors "
    "integrity check failed, expected sha256 signature is e4, actual is ec, the download may be "
    "incomplete, please try again.": "hub_integrity",
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge": "weights_damaged",
    "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer": "weights_damaged",
    "SafetensorError: Error while deserializing header: incomplete metadata, file not fully "
    "covered": "weights_damaged",
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
    "directory": "weights_damaged",
    "_pickle.UnpicklingError: invalid load key, 'v'.": "weights_damaged",
    "OSError: Error no file named pytorch_model.bin, model.safetensors, tf_model.h5 found in "
    "directory /data/x.": "model_files",
    "OSError: Error no file named model.safetensors found in directory /data/x.": "model_files",
    "OSError: /data/x does not appear to have a file named config.json. Checkout "
    "'https://huggingface.co//x/tree/main'": "model_files",
    "ValueError: Unrecognized model in /data/x. Should have a `model_type` key in its "
    "config.json.": "model_files",
    "ValueError: The checkpoint you are trying to load has model type `qwen3` but Transformers "
    "does not recognize this architecture. This could be because of an issue": "hf_model_type",
    "KeyError: 'qwen3_moe'": "hf_model_type",
    "ImportError: cannot import name 'SampleDecoderOnlyOutput' from "
    "'transformers.generation.utils' (/x/utils.py)": "hf_removed_name",
    "ImportError: cannot import name SampleDecoderOnlyOutput": "hf_removed_name",
    "ImportError: cannot import name 'shard_checkpoint' from 'transformers.modeling_utils' "
    "(/x.py)": "hf_removed_name",
    "ImportError: cannot import name 'mine' from 'utils' (/x/utils.py)": None,
    "ValueError: Target modules {'c_attn'} not found in the base model. Please check the target "
    "modules and try again.": "peft_targets",
    "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn": "no_grad",
    "ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half "
    "precision evaluation (`--fp16_full_eval`) can only be used on CUDA devices.": "fp16_no_card",
    "ValueError: fp16 mixed precision requires a GPU (not 'cpu').": "fp16_no_card",
    "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size 32 != 1 * 8 * 1": "ds_batch",
    "[WARNING] DISTRIBUTED(1,2,python):2026-01-01-00:00:00.000.000 [x.cc:9] Register] Failed to "
    "register and try to reconnect to the meta server.": "ms_meta_retry",
    "RuntimeError: Failed to initialize distributed job cluster because some processes in the "
    "cluster are not successfully spawned. You can run command: 'grep": "ms_cluster",
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
    "shared memory (shm).": "shm",
    "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that "
    "dataloader's": "shm",
}


@pytest.mark.parametrize("coding", ["utf-8", "gb18030"])
def test_what_keeps_a_training_from_its_first_step_is_known(coding: str) -> None:
    told = {text: found(f"{text}\n".encode(coding)) for text in TEXTS}
    assert told == TEXTS


def test_a_download_that_was_tried_again_is_not_the_cause() -> None:
    """What ends the training minutes later is, although nobody knows it."""
    retried = next(text for text in TEXTS if text.endswith("will retry"))
    assert (
        found(f"2026-01-01 00:00:00 {retried}\n2026-01-01 00:09:00 x\nKeyError: 'input_ids'\n".encode())
        is None
    )


def test_a_worker_that_came_late_is_not_the_cause() -> None:
    retried = "2026-01-01-00:00:00 Failed to register and try to reconnect to the meta server.\n"
    full = "2026-01-01-00:09:00 Malloc for kernel output failed, Memory isn't enough\n"
    assert found((retried + full).encode()) == "ms_oom"
