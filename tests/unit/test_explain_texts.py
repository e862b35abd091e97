"""What logs of other programs say, in the words of each, and what is not mistaken for a cause.

The sentences are those that PyTorch, DeepSpeed, transformers, MindSpore, CANN, bash and the kernel print;
the expected ids were chosen by hand.
"""

from __future__ import annotations

import pytest
from tests.explain_lab import at, diagnosis, found

from tengtune.explain import known, screen
from tengtune.explain.logs import Account

STEP = "KeyError: 'input_ids'\n"

TEXTS = {
    "RuntimeError: DataLoader worker (pid 41) is killed by signal: Killed. ": "sigkill",
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 3 (pid: 12)": (
        "sigkill"
    ),
    "run.sh: line 12:  4711 Killed                  python finetune.py": "sigkill",
    "run.sh：行 12:  4711 已杀死               python finetune.py": "sigkill",
    "  Reason: OOMKilled": "host_oom",
    "[7.1] python invoked oom-killer: gfp_mask=0x100cca": "host_oom",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 43 got signal: 1": "sighup",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 43 got signal: 15": "sigterm",
    "It is possible that dataloader's workers are out of shared memory. Please try to raise": "shm",
    "OSError: [Errno 122] Disk quota exceeded": "disk",
    "cp: 写入 'a' 时出错: 设备上没有空间": "disk",
    "RuntimeError: PytorchStreamWriter failed writing file data/12: file write failed": "torch_save",
    "PermissionError: [Errno 13] Permission denied: '/data/out'": "no_permission",
    "OSError: [Errno 12] Cannot allocate memory": "host_memory",
    "OSError: [Errno 24] Too many open files": "open_files",
    "RuntimeError: Expected one of cpu, mps device type at start of device string: npu:0": "npu_unknown",
    "ModuleNotFoundError: No module named 'torch_npu'": "no_torch_npu",
    "ModuleNotFoundError: No module named 'tbe'": "no_cann_module",
    "ModuleNotFoundError: No module named 'decorator'": "cann_package",
    "ModuleNotFoundError: No module named 'datasets'": "no_module",
    "ImportError: libopapi.so: cannot open shared object file: No such file or directory": "ascendcl_missing",
    "ImportError: libdrvdsmi_host.so: cannot open shared object file: No such file": "hal_missing",
    "ImportError: libpython3.9.so.1.0: cannot open shared object file: No such file": "lib_missing",
    "dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory": None,
    "ImportError: libcudart.so.11.0: cannot open shared object file: No such file": None,
    "ImportError: /x/torch_npu/lib/libtorch_npu.so: undefined symbol: _ZNK5torch8autograd4Node4nameEv": (
        "torch_abi"
    ),
    "ImportError: /x/torch_npu/_C.so: undefined symbol: aclrtGetDeviceUtilizationRate": "cann_symbol",
    "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by x.so)": "glibc",
    "[rank3]:[E a:4] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=1)": "watchdog",
    "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.": ("rendezvous"),
    "The client socket has timed out after 1800s while trying to connect to (10.0.0.1, 29500).": "rendezvous",
    "via c10d by store->get('0'), but store->get('0') got error: Connection reset by peer": "store_gone",
    "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile "
    "CUDA op(s)": "cuda_home",
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 8": "overflow_adj",
    "ValueError: Your setup doesn't support bf16/gpu.": "hf_bf16",
    "ImportError: FlashAttention2 has been toggled on, but it cannot be used": "flash_attn",
    "ValueError: Attempting to unscale FP16 gradients.": "unscale_fp16",
    "RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:": "state_dict",
    "OSError: We couldn't connect to 'https://huggingface.co' to load this file": "hub_offline",
    "Memory not enough: current free memory size[1] is smaller than required size[2].": "ms_memory_short",
    "The total number of timed out node is 1. Timed out node list is: [const vector]{3}, worker 3 is": (
        "ms_node_gone"
    ),
    "Out of Memory!!! Request memory size: 1073741824B, Memory Statistic:": "ms_oom",
    "Tip: if you see Out of Memory, take a smaller batch": None,
    "EZ3003: No supported Ops kernel and engine are found for [a], optype [b].": "ez3003",
    "E40021: [PID: 1] Failed to compile Op [te_matmul].": "e40021",
    "EE1002: [PID: 1] Stream synchronize timeout.": "ee1002",
    "NPU function error: x, error code is 507046": "acl_507046",
    "NPU function error: x, error code is 507034": "acl_507014",
    "NPU function error: x, error code is 507043": "acl_507016",
    "NPU function error: x, error code is 507054": "acl_507053",
    "NPU function error: x, error code is 507055": "acl_507057",
    "NPU function error: x, error code is 507056": "acl_507056",
    "call aclnnAdd failed, error code is 161002": "acl_161002",
    "call aclnnAdd failed, error code is 561112": "acl_561003",
    "ImportError: /x/torch_npu/_C.so: undefined symbol: THPVariableClass": "torch_abi",
    "NotImplementedError: Could not run 'aten::_scaled_mm' with arguments from the 'PrivateUse1' backend.": (
        "no_npu_kernel"
    ),
    "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x": "hub_offline",
    "error code 507048\nEI0002: [PID: 1] The wait execution of the Notify register times out": "ei0002",
    "aclInit(nullptr), error code is 100039": "acl_100039",
    "rtStreamSynchronize execute failed, reason=[vector core exception]": "kernel_crash",
    "EZ9999: The error from device(chipId:0), serial number is 1, there is an exception of fftsplus aivector "
    "error, core id is 3": "kernel_crash",
    "Kernel task happen error, [aicore exception].\nruntime result = 507015": "acl_507015",
    "The node: 3 is timed out. It may exit with exception, please check this node's log.": "ms_node_gone",
    "RuntimeError: Expected all tensors to be on the same device, but found npu:0 and cpu!": "two_devices",
    "docker: Error response from daemon: unknown or invalid runtime name: ascend.": "docker_runtime",
    "error code is 107003": "acl_107003",
    "NPU function error: aclInit, error code is 507008": "acl_507008",
    "[Error]: Failed to obtain the SOC version. ": "acl_507008",
    "RuntimeError: Malloc for kernel output failed, Memory isn't enough, node:Default/Cast-op446": "ms_oom",
    "RuntimeError: Malloc for kernel workspace failed, Memory isn't enough, node:Default/a": "ms_oom",
    "AllocDeviceMemByEagerFree failed, alloc size 301990400": "ms_oom",
    "RuntimeError: For 'load_param_into_net', a.weight in the argument 'net' should have the same shape as "
    "a.weight in the argument 'parameter_dict'. But got its shape (2,) in": "ms_load_param",
    "ImportError: This modeling file requires the following packages that were not found in your "
    "environment: transformers_stream_generator. Run `pip install a`": "hf_imports",
    "ValueError: Tokenizer class QWenTokenizer does not exist or is not currently imported.": (
        "hf_tokenizer_class"
    ),
    "AttributeError: module 'torch' has no attribute 'npu'": "npu_unknown",
    "EJ0003: [PID: 9] 2025-01-01-00:00:00.000.000 Failed to bind the IP port. Reason: The IP": "ej0003",
    "[PID: 9] 2026-01-01-00:00:00.000.000 Communication_Error_Bind_IP_Port(EJ0003): Failed to bind": "ej0003",
    "Communication_Error_Bind_IP_Port(EI0020): Failed to enable listening for the NPU network": "ej0003",
    "RuntimeError: createHCCLComm:a.ts:1508 HCCL function error: HcclGetRootInfo(&hcclID), error code is 7\n"
    "[ERROR] 2025-06-17-06:11:33 (PID:1, Device:2, RankID:-1) ERR02200 DIST call hccl api failed.\n"
    "EJ0003: [PID: 1] 2025-06-17-06:11:32.832.492 Failed to bind the IP port. Reason: The IP": "ej0003",
    "HCCL function error: hcclCommInitRootInfoConfig(n, &r, 0, c, &(comm->hcclComm_)), error code is 7": (
        "hccl_7"
    ),
    "[Init][CommRootInfoConfig]errNo[0x0000000005000007]HcclCommInitRootInfo failed.": "hccl_7",
    "HCCL function error: HcclGetRootInfo(&hcclID), error code is 9": "hccl_9",
    "HCCL function error: HcclGetRootInfo(&hcclID), error code is 19": "hccl_11",
    "HCCL function error: HcclGetRootInfo(&hcclID), error code is 15": None,
    "call aclnnAdd failed, error code is 7": None,
    "HcclCommInitRankTable failed, rank[0]": "hccl_rank_table",
    "tsd client wait response fail, device response code[1]. unknown device error.": "tsd_wait",
    "EJ0001: Failed to initialize the HCCP process.\n tsd client wait response fail, device": "ej0001",
    "E39999 tsd client wait response fail, device response code[1]. load aicpu ops package failed, a": (
        "aicpu_package"
    ),
    "EZ9999: The error from device(chipId:0, dieId:0), there is an aicore error, core id is": "kernel_crash",
    "EZ9999: The error from device(chipId:0), serial number is 7, there is an exception of aicore error": (
        "kernel_crash"
    ),
    "[WARNING] ME(1:1,MainProcess): MindSpore version 2.3.1 and Ascend AI software package (Ascend Data "
    "Center Solution)version 7.5 does not match, the version of software package expect one of ['7.2']": (
        "ms_version_mismatch"
    ),
    '[WARNING] ME: MindSpore version 2.2.0 and "te" wheel package version 7.0 does not match': (
        "ms_version_mismatch"
    ),
    "the shape does not match": None,
    "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05}": "loss_nan",
    "INFO - { Epoch:[  1/  2], step:[   10/  100], loss: nan, per_step_time: 900ms": "loss_nan",
    "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.": "ls_min",
    "Killed": "sigkill",
    "已杀死": "sigkill",
    "[1]+  Killed                  python finetune.py": "sigkill",
    "  5%|5         | 5/100 [00:10<03:00,  1.9s/it]Killed": "sigkill",
    "[launch.py:321:sigkill_handler] ['python', 'a.py'] exits with return code = -9": "sigkill",
    "Killed the old jobs": None,
    "Killed by the scheduler's own hook": None,
    "Segmentation fault (core dumped)": "segfault",
    "段错误（核心已转储）": "segfault",
    "Fatal Python error: Segmentation fault": "segfault",
    "error code is 207004": "acl_207004",
    "error code is 207006": "acl_207006",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentence_of_another_program_is_known(text: str) -> None:
    assert found(f"{text}\n".encode()) == TEXTS[text]


