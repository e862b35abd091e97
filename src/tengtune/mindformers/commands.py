"""The commands of an exported run, from the data to the answers, as a shell script with headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tengtune.mindformers.codecs import plain
from tengtune.mindformers.notes import one_line
from tengtune.mindformers.write import OUTPUT, RECORDS, START, WEIGHTS, Job
from tengtune.text.template import SYSTEM
from tengtune.ui.language import say
from tengtune.ui.problems import Problem

TABLE = "rank_table.json"
_ODD = re.compile(r"[^\w@%+=:,./-]")
"""What shlex.quote would put in quotes, but for letters of any script."""
PORT, PATIENCE = 8118, 7200
"""msrun_launcher.sh's port, and the seconds it waits for ranks to come; the True before it has it wait for
their end."""


def script(work: Job) -> str:
    """The text of commands.sh."""
    lines = ["#!/bin/bash", "set -e"]
    number = 0
    for heading, commands in (
        ("head", _head(work)),
        ("table", _table(work)),
        ("weights", _weights(work)),
        ("data", _data(work)),
        ("tune", _tune(work)),
        ("merge", _merge(work)),
        ("predict", _predict(work)),
    ):
        body = list(commands)
        if body:
            lines += ["", f"# {f'{number}. ' if number else ''}{say(f'mindformers.step_{heading}')}", *body]
            number += 1
    return "\n".join(lines) + "\n"


def _called(words: list[str]) -> str:
    """A command over several lines: an option with its values in each."""
    return " \\\n  ".join(words)


def _here(name: str) -> str:
    return f'"$HERE"/{name}'


def _head(work: Job) -> Iterator[str]:
    release = {"r1.0": "r1.0", "qwen1": "r1.3.0", "qwen2": "r1.5.0"}[work.skeleton]
    yield f"MF=/path/to/mindformers   # {say('mindformers.checkout', release=release)}"
    yield f"HERE={shlex.quote(str(work.folder))}"
    yield 'export PYTHONPATH="$MF:$PYTHONPATH"'
    yield f'export LOCAL_DEFAULT_PATH="$HERE"/{OUTPUT}'
    if work.hardware.bfloat16:
        yield "export MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE"
    yield f'test ! -e "$HERE"/{OUTPUT} || {{ echo {shlex.quote(say("mindformers.output_there"))}; exit 1; }}'


def _table(work: Job) -> Iterator[str]:
    """r1.0 needs a rank table on several cards; msrun does without."""
    cards = work.hardware
    if work.form != "r1.0" or cards.ranks == 1:
        return
    last = f'"[0,{cards.cards})"'
    if cards.nodes == 1:
        yield f"tengtune ranktable make {last} --out {_here(TABLE)}"
    else:
        names = [f"rank_table_{node}.json" for node in range(cards.nodes)]
        yield f"# {say('mindformers.each_node')}"
        yield f'tengtune ranktable make {last} --out "$HERE"/rank_table_$NODE.json'
        yield f"# {say('mindformers.one_node')}"
        yield f"tengtune ranktable merge {' '.join(map(_here, names))} --out {_here(TABLE)}"
    yield f'# = python "$MF"/mindformers/tools/hccl_tools.py --device_num {last}'


def _data(work: Job) -> Iterator[str]:
    """Our own records: they hold the run file's policy and system text, and are int32 in any release."""
    data, qwen1 = work.recipe.data, work.spec.family == "qwen1"
    if work.given:
        yield f"# {one_line(say('mindformers.records_given', path=work.given))}"
        return
    files = " ".join(shlex.quote(str(work.recipe.resolve(file))) for file in data.files)
    given = [f"--map {shlex.quote(f'{ours}={theirs}')}" for ours, theirs in data.map.items()]
    if data.format != "auto":
        given.append(f"--format {data.format}")
    if data.system is not None:
        given.append(f"--system {shlex.quote(data.system)}")
    if not qwen1:
        given.append("--columns target_ids")
    form = f"--seq-len {data.seq_len} --policy {data.policy} --too-long {data.too_long}"
    model = shlex.quote(str(work.recipe.model_folder))
    target = f"--to mindrecord --out {_here(RECORDS)}"
    yield _called([f"tengtune data convert {files}", f"--model {model}", form, *given, target])
    script = "qwen_preprocess.py" if qwen1 else "qwen2_preprocess.py"
    yield f"# {say('mindformers.their_records', converter='alpaca_converter.py', preprocess=script)}"


def _records(work: Job) -> str:
    """The MindRecord, as it stands in a command."""
    return shlex.quote(str(work.given)) if work.given else f"$HERE/{RECORDS}"


def _weights(work: Job) -> Iterator[str]:
    model = shlex.quote(str(work.recipe.model_folder))
    yield f"tengtune convert {model} {_here(WEIGHTS)} --to mindspore --dtype {work.kept}"
    if work.hardware.ranks > 1:
        yield f"mkdir -p {_here(START)}/rank_0"
        yield f"ln -sf ../../{WEIGHTS}/model.ckpt {_here(START)}/rank_0/model.ckpt"


