"""tengtune init"""

from __future__ import annotations

import json
from pathlib import Path

import click

from tengtune import files
from tengtune.cli.command import Command
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

TEMPLATE = """# tengtune run {run}
model: {model}
data:
  files: {data}
  seq_len: 1024          # {seq_len}
train:
  method: lora           # lora | full
  epochs: 3
  global_batch: 8        # {global_batch}
output:
  prompts: []            # {prompts}
"""

COMMENTS = {
    "en": {
        "seq_len": "tokens in a row; shorter records share a row",
        "global_batch": "rows per optimizer step, over all cards",
        "prompts": "questions to compare before and after; empty: held-out ones",
    },
    "zh": {
        "seq_len": "每行的 token 数，较短的记录会拼在同一行",
        "global_batch": "每个优化步的行数（所有卡合计）",
        "prompts": "训练前后对比用的问题；留空则取留出数据",
    },
}


@click.command("init", cls=Command, help="cli.init")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("-o", "--out", default="run.yaml", type=click.Path(path_type=Path), show_default=True)
def command(model: Path, data: tuple[Path, ...], out: Path) -> None:
    """Write a run file for a model folder MODEL and data files DATA."""
    from tengtune.models import spec

    spec.from_folder(model)
    for path in data:
        if not path.is_file():
            raise Problem("io.not_found", where=path, reason="-")
    if out.exists():
        raise Problem("run.exists", where=out)

    def quoted(path: Path) -> str:
        return json.dumps(str(path.absolute()), ensure_ascii=False)

    names = [quoted(path) for path in data]
    text = TEMPLATE.format(
        run=out,
        model=quoted(model),
        data=names[0] if len(names) == 1 else f"[{', '.join(names)}]",
        **COMMENTS[language.current()],
    )
    files.write_text(out, text)
    Console().result(f"{out}\ntengtune run {out}")