@pytest.mark.parametrize(
    ("text", "wrapper"),
    [
        ("EH9999: Inner Error!", "inner"),
        ("EL9999: Inner Error!", "inner"),
        ("[ERROR] 2025-01-01-00:00:00 (PID:1, Device:0, RankID:0) ERR01005 OPS internal error", "err_inner"),
        ("error code is 507000", "acl_inner"),
        ("RuntimeError: Failed to load the backend extension: torch_npu. You can disable", "autoload"),
    ],
)
def test_an_inner_error_of_any_component_is_no_cause(text: str, wrapper: str) -> None:
    told = diagnosis(f"{text}\n".encode())
    assert (told.error, told.wrappers) == (None, [wrapper])
    assert found(f"{text}\nOSError: [Errno 122] Disk quota exceeded\n".encode()) == "disk"


@pytest.mark.parametrize(
    "warning",
    [
        "start.sh: line 3: npu-smi: command not found",
        "Warning: 'aten::isin' is not currently supported on the NPU backend and will fall back to run on "
        "the CPU. (function npu_cpu_fallback)",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 8",
    ],
)
def test_a_warning_is_not_the_cause_where_an_exception_is_that_nobody_knows(warning: str) -> None:
    alone, with_it = diagnosis(f"{warning}\n".encode()), diagnosis(f"{warning}\nx\n{STEP}".encode())
    assert alone.error is not None
    assert with_it.error is None
    assert [hit.text for hit in with_it.evidence] == [STEP.strip()]
    assert [hit.error for hit in with_it.also] == [alone.error]
    assert alone.error.id in screen.text(Account(with_it, 1, 3, 99))


