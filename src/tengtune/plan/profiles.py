"""What training programs keep in memory: our two back ends, counted from their code, and the programs
behind the published figures, with three fitted constants each (bytes a logit, fragmentation, context).

bench/planner.py scores them against those figures.
"""

from __future__ import annotations

from dataclasses import replace

from tengtune.plan.strategy import Kept, Profile, Range, Speed, States, exactly

# LoRA's float32 weight, gradient and two moments, in every program here. PyTorch's foreach optimizers copy
# what they update once more.
_ADAPTER = States(4, exactly(4), 8)
_COPIED = States(4, exactly(4), 8, step=4)
# PEFT's modules_to_save: the frozen original and a trained copy, all in 16 bits. Beside a quantized base PEFT
# widens embedding and head to float32.
_SAVED = States(4, exactly(2), 4, step=2)

# A SwiGLU layer in Hugging Face's code, after Korthikanti et al., arXiv 2205.05198, without dropout: two
# norms in float32, q, k, v, the residuals: 34 a hidden unit; gate, up, their activation and product: 8 a
# feed-forward unit.
_USUAL = Kept(hidden=34, query=0, key_value=0, ffn=8)

# Allocators' slack: 1.00 to 1.08 were fitted to published peaks, 1.02 fits most.
_SLACK = Range(1.0, 1.02, 1.08)

# Time. Hugging Face's code in eager PyTorch. Fitted to QwenLM's table on A100: the share of the peak, LoRA's
# 1.8 ms to start a layer's kernels in a pass, the bytes of AutoGPTQ's unpacking. Counted: PEFT casts an
# adapter's input to float32, drops out and casts back, scales and adds its output; a layer has 259 operations
# forward and backward with PEFT and 112 without, which makes 14 us each.
_EAGER = Speed(
    share=Range(0.5, 0.65, 0.75),
    pass_s=1.8e-3,
    full_pass_s=0.6e-3,
    touches=2,
    adapter_in=25,
    adapter_out=11,
    unpack_bytes=16,
)

