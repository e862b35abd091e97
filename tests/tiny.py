"""A tiny byte-level BPE tokenizer with ChatML control tokens, for tests that need no real vocabulary.

384 ids, so that it fits the tiny golden models: 256 bytes, 123 merges, then the control tokens, in
Qwen's order, and two added tokens that are not "special" (Qwen3 has such, and they are a trap).
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB = 384
ENDOFTEXT, IM_START, IM_END, TOOL_CALL, THINK = 379, 380, 381, 382, 383

CORPUS = [
    "system user assistant tool You are a helpful assistant. What is the capital of France?",
    "The answer is that there are some things which are better than others, and this is one of them.",
    "Please tell me how the model is trained and what the training data should look like.",
    "你好，请问你是谁？我是一个助手，很高兴为你提供帮助。",
    "请把下面的句子翻译成英文。今天的天气很好，我们去公园吧。",
]
_PATTERN = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tiny_tokenizer(folder: Path) -> Path:
    """Write `folder`/tokenizer.json (the same bytes every time); returns the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENDOFTEXT,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<tool_call>", "<think>")]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
