"""The benchmark's rows: Alpaca records as ChatML tokens, one document each, and packed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tengtune.models.spec import ModelSpec
from tengtune.train.batch import NO_LABEL, Batch

SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Document:
    """ids, of which ids[answer:] are labels."""

    ids: list[int]
    answer: int

    @property
    def labels(self) -> list[int]:
        """The unshifted labels of transformers; the first token of a document is none."""
        return [-100 if i < max(self.answer, 1) else token for i, token in enumerate(self.ids)]

    @property
    def trained(self) -> int:
        return len(self.ids) - max(self.answer, 1)


def read(model: Path, data: Path, cutoff: int) -> list[Document]:
    """Every record of an Alpaca file; the end beyond `cutoff` tokens is cut off."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    documents = []
    for record in json.loads(data.read_text(encoding="utf-8")):
        documents.append(_document(record, tokenizer, cutoff))
    return documents


def _document(record: dict[str, Any], tokenizer: Tokenizer, cutoff: int) -> Document:
    question = "\n".join(part for part in (record["instruction"], record.get("input")) if part)
    turns = [("system", SYSTEM), ("user", question)]
    head = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    prompt = tokenizer.encode(head + "<|im_start|>assistant\n").ids
    answer = tokenizer.encode(record["output"] + "<|im_end|>\n").ids
    return Document((prompt + answer)[:cutoff], min(len(prompt), cutoff))


def pack(documents: list[Document], cutoff: int) -> list[list[Document]]:
    """First fit, longest first."""
    rows: list[list[Document]] = []
    for document in sorted(documents, key=lambda d: -len(d.ids)):
        for row in rows:
            if sum(len(d.ids) for d in row) + len(document.ids) <= cutoff:
                row.append(document)
                break
        else:
            rows.append([document])
    return rows


def as_batch(row: list[Document], cutoff: int) -> Batch:
    """One packed row as tengtune's back ends take it."""
    ids, positions, segment = (np.zeros((1, cutoff), np.int32) for _ in range(3))
    index, label = [], []
    start = 0
    for number, document in enumerate(row, 1):
        end = start + len(document.ids)
        ids[0, start:end], segment[0, start:end] = document.ids, number
        positions[0, start:end] = np.arange(end - start)
        first = start + max(document.answer, 1)
        index += range(first - 1, end - 1)
        label += document.ids[first - start :]
        start = end
    slots = -(-len(label) // 256) * 256
    unused = [0] * (slots - len(label))
    return Batch(
        ids,
        positions,
        segment,
        np.array([index + unused], np.int32),
        np.array([label + [NO_LABEL] * len(unused)], np.int32),
    )


def useful_flops(spec: ModelSpec, documents: list[Document], rank: int) -> float:
    """FLOP that LoRA training on these documents needs: frozen linears forward and for the inputs'
    gradient, adapters 6 per weight, causal attention inside each document three times its forward, the
    head where a label is."""
    linears = spec.linears().values()
    per_token = spec.layers * sum(4 * out * into + 6 * rank * (out + into) for out, into in linears)
    pairs = sum(len(d.ids) * (len(d.ids) + 1) / 2 for d in documents)
    return (
        per_token * sum(len(d.ids) for d in documents)
        + 3 * 4 * spec.layers * spec.q_width * pairs
        + 2 * spec.head_flops() * sum(d.trained for d in documents)
    )