TORCH = Profile(
    name="torch",
    # Operations counted as above, without those that attention has on a CPU only: 150 with LoRA, 105 without.
    # The share of the peak on cards is not measured.
    speed=Speed(
        share=Range(0.4, 0.55, 0.7),
        pass_s=1.1e-3,
        full_pass_s=0.6e-3,
        touches=2,
        unpack_bytes=5,
        sent_bytes=4,
    ),
    # backends/torch/optimizer.py: float32 masters, gradients and two moments.
    full=States(4, exactly(4), 8),
    adapter=_ADAPTER,
    embeddings=_ADAPTER,
    quantized_embedding_bytes=2,
    # backends/torch/ops.py, lora.py: the inputs of two norms and what they give, q and attention's output,
    # k and v, gate, up and their product.
    kept=Kept(hidden=8, query=4, key_value=4, ffn=6),
    # backends/torch/loss.py: 128 MiB of logits at a time, and the same in float32.
    logit_bytes=Range(6, 6, 8),
    logits=1 << 26,
    # A layer's backward is largest at swiglu's: three gradients as wide as its product, which is gone by
    # then. tests/unit/test_plan_torch.py counts both.
    working=Kept(hidden=0, query=0, key_value=0, ffn=4),
    gradients_grow=True,
    # A trained head's new gradient lies beside the sum of those before.
    head_bytes=4.0,
    # backends/torch/optimizer.py on cards: four working copies of one tensor at a time.
    largest_bytes=16.0,
    fragmentation=_SLACK,
    maps_weights=True,
)
# On a CPU: the softmax goes through 4 MiB of the logits at a time, in place in float32; AdamW is one fused
# pass; checkpoints of up to 100 MB are copied in the same memory (train/saver.py). context: what libraries
# make at their first use; fragmentation: pages of the heap that are only partly used.
TORCH_CPU = replace(
    TORCH,
    logit_bytes=exactly(2),
    largest_bytes=0.0,
    held_checkpoint=1e8,
    context=Range(0.01e9, 0.03e9, 0.06e9),
    fragmentation=Range(1.0, 1.01, 1.03),
)
MINDSPORE = Profile(
    name="mindspore",
    # A graph a block: as mindformers, not measured.
    speed=Speed(
        share=Range(0.3, 0.45, 0.65),
        pass_s=0.3e-3,
        full_pass_s=0.3e-3,
        touches=2,
        unpack_bytes=5,
        sent_bytes=4,
    ),
    full=States(4, exactly(4), 8),
    adapter=_ADAPTER,
    embeddings=_ADAPTER,
    quantized_embedding_bytes=2,
    kept=_USUAL,
    # backends/mindspore/loss.py: logits of 16 bits, in float32, their logarithms and gradient.
    logit_bytes=Range(10, 14, 18),
    logits=1 << 24,
    fragmentation=_SLACK,
    gathers="mindspore",
    shards=True,
    always_recomputes=True,
    zero=(0, 1, 2, 3),
    maps_weights=True,
)
# On a CPU a block's backward holds far more than what is alive in it: these figures are not counted but
# fitted to measured steps with other widths, lengths and numbers of rows; so are the bytes of a score, of a
# logit, and those that the update of the largest vector takes. context: the compiler.
MINDSPORE_CPU = replace(
    MINDSPORE,
    working=Kept(hidden=164, query=100, key_value=100, ffn=5),
    score_bytes=13.0,
    logit_bytes=Range(7, 8, 9),
    logits=1 << 25,
    keeps_logits=True,
    largest_bytes=50.0,
    context=Range(0.15e9, 0.19e9, 0.25e9),
    fragmentation=Range(1.0, 1.05, 1.12),
)
HF_TRAINER = Profile(
    name="hf-trainer",
    speed=_EAGER,
    # Autocast over weights of 16 bits (QwenLM's finetune.py on one card): 2 + 2, and masters with two
    # moments 12.
    full=States(2, exactly(2), 12),
    adapter=_COPIED,
    embeddings=_SAVED,
    quantized_embedding_bytes=4,
    kept=_USUAL,
    # 12 was fitted; 18 is the count: 2 of 16 bits, float, shifted copy, log-softmax and gradient 4 each.
    logit_bytes=Range(12, 12, 18),
    fragmentation=_SLACK,
    context=Range(0.3e9, 1.8e9, 1.8e9),
)
DEEPSPEED = Profile(
    name="deepspeed",
    # Hooks for each weight's gradient: 2.7 ms, fitted to QwenLM's table. LoRA under ZeRO-2: four A100 take
    # 1.8 times one's time a token (there), four 910B3 1.75 times replicas' (ms-swift's); nobody says why.
    speed=replace(_EAGER, full_pass_s=2.7e-3, lora_zero=Range(1.0, 1.75, 1.9)),
    # The ZeRO paper's 2 + 2 + 12; with bfloat16 gradients are summed in float32: 18 in all.
    full=States(2, Range(2, 4, 4), 12),
    adapter=_COPIED,
    embeddings=_SAVED,
    quantized_embedding_bytes=4,
    kept=_USUAL,
    # 8 was fitted to runs in float16, 12 to those in bfloat16.
    logit_bytes=Range(8, 12, 18),
    fragmentation=Range(1.0, 1.0, 1.08),
    gathers="deepspeed",
    zero=(0, 1, 2, 3),
    offload=("none", "optimizer", "all"),
    context=Range(0.3e9, 1.0e9, 1.8e9),
    # Its own estimator's factor; two reported runs that were killed lay between 1 and 1.5.
    offload_factor=Range(1.0, 1.5, 1.5),
    checkpoint_bytes=14.0,
)
MS_SWIFT = Profile(
    name="ms-swift",
    speed=_EAGER,
    # Its full tuning of releases 1 and 2 keeps all in bfloat16: 8 bytes, and the optimizer's copy.
    full=States(2, exactly(2), 4, step=2),
    adapter=_COPIED,
    embeddings=_SAVED,
    quantized_embedding_bytes=4,
    kept=_USUAL,
    # 18 is the count (as above); its tables show that again, but at most some 9.5 GB, fitted.
    logit_bytes=Range(18, 18, 18),
    spare_logits=Range(0.0, 9.5e9, 19e9),
    fragmentation=_SLACK,
    gathers="deepspeed",
    context=Range(0.3e9, 1.8e9, 1.8e9),
    checkpoint_bytes=6.0,
)
MINDFORMERS = Profile(
    name="mindformers",
    # Its published speeds on 910B: 22 to 44% of the peak in the model's FLOPs.
    speed=Speed(share=Range(0.3, 0.45, 0.65), pass_s=0.3e-3, full_pass_s=0.3e-3, touches=2),
    # FP32StateAdamWeightDecay over float16 weights: two float32 moments, no masters, float16 gradients. Its
    # other figures are the usual ones; no published peak of it was scored.
    full=States(2, exactly(2), 8),
    adapter=_ADAPTER,
    embeddings=_ADAPTER,
    quantized_embedding_bytes=2,
    kept=_USUAL,
    logit_bytes=Range(8, 12, 18),
    fragmentation=_SLACK,
    zero=(0, 1, 2, 3),
    splits=True,
)
MINDSPEED = Profile(
    name="mindspeed",
    # The eager code's share; operations are fused. Not fitted to its published speeds.
    speed=Speed(share=Range(0.5, 0.65, 0.75), pass_s=0.5e-3, full_pass_s=0.5e-3, touches=2, sent_bytes=4),
    # Megatron's: with bfloat16 gradients are summed in float32.
    full=States(2, exactly(4), 12),
    adapter=States(2, exactly(4), 12),
    embeddings=States(2, exactly(4), 12),
    quantized_embedding_bytes=2,
    # Fused norms: 18 a hidden unit. (Korthikanti et al. without dropout and scores)
    kept=Kept(hidden=18, query=0, key_value=0, ffn=8),
    # The cross entropy over cards: 2 of 16 bits, 4 as float and 4 of the softmax.
    logit_bytes=Range(8, 10, 12),
    # Its published peaks are PyTorch's allocated bytes.
    fragmentation=Range(1.0, 1.0, 1.08),
    zero=(0, 1),
    checkpoint_bytes=14.0,
    splits=True,
)
PROFILES = {
    each.name: each for each in (TORCH, MINDSPORE, HF_TRAINER, DEEPSPEED, MS_SWIFT, MINDFORMERS, MINDSPEED)
}
"""By the names that --engine takes; ours come first."""
TORCH_PLAIN = replace(
    TORCH,
    # 8 operations a tile forward and 15 backward (counted), each 14 us as above. Of a peak's share on these
    # cards only a graph program's is published, mindformers' on 910A (0.45 is 8% above it): no more is taken.
    speed=replace(TORCH.speed, share=Range(0.3, 0.45, 0.65), tile_s=0.16e-3),
)
"""Where no fused attention is: a tile's scores, at most 64 queries of all heads, never are the peak of a
backward; q, k and v are kept in either case."""
MINDSPORE_PLAIN = replace(MINDSPORE, score_bytes=12.0)
"""A row's scores at once: in the backward probabilities, their gradient and a product of both, in float32.
(backends/mindspore/attention.py)"""
PLAIN_ATTENTION = {"torch": TORCH_PLAIN, "mindspore": MINDSPORE_PLAIN}
"""Ours on cards without fused attention."""
ON_CPU = {"torch": TORCH_CPU, "mindspore": MINDSPORE_CPU}
"""Ours where ranks compute on a CPU."""
OURS = ("torch", "mindspore")