def _tune(work: Job) -> Iterator[str]:
    cards, several = work.hardware, work.hardware.ranks > 1
    options = [
        f"--config $HERE/{work.names[0]}",
        f"--load_checkpoint $HERE/{work.checkpoint.relative_to(work.folder)}",
        f"--use_parallel {several}",
        "--run_mode finetune",
        f"--auto_trans_ckpt {several}",
    ]
    if work.skeleton == "qwen2":
        call = ["run_mindformer.py --register_path research/qwen2", *options]
        call.append(f"--train_dataset_dir {_records(work)}")
        yield 'cd "$MF"'
        launcher = "scripts/msrun_launcher.sh"
    else:
        at = "qwen/" if work.form == "r1.0" else ""
        call = [f"{at}run_qwen.py", *options, f"--train_dataset {_records(work)}"]
        yield f'cd "$MF"/research{"" if at else "/qwen"}'
        launcher = "../../scripts/msrun_launcher.sh"
    inner = _called(call)
    if several:
        _refuse_odd(work.folder, work.given)
    if not several:
        yield "python " + inner.replace("$HERE", '"$HERE"')
    elif work.form == "r1.0":
        yield from _by_table(work, inner)
    elif cards.nodes == 1:
        yield f'bash {launcher} "{inner}" \\\n  {cards.cards} {PORT} "$HERE"/msrun_log True {PATIENCE}'
    else:
        yield f"# {say('mindformers.each_node')}"
        place = f'{cards.ranks} {cards.cards} "$MASTER" {PORT} "$NODE"'
        yield f'bash {launcher} "{inner}" \\\n  {place} "$HERE"/msrun_log True {PATIENCE}'


def _refuse_odd(*paths: Path | None) -> None:
    """Problem for a path that mindformers' launchers would take apart: they are given the command as one
    text, which a shell reads once more."""
    for path in filter(None, paths):
        odd = sorted(set(_ODD.findall(str(path))))
        if odd:
            shown = " ".join(repr(each) for each in odd)
            raise Problem("mindformers.odd_path", where=path, odd=shown)


def _by_table(work: Job, inner: str) -> Iterator[str]:
    """run_singlenode.sh and run_multinode.sh, which go on in the background."""
    cards = work.hardware
    if cards.nodes == 1:
        place = f'{_here(TABLE)} "[0,{cards.cards})" {cards.ranks}'
        yield f'bash run_singlenode.sh "python {inner}" \\\n  {place}'
    else:
        yield f"# {say('mindformers.each_node')}"
        first, end = f"$((NODE * {cards.cards}))", f"$((NODE * {cards.cards} + {cards.cards}))"
        yield f'bash run_multinode.sh "python {inner}" \\\n  {_here(TABLE)} "[{first},{end})" {cards.ranks}'
    yield f"# {say('mindformers.background')}"
    yield 'sleep 60; while pgrep -f "run_qwen.py --config" > /dev/null; do sleep 30; done'
    yield f'ls "$HERE"/{OUTPUT}/checkpoint_network/rank_*/*.ckpt'


def _merge(work: Job) -> Iterator[str]:
    recipe, several = work.recipe, work.hardware.ranks > 1
    model, trained = shlex.quote(str(recipe.model_folder)), f'"$HERE"/{OUTPUT}/checkpoint_network'
    prefix = "qwen" if work.spec.family == "qwen1" else "qwen2"
    whole = f"{trained}/rank_0/{prefix}_rank_0-network.ckpt"
    if several:
        whole = _here("whole.ckpt")
        yield f'tengtune merge --shards {trained} --strategy "$HERE"/{OUTPUT}/strategy --out {whole}'
        folders = f'--src_ckpt_strategy "$HERE"/{OUTPUT}/strategy --src_ckpt_dir {trained}'
        tool = 'python "$MF"/mindformers/tools/transform_ckpt.py'
        yield f"# = {tool} {folders} --dst_ckpt_dir {_here('whole')} --prefix checkpoint_"
    tuned, dtype = _here("tuned"), f"--dtype {work.dtype}"
    if recipe.train.method == "full":
        yield f"tengtune convert {whole} {tuned} --to hf --config {model} {dtype}"
    else:
        alpha = plain(recipe.lora.alpha)
        yield f"tengtune convert {whole} {_here('base')} --to hf --part model --config {model}"
        adapter = f"--part adapter --lora-alpha {alpha}"
        yield f"tengtune convert {whole} {_here('adapter')} --to hf {adapter}"
        yield f"tengtune merge --base {_here('base')} --adapter {_here('adapter')} --out {tuned}"
        scaling = f"{recipe.lora.alpha / recipe.lora.rank:.12g}"
        default = say("mindformers.scaling_default")
        yield f"# = transform_ckpt_lora.py ... --lora_scaling {scaling}   # {default}"
    yield f"tengtune convert {tuned} {_here('tuned-ms')} --to mindspore --dtype {work.answering}"


def _predict(work: Job) -> Iterator[str]:
    length = work.recipe.data.seq_len
    options = [f"--config {_here(work.names[1])}", "--run_mode predict", "--use_parallel False"]
    options.append(f"--load_checkpoint {_here('tuned-ms')}/model.ckpt")
    if work.skeleton == "qwen2":
        yield 'cd "$MF"'
        call = "python run_mindformer.py --register_path research/qwen2"
    else:
        yield 'cd "$MF"/research/qwen'
        call = "python run_qwen.py"
        options.append(f"--device_id 0 --use_past True --predict_length {length}")
    if work.form == "r1.0" and work.hardware.bfloat16:
        yield "export MS_GE_TRAIN=0 MS_ENABLE_GE=1 MS_ENABLE_REF_MODE=1"
    for question in work.recipe.output.prompts or [say("mindformers.question")]:
        yield _called([call, *options, f"--predict_data {_ansi_quoted(_asked(work, question))}"])


def _asked(work: Job, question: str) -> str:
    """ChatML around a question: mindformers' predict takes a text as it is."""
    given = work.recipe.data.system
    system = SYSTEM if given is None else given
    opening = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{opening}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def _ansi_quoted(text: str) -> str:
    """A text with line ends as one word in one line of bash."""
    plain_text = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"$'{plain_text}'"
