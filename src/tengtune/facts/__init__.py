"""What is known of cards, models, versions, errors and published runs, as data: YAML and CSV files with their
sources, and their reader. Without a framework and quick: most commands read some."""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import Any


def text(name: str) -> str:
    """A file of this folder, "npus.yaml" or "compat/cann_driver.csv"."""
    return resources.files(__name__).joinpath(*name.split("/")).read_text("utf-8")


@functools.cache
def tree(name: str) -> Any:
    """A YAML file, parsed once: not to be changed."""
    return parsed(text(name))


@functools.cache
def words(name: str) -> Any:
    """A YAML file whose every value stays the words it is: yes and no, too."""
    import yaml

    return yaml.load(text(name), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))


@functools.cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """A CSV file's lines by the names in its first."""
    return tuple(csv.DictReader(text(name).splitlines()))


def parsed(content: str | bytes) -> Any:
    """YAML by the fast loader where libyaml is there; yaml.YAMLError for what is none."""
    import yaml

    return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