def test_an_unknown_exception_before_a_symptom_is_shown_beside_it() -> None:
    """Rank 3 dies of something that is nobody's; the others only wait for it."""
    died = b"2026-01-15 10:00:00,000 x\n" + STEP.encode()
    waited = at("10:20:00", "EI0002: waited", 0)
    told = diagnosis(died, waited, names=["rank_3.log", "rank_0.log"])
    assert told.error is not None
    assert told.error.id == "ei0002"
    assert [(hit.file, hit.text) for hit in told.unexplained] == [("rank_3.log", STEP.strip())]
    assert STEP.strip() in screen.text(Account(told, 2, 3, 99))
    # what comes later is its consequence, and what stands right above it the same error in Python's words
    late = b"2026-01-15 10:30:00,000 x\n" + STEP.encode()
    assert diagnosis(late, waited).unexplained == []
    assert diagnosis(b"RuntimeError: HcclAllReduce failed\n" + waited).unexplained == []


def test_one_line_is_one_error() -> None:
    told = diagnosis(b"ImportError: libhccl.so: cannot open shared object file: No such file\n")
    assert told.error is not None
    assert (told.error.id, told.also) == ("hccl_missing", [])


@pytest.mark.parametrize("coding", ["utf-8", "gb18030"])
def test_chinese_texts_are_found_in_either_coding(coding: str) -> None:
    assert found("保存失败：设备上没有空间\n".encode(coding)) == "disk"


def test_bfloat16_is_not_said_to_be_missing_from_every_chip() -> None:
    """The same sentence comes from a first 910, and from an A2's operator that has no bfloat16."""
    error = known.load()["ez1001_bf16"]
    assert "910B1" in error.texts["en"]["fix"]
    assert "910B1" in error.texts["zh"]["fix"]
